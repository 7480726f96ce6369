"""Other names for the fields of a task, as older designs write them, and what their values mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusee.engine.model.retry import MOST_ATTEMPTS
from fusee.engine.model.run_fields import EXECUTORS
from fusee.errors import Invalid

__all__ = ["ALIASES", "STATUSES", "translated"]

ALIASES = {
    "cron_expr": "cron",
    "schedule": "cron",
    "interval": "every",
    "interval_seconds": "every",
    "timeout_seconds": "timeout",
    "concurrency": "concurrency_policy",
    "overlap": "overlap_action",
    "failure": "failure_action",
    "catch_up": "catch_up_mode",
    "retry_policy": "retry",
    "retry_policy_json": "retry",
    "max_retries": "retry",
    "depends_on": "after",
    "dependencies": "after",
    "params": "payload",
    "parameters": "payload",
    "task_type": "executor",
    "shard_config": "shards",
}
"""Other names for the same thing, as they stand in older requests."""

STATUSES: Mapping[str, bool] = {"ENABLED": True, "ACTIVE": True, "DISABLED": False, "INACTIVE": False}
"""The statuses that a task can be made with, and whether it then fires."""

SHARDS = ("shard_total", "shard_count", "shards", "total", "count")


def translated(written: str, value: Any) -> tuple[str, Any]:
    """The field that is meant and its value."""
    if written == "task_type" and isinstance(value, str) and value.lower() not in EXECUTORS:
        return "handler", value  # a type of the caller's own is a handler here
    return ALIASES.get(written, written), _VALUES[written](value) if written in _VALUES else value


def _retries(value: Any) -> Any:
    """Tries after the first: the rest of the retry policy stays as it is."""
    if value is None:
        return {"max_attempts": None}
    if type(value) is not int or not 0 <= value < MOST_ATTEMPTS:
        raise Invalid(
            f"max_retries must be a whole number from 0 to {MOST_ATTEMPTS - 1}, not {value!r:.60}",
            field="max_retries",
        )
    return {"max_attempts": value + 1}


def _shards(value: Any) -> Any:
    """The number of runs that a fire makes, alone or in an object."""
    if not isinstance(value, Mapping):
        return value
    named = [name for name in SHARDS if name in value]
    if len(named) != 1 or len(value) != 1:
        raise Invalid(
            f'shard_config must be a number, or an object such as {{"{SHARDS[0]}": 4}}', field="shard_config"
        )
    return value[named[0]]


_VALUES: Mapping[str, Callable[[Any], Any]] = {"max_retries": _retries, "shard_config": _shards}
