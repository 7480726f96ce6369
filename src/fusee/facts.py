"""Facts of a log line, under any name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

__all__ = ["RESERVED", "facts"]

RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "taskName"),  # the standard library's own, in every version
    *("event", "level", "logger", "timestamp", "exception", "stack", "positional_args"),  # structlog's
}
"""Names with a meaning of their own in a log record: `logging` raises `KeyError` for most of them, and the
others would replace the level or the text of the line."""


def facts(known: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    """What a line is about, for `extra=`; a reserved name gets a trailing underscore (`created_`).

    Every log call of the package goes through here, and a test holds it to that: a name that was chosen badly
    must not fail what is only being logged."""
    named = {**(known or {}), **more}
    return {f"{name}_" if name in RESERVED else name: value for name, value in named.items()}
