"""Sizes as people write them: `512MB`, `8GiB`, or a number of bytes."""

from __future__ import annotations

import re

from fusee.errors import Invalid

__all__ = ["bytes_from"]

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-z]*)", re.IGNORECASE)


def bytes_from(value: object, what: str) -> int:
    """Refuses what is no size, or no whole number of bytes."""
    if type(value) is int:
        return value
    parts = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(parts[2].lower() or "b") if parts else None
    if parts is None or unit is None:
        raise Invalid(
            f"{what} must be a size such as 512MB, 8GiB, or a number of bytes, not {value!r:.60}", field=what
        )
    size = float(parts[1]) * unit
    if size != int(size):
        raise Invalid(f"{what} must be a whole number of bytes, not {value!r:.60}", field=what)
    return int(size)
