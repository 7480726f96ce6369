"""Logs, metrics and health. Each of them only subscribes to events."""

from fusee.observe.health import Health
from fusee.observe.logs import log_events, set_up_logging
from fusee.observe.metrics import Metrics

__all__ = ["Health", "Metrics", "log_events", "set_up_logging"]
