"""The places of a segment: what its window runs over, and how that is told to the store.

Items of most sources have an index each, and the window runs over the indexes (`Dense`). Rows of a query have
keys with gaps between them, which may be very wide: their window runs over the rows that were found
(`fusee.bulk.execution.keyed`), and only checkpoints tell keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fusee.bulk.model.job import Segment
from fusee.bulk.model.window import Checkpoint, Window

__all__ = ["Dense", "Places", "Reached"]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a segment is, in places."""

    checkpoint: Checkpoint
    reached: int
    ended: int
    """Items that ended."""
    absent: int = 0
    """Places without an item that were passed over."""


class Places(Protocol):
    window: Window

    @property
    def end(self) -> int:
        """The window's watermark when everything is done; larger than any while that is not known."""

    @property
    def reading(self) -> bool:
        """Whether nothing can be issued before more was read."""

    @property
    def replayed(self) -> int:
        """Items that were started before this worker had the segment, and were not on record as done."""

    def so_far(self) -> Reached: ...

    def place_of(self, number: int) -> int:
        """Where an item of the window stands in the job."""

    def names_of(self, numbers: Sequence[int]) -> Sequence[int]:
        """What tells these items from others in any segment of the job, in order."""

    @property
    def known(self) -> int:
        """Items of the window below this can be read now."""

    @property
    def mark(self) -> int:
        """The watermark as a place."""

    def behind(self, number: int) -> int:
        """The place behind the item before this number of the window, as far as it is known."""

    def suspects(self, place: int) -> int | None:
        """Items below this place that are not done; None when there is one at each place."""

    def spare(self) -> tuple[int, int]:
        """(how many items were not issued, about; the place where the second half of them begins)."""

    def hold_back(self, place: int) -> None:
        """Issue nothing from this place on until `follow` says where the segment ends."""

    def follow(self, stop: int, gate: int | None = None) -> None:
        """Where the segment ends, as the store said; `gate`: issue nothing from this place on."""


class Dense:
    """Every place from the first to the last of a segment holds an item."""

    reading = False

    def __init__(self, segment: Segment, size: int, checkpoint: Checkpoint) -> None:
        self.window = Window.restore(segment.first, segment.stop, size, checkpoint)
        self.end = segment.stop
        self.replayed = segment.reached - segment.first - segment.ended - segment.absent
        self._reached = segment.reached

    def so_far(self) -> Reached:
        self._reached = max(self._reached, self.window.next)
        return Reached(self.window.checkpoint(), self._reached, self.window.done)

    def place_of(self, number: int) -> int:
        return number

    def names_of(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    @property
    def known(self) -> int:
        return self.end

    @property
    def mark(self) -> int:
        return self.window.watermark

    def behind(self, number: int) -> int:
        return number

    def suspects(self, place: int) -> int | None:
        return None

    def spare(self) -> tuple[int, int]:
        if self.window.stop != self.end:
            return 0, self.end
        rest = self.end - self.window.next
        return rest, self.window.next + (rest + 1) // 2

    def hold_back(self, place: int) -> None:
        self.window.shrink(place)

    def follow(self, stop: int, gate: int | None = None) -> None:
        self.end = stop
        self.window.stop = stop if gate is None else min(stop, gate)
