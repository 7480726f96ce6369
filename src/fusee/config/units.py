"""Durations and sizes: people write `1h30m` and `64KiB`, the program uses seconds and bytes."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = [
    "Count",
    "Duration",
    "Size",
    "TypeName",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_size",
]

_SECONDS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(_NUMBER)
# The largest unit comes first, and each at most once: `30m1h` is probably a mistake.
# Possessive (`*+`): five loops over spaces that backtrack into each other would take N to the fifth.
_DURATION = re.compile(r"\s*+".join(rf"(?:({_NUMBER})\s*+{unit}(?![a-z]))?" for unit in _SECONDS))
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]+)", re.IGNORECASE)

# A century: longer is a mistake, and overflows the databases' own intervals.
_LONGEST = 100 * 365 * 86400.0
# The signed 64 bits every database can hold.
_LARGEST = 2**63 - 1

_A_DURATION = "must be a duration such as 10s, 250ms, 2m, 1h30m, 7d, or a number of seconds"
_A_SIZE = "must be a size such as 64KiB, 1MB, 8MiB, or a number of bytes"


@dataclass(frozen=True)
class TypeName:
    """The word the reference uses for a type that Python alone would call float or int."""

    name: str


def parse_duration(value: object) -> float:
    """Seconds from `1h30m`, `250ms`, `"90"` or `90`."""
    match value:
        case bool():
            raise ValueError(_A_DURATION)
        case int() | float():
            seconds = float(value) if abs(value) <= _LONGEST else math.inf
        case str() if _PLAIN.fullmatch(value.strip()):
            seconds = float(value)
        case str() if value.strip() and (parts := _DURATION.fullmatch(value.strip())):
            amounts = zip(parts.groups(), _SECONDS.values(), strict=True)
            seconds = float(sum(Decimal(amount) * unit for amount, unit in amounts if amount))
        case _:
            raise ValueError(_A_DURATION)
    if not 0 <= seconds <= _LONGEST:
        raise ValueError("must be a duration between 0 and 36500d")
    return seconds


def parse_size(value: object) -> int:
    """Bytes from `64KiB`, `1MB`, `"65536"` or `65536`."""
    match value:
        case int() if not isinstance(value, bool):
            size = Decimal(value)
        case str() if _PLAIN.fullmatch(value.strip()):
            size = Decimal(value.strip())
        case str() if (parts := _SIZE.fullmatch(value.strip())) and parts[2].lower() in _BYTES:
            size = Decimal(parts[1]) * _BYTES[parts[2].lower()]
        case _:
            raise ValueError(_A_SIZE)
    if size != int(size):
        raise ValueError("must be a whole number of bytes")
    if not 0 <= size <= _LARGEST:
        raise ValueError("must be a size between 0 and 2^63-1 bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """The shortest way to write it with one unit: 604800 → `7d`."""
    exact = Decimal(repr(seconds))
    if not exact:
        return "0s"
    for unit, length in _SECONDS.items():
        if exact % length == 0:
            return f"{int(exact / length)}{unit}"
    return f"{exact:f}s"


def format_size(size: int) -> str:
    """The shortest way to write it with one binary unit: 65536 → `64KiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        length = _BYTES[unit.lower()]
        if size and size % length == 0:
            return f"{size // length}{unit}"
    return f"{size}B"


def _refuse_bool(value: Any) -> Any:
    # Python counts True as 1; a person who wrote `threads = true` did not mean one thread.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


Duration = Annotated[float, TypeName("duration"), BeforeValidator(parse_duration)]
Size = Annotated[int, TypeName("size"), BeforeValidator(parse_size)]
Count = Annotated[int, TypeName("integer"), BeforeValidator(_refuse_bool)]
