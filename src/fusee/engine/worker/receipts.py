"""Which trips' runs have all ended, so that the store may forget their receipts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fusee.engine.model.run import Claimed

__all__ = ["Receipts"]


class Receipts:
    """Numbers trips, and counts down what each brought."""

    def __init__(self) -> None:
        self._last = 0
        self._left: dict[int, int] = {}

    def next(self) -> int:
        """A number for a new trip, never used before in this session."""
        self._last += 1
        return self._last

    def open(self, claimed: list[Claimed]) -> None:
        """Runs of one trip have arrived."""
        if claimed:
            receipt = claimed[0].receipt
            self._left[receipt] = self._left.get(receipt, 0) + len(claimed)

    def ended(self, receipts: Iterable[int]) -> list[int]:
        """One more run of each has ended and is about to be written; answers those now used up."""
        used_up = []
        for receipt, count in Counter(receipts).items():
            left = self._left.get(receipt, 0) - count
            if left > 0:
                self._left[receipt] = left
            elif self._left.pop(receipt, None) is not None:
                used_up.append(receipt)
        return used_up

    def forget(self) -> None:
        """A new session begins; the old one's receipts are the dispatcher's."""
        self._left.clear()
