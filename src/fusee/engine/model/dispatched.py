"""What a dispatcher hands to a message broker: a run, the attempt that may start, and its level."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HIGH", "LEVELS", "LOW", "NORMAL", "Dispatched", "level_of"]

LOW, NORMAL, HIGH = -1, 0, 1
LEVELS = (HIGH, NORMAL, LOW)
"""A message queue knows no priorities of its own, so each lane has a queue for each of these."""


def level_of(priority: int) -> int:
    """Which queue of its lane a run of that priority stands in."""
    return (priority > 0) - (priority < 0)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A run on its way to a worker; whoever is told that it may start runs this very attempt."""

    id: int
    attempt: int
    spent: int
    lane_id: int
    """What it is."""
    stands: int
    """The lane whose queue carries it: its own, or that of the worker that a strategy gave it to."""
    level: int
    payload: str | None
    options: str | None
    kind: str | None
    owner_id: int | None
