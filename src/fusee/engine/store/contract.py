"""What passes between the engine and its store on the hot path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

from fusee.engine.model.outcome import Ended, Verdict
from fusee.engine.model.queue import QueueLimits, Strategy
from fusee.engine.model.run import Claimed, Lane

__all__ = ["Enqueued", "Exchanged", "Finished", "LaneMap", "NewRunIds", "Order", "Settlement"]


@dataclass(slots=True)
class Finished:
    """Attempts that succeeded, as columns: they go to the database as arrays."""

    ids: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    """The receipt under which each was claimed: not written, but shows when a receipt is used up."""
    for_outbox: list[int] = field(default_factory=list)
    """Those that belong to an owner: their ends are written to the outbox in the same transaction."""

    def __len__(self) -> int:
        return len(self.ids)

    def add(
        self, run_id: int, attempt: int, result: str | None, receipt: int = 0, kind: str | None = None
    ) -> None:
        self.ids.append(run_id)
        self.attempts.append(attempt)
        self.results.append(result)
        self.receipts.append(receipt)
        if kind is not None:
            self.for_outbox.append(run_id)


@dataclass(frozen=True, slots=True)
class Order:
    """What a courier asks the store for: up to `want` runs of these lanes, under a new receipt number."""

    want: int = 0
    lanes: Sequence[int] = ()
    receipt: int = 0
    used_up: Sequence[int] = ()
    """Receipts all of whose runs have ended: the store forgets them."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The answer to one exchange: what was claimed, and which outcomes the fence refused."""

    claimed: list[Claimed]
    refused: list[tuple[int, int]]
    """(run id, attempt) that this session no longer owned."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """An attempt that ended in another way than plain success, and what becomes of its run."""

    run_id: int
    attempt: int
    ended: Ended
    verdict: Verdict
    receipt: int = 0
    ticket: bool = False


class Enqueued(NamedTuple):
    """An accepted run; `created` is false when its idempotency key had been used before."""

    id: int
    created: bool = True


class NewRunIds(Sequence[Enqueued]):
    """New runs by their ids; made into `Enqueued` one at a time, when someone looks."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Enqueued: ...
    @overload
    def __getitem__(self, index: slice) -> NewRunIds: ...
    def __getitem__(self, index: int | slice) -> Enqueued | NewRunIds:
        return NewRunIds(self.ids[index]) if isinstance(index, slice) else Enqueued(self.ids[index])


@dataclass(slots=True)
class LaneMap:
    """The lanes of a namespace and the limits of its queues, as last read."""

    lanes: dict[int, Lane] = field(default_factory=dict)
    limits: dict[str, QueueLimits] = field(default_factory=dict)
    seen: dict[Lane, int] = field(default_factory=dict)
    """Lanes of any namespace that were found committed."""

    @property
    def newest(self) -> int:
        return max(self.lanes, default=0)

    def strategy_of(self, lane: Lane) -> str:
        """The lane's own, else its queue's, else shared."""
        if lane.strategy:
            return lane.strategy
        limits = self.limits.get(lane.queue)
        return (limits and limits.strategy) or Strategy.SHARED
