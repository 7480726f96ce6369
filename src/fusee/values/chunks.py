"""Dividing what is too much for one statement, message or call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["ROWS_A_STATEMENT", "chunks"]

T = TypeVar("T")

ROWS_A_STATEMENT = 500
"""Rows that one statement inserts, or keys that it names: below every database's limit of parameters."""


def chunks(items: Sequence[T], size: int = ROWS_A_STATEMENT) -> Iterator[Sequence[T]]:
    """The items in their order, at most `size` at a time; nothing when there are none."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
