"""What passes between the engine and its store on the hot path."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusee.model import Claimed, Ended, Lane, QueueLimits, Verdict

__all__ = ["Enqueued", "Exchanged", "Finished", "LaneMap", "Settlement"]


@dataclass(slots=True)
class Finished:
    """Attempts that succeeded, as columns: they go to the database as arrays."""

    ids: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    any_result: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, run_id: int, attempt: int, result: str | None) -> None:
        self.ids.append(run_id)
        self.attempts.append(attempt)
        self.results.append(result)
        if result is not None:
            self.any_result = True


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


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An accepted run; `created` is false when its idempotency key had been used before."""

    id: int
    created: bool = True


@dataclass(slots=True)
class LaneMap:
    """The lanes of a namespace and the limits of its queues, as last read."""

    lanes: dict[int, Lane] = field(default_factory=dict)
    limits: dict[str, QueueLimits] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.lanes, default=0)
