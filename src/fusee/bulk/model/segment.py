"""A segment of a bulk job: its states, how far it is, and what its worker and the store say to each other.

`Caution` finds an item that kills its worker: after a loss, items start in groups that are recorded first. A
worker that is lost does not say why. The first loss narrows nothing down: the items around it start in wide
groups. When a worker is lost again, the items of its group are suspects, and start in groups so small that
there are at most `MOST_GROUPS`; a group of one that is lost once more is the item at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Annotated, Any

from fusee.bulk.model.job import Absent, BulkJob, Ended, HeldBy, Quarantined
from fusee.bulk.model.pacing import Grant
from fusee.bulk.model.window import Checkpoint
from fusee.values.fields import Mark

__all__ = [
    "SEGMENT",
    "BulkAnswer",
    "Caution",
    "Found",
    "Segment",
    "SegmentProgress",
    "SegmentState",
    "Taken",
    "after_loss",
]

MOST_GROUPS = 256
LEAST = 64
"""At least so many items beyond the recorded ones may have been started."""


class SegmentState(StrEnum):
    IDLE = "idle"
    """Items are left, and it has no run."""
    OPEN = "open"
    """It has a run: it waits for a worker, or a worker processes its items."""
    DONE = "done"
    """Every item is done or quarantined."""


SEGMENT: Mapping[tuple[SegmentState, str], SegmentState] = {
    (SegmentState.IDLE, "open"): SegmentState.OPEN,
    (SegmentState.OPEN, "release"): SegmentState.IDLE,
    (SegmentState.OPEN, "finish"): SegmentState.DONE,
}
"""A segment's life: (state, verb) → state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous part of a job's items."""

    job_id: Annotated[int, Mark.HIDDEN]
    number: int
    first: int
    stop: int
    watermark: Annotated[int, "Every item of it below this is done."]
    reached: Annotated[int, "No item at or above this had been started at the last checkpoint."]
    ended: Ended
    quarantined: int
    retried: int
    replayed: int
    share: Annotated[int, "Items or chunks that it may have in progress at once."]
    state: SegmentState
    run_id: int | None
    pace: Annotated[float, "Its part of the job's rate, in items per second."] = 0.0
    held_by: Annotated[HeldBy | None, "What keeps it from starting more items."] = None
    absent: Absent = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """How the items of a segment are started after workers were lost with it."""

    upto: int
    """Items below this start in groups."""
    reach: int
    """Items below this may be in progress; it is written before they are started."""
    width: int = 0
    """The number of items in a group; 0: as many as keep the segment busy."""
    losses: int = 1
    """The number of workers that were lost over these items."""
    suspects: int | None = None
    """Items below `reach` that were not done when this was written; None when each place has an item."""
    blamed: bool = False
    """The lowest item that is not done was alone in progress when the last worker was lost, as often as it
    may be tried."""


def after_loss(
    before: Caution | None,
    *,
    watermark: int,
    done: bytes | bytearray,
    reached: int,
    stop: int,
    speed: float,
    attempts: int,
    spread: int = 1,
) -> Caution:
    """Returns the caution after a worker was lost with a segment at this checkpoint (`done`: a byte for each
    item from the watermark on). `speed`: the items per second of its job; `attempts`: the attempts that an
    item has; `spread`: places for each item."""
    if before is None:
        since = 2 * (reached - watermark) + spread * (LEAST + ceil(3 * speed))
        return Caution(upto=min(stop, reached + since), reach=watermark)
    span = min(before.reach, stop) - watermark
    suspects = span - done[: max(0, span)].count(1)
    if before.suspects is not None:
        suspects = min(suspects, before.suspects)
    if suspects <= 0:
        return replace(before, reach=watermark, blamed=False, suspects=None)
    losses = before.losses + 1
    return Caution(
        upto=min(before.reach, stop),
        reach=watermark,
        width=ceil(suspects / MOST_GROUPS),
        losses=losses,
        blamed=suspects == 1 and losses >= attempts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProgress:
    """A checkpoint: what a worker knows of its segment. All numbers are totals of the segment."""

    checkpoint: Checkpoint
    reached: int
    ended: int
    """The number of items that ended."""
    absent: int = 0
    """The number of places without an item that were passed over."""
    quarantined: int = 0
    retried: int = 0
    replayed: int = 0
    new: Sequence[Quarantined] = ()
    """Items that were quarantined since the last checkpoint that was written."""
    begin: int = 0
    """The number of items that start together at first, of a segment without a part of the rate so far; else
    0."""
    wants: float | None = None
    """Items per second that it could start, of a job with a rate; None when it knows no limit."""
    latency: float | None = None
    """Seconds that answers take, of a worker that asks again before a short grant expires; None of one that
    does not, as workers of earlier versions."""
    held_by: HeldBy | None = None
    """What kept it from starting more items."""
    caution: Caution | None = None
    """Which items may be in progress until the next checkpoint, after workers were lost with the segment."""
    give_from: int | None = None
    """Nothing from this place on was started, and the second half of the rest begins here: it may be given
    away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAnswer:
    """What the segment may do until the next checkpoint."""

    stop: bool
    """Let what is in progress end, and end."""
    share: int
    """Items or chunks in progress at once."""
    rate: float
    grant: Grant | None
    """Its part of the rate, when the job has one."""
    now: int
    """The database's clock, in which the times of the grant are expressed."""
    end: int
    """Where the segment ends: lower than before when a part of it was given away."""
    errors_left: int | None
    window: int | None = None
    """The size of its window, when it was changed; 0: chosen by the segment itself."""
    item_timeout: float | None = None
    """Seconds that a call may take; 0: no limit, None: as the job was created."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a source contains, as the launcher found it."""

    first: int
    """Its first item."""
    stop: int
    """One past its last."""
    fingerprint: Mapping[str, Any] | None = None
    rows: int | None = None
    """The number of items between these places (of an extension: between the new ones); None when each place
    has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A segment as its worker finds it."""

    job: BulkJob
    segment: Segment
    checkpoint: Checkpoint
    answer: BulkAnswer
    caution: Caution | None = None
    """How its items are started, after workers were lost with it."""
    part: float = 0.0
    """Items per second that it is going to start, by the rate of its job; 0 when the job has no rate."""
