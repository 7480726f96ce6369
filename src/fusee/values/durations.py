"""Durations as people write them: `30s`, `1h30m`, `7d`, or a number of seconds."""

from __future__ import annotations

import re
from decimal import Decimal

from fusee.errors import Invalid

__all__ = ["LONGEST", "US", "duration_text", "seconds_from"]

US = 1_000_000
"""Microseconds in a second: the unit of every time in the store."""
LONGEST = 10 * 366 * 86400.0

_UNITS = {"d": Decimal(86400), "h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
# Largest unit first, each at most once: `30m1h` is more likely a slip than a wish.
# Possessive (`*+`): five loops over spaces that may give some back to each other take N to the fifth.
_TEXT = re.compile(r"\s*+".join(rf"(?:({_NUMBER})\s*+{unit}(?![a-z]))?" for unit in _UNITS))


def seconds_from(value: object, what: str, *, least: float = 0.0, most: float = LONGEST) -> float:
    """Seconds; `what` is the name of the field."""
    seconds: float | None = None
    plain = isinstance(value, str) and re.fullmatch(_NUMBER, value.strip())
    if plain or (isinstance(value, int | float) and not isinstance(value, bool)):
        seconds = float(value)  # type: ignore[arg-type]
    elif isinstance(value, str) and value.strip() and (parts := _TEXT.fullmatch(value.strip())):
        pairs = zip(parts.groups(), _UNITS.values(), strict=True)
        seconds = float(sum(Decimal(amount) * unit for amount, unit in pairs if amount))
    if seconds is None:
        raise Invalid(
            f"{what} must be seconds, or a duration such as 30s, 5m or 1h30m, not {value!r:.60}", field=what
        )
    if not least <= seconds <= most:
        raise Invalid(
            f"{what} must be from {least:.15g} to {most:.15g} seconds, not {seconds:.15g}", field=what
        )
    return seconds


def duration_text(seconds: float) -> str:
    """`1h30m`, `15s`, `0.5s`: as a person would write it."""
    whole, text = int(seconds), ""
    if whole != seconds:
        return f"{seconds:g}s"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, whole = divmod(whole, size)
        text += f"{amount}{unit}" if amount else ""
    return text or "0s"
