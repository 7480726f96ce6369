"""What a worker keeps about its claims: how many runs to claim ahead, which receipts are used up, and when to
look for a claim whose reply was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fusee.engine.model.run import Claimed

__all__ = ["MOST_AHEAD", "LostClaims", "Pace", "Receipts"]

MOST_AHEAD = 1000

_WINDOW = 0.05
"""Seconds of completions that one measurement covers at least."""


class Pace:
    """The measured runs a second, which size the prefetch: many ahead for short runs, none for long ones."""

    def __init__(self, seconds_ahead: float) -> None:
        self.seconds_ahead = seconds_ahead
        self._since: float | None = None
        self._completed = 0
        self._per_second = 0.0

    def measure(self, completed: int, now: float) -> None:
        """`completed` counts all runs that have ended so far."""
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
        """Claim nothing ahead until the pace is known again: some claimed runs had to be handed back."""
        self._per_second = 0.0

    @property
    def ahead(self) -> int:
        return min(MOST_AHEAD, int(self._per_second * self.seconds_ahead))


class Receipts:
    """Numbers the claims of a session, and counts how many runs of each have not ended yet.

    The store forgets a claim's receipt once all of its runs have ended.
    """

    def __init__(self) -> None:
        self._last = 0
        self._left: dict[int, int] = {}

    def next(self) -> int:
        """Return the number for a new claim; it was never used before in this session."""
        self._last += 1
        return self._last

    def open(self, claimed: list[Claimed]) -> None:
        """Runs of one claim have arrived."""
        if claimed:
            receipt = claimed[0].receipt
            self._left[receipt] = self._left.get(receipt, 0) + len(claimed)

    def ended(self, receipts: Iterable[int]) -> list[int]:
        """Count one more ended run for each receipt given; returns the receipts that are now used up."""
        used_up = []
        for receipt, count in Counter(receipts).items():
            left = self._left.get(receipt, 0) - count
            if left > 0:
                self._left[receipt] = left
            elif self._left.pop(receipt, None) is not None:
                used_up.append(receipt)
        return used_up

    def forget(self) -> None:
        """A new session begins; the dispatcher cleans up the receipts of the old one."""
        self._left.clear()


class LostClaims:
    """Says when to look again for a claim whose reply was lost: it may commit as late as the server lets it.

    No time limit of ours bounds a commit on the server: a lock may hold it, or a slow replica. So a session
    that once lost a reply looks again for as long as it lives. The pause before the next look is the time
    since the loss, at most one lease: a run that was claimed unnoticed waits about as long as one whose
    worker died.
    """

    def __init__(self, lease_ttl: float) -> None:
        self._longest = lease_ttl
        self._since: float | None = None
        self._look_at = 0.0

    def begin(self, now: float) -> None:
        """A reply was lost."""
        self._since = self._look_at = now

    def due(self, now: float) -> bool:
        """Return whether to look now; called at each renewal of the lease."""
        if self._since is None or now < self._look_at:
            return False
        self._look_at = now + min(self._longest, now - self._since)
        return True

    def end(self) -> None:
        """The session is over: recovery returns whatever it claimed, whenever that commits."""
        self._since = None
