"""How many runs to claim ahead: as much as is done in a few tens of milliseconds."""

from __future__ import annotations

__all__ = ["MOST_AHEAD", "Pace"]

MOST_AHEAD = 1000

_WINDOW = 0.05
"""Seconds of completions that one measurement covers at least."""


class Pace:
    """Runs a second, as measured; hundreds ahead when they are short, none when they are long."""

    def __init__(self, seconds_ahead: float) -> None:
        self.seconds_ahead = seconds_ahead
        self._since: float | None = None
        self._completed = 0
        self._per_second = 0.0

    def measure(self, completed: int, now: float) -> None:
        """`completed` counts all runs ended so far."""
        if self._since is None:
            self._since, self._completed = now, completed
            return
        elapsed = now - self._since
        burst = completed - self._completed
        if elapsed < _WINDOW and burst < 32:
            return
        rate = burst / max(elapsed, 1e-4)
        # Up at once, down by halves: a slow spell must not strand many runs here for long.
        self._per_second = rate if rate > self._per_second else (rate + self._per_second) / 2
        self._since, self._completed = now, completed

    def stall(self) -> None:
        """What was claimed ahead had to be handed back: claim nothing ahead until the pace is known again."""
        self._per_second = 0.0

    @property
    def ahead(self) -> int:
        return min(MOST_AHEAD, int(self._per_second * self.seconds_ahead))
