"""Alerts are http runs of a queue of their own: retried and kept like any other run."""

from __future__ import annotations

from fusee.engine.model.retry import RetryPolicy

__all__ = ["ALERT_QUEUE", "ALERT_RETRY"]

ALERT_QUEUE = "fusee.alerts"
ALERT_RETRY = RetryPolicy(max_attempts=8, base=5.0)
