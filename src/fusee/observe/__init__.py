"""What the program tells about itself: logs, metrics, health; each only listens to events."""

from fusee.observe.health import Health
from fusee.observe.logs import log_events, set_up_logging
from fusee.observe.metrics import Metrics

__all__ = ["Health", "Metrics", "log_events", "set_up_logging"]
