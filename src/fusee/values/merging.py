"""JSON merge patch (RFC 7396): how a change is laid over what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["merged"]


def merged(before: Any, change: Any) -> Any:
    """`before` with the members that `change` names; null removes a member, and anything but an object
    replaces what was there."""
    if not isinstance(change, Mapping):
        return change
    after = dict(before) if isinstance(before, Mapping) else {}
    for name, value in change.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), value)
    return after
