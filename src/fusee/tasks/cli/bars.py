"""Bars of text: which stretches of time were taken, one row for each that went on at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Bar", "bars", "lanes", "marks"]

BLOCKS = " ▁▂▃▄▅▆▇█"
"""How much of a cell's time was taken, in eighths."""


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` until `end`; both in microseconds."""

    start: int
    end: int


def lanes(given: Iterable[Bar]) -> list[list[Bar]]:
    """As few rows as hold them without two at a time in one."""
    rows: list[list[Bar]] = []
    for bar in sorted(given, key=lambda bar: (bar.start, bar.end)):
        free = next((row for row in rows if row[-1].end <= bar.start), None)
        if free is None:
            rows.append(free := [])
        free.append(bar)
    return rows


def bars(row: Sequence[Bar], begin: int, end: int, width: int) -> str:
    """One row as text: a cell is as high as the share of its time that was taken, and empty only for none."""
    cell = max(1, end - begin) / width
    taken = [0.0] * width
    for bar in row:
        low, high = (bar.start - begin) / cell, (bar.end - begin) / cell
        for at in range(max(0, int(low)), min(width - 1, int(high)) + 1):
            taken[at] += max(0.0, min(high, at + 1) - max(low, at))
    return "".join(BLOCKS[min(8, max(1, round(share * 8)))] if share > 0 else " " for share in taken)


def marks(times: Iterable[int], begin: int, end: int, width: int, mark: str) -> str:
    """A mark in each cell in which one of the times lies."""
    cell = max(1, end - begin) / width
    cells = {min(width - 1, int((at - begin) / cell)) for at in times}
    return "".join(mark if at in cells else " " for at in range(width))
