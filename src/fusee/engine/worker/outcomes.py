"""How attempts ended: collected while runs execute, written by the couriers, noted where they are refused.

A plain success is a row of `Finished`. Any other end is a `Settlement`: the end, and what the retry policy
makes of it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, RunKind, log_fields_of
from fusee.engine.store.contract import Finished, Settlement
from fusee.engine.worker.plan import Options, Plan, decode, payload_of
from fusee.engine.worker.work_source import WorkSource
from fusee.events import Bus, RunAttemptEnded, RunRefused, RunsFinished

__all__ = ["Late", "OutcomeBuffer", "Reports"]

Late = tuple[int, int, str]
"""(run id, attempt, how it ended)."""


class OutcomeBuffer:
    """Collects how runs ended until a courier takes them; `on_outcome` wakes the couriers."""

    def __init__(self, bus: Bus, on_outcome: Callable[[], None], kinds: Mapping[str, RunKind]) -> None:
        self.bus = bus
        self.on_outcome = on_outcome
        self.kinds = kinds
        self.finished = Finished()
        self.settlements: list[Settlement] = []
        self.completed = 0
        """Runs that ended since the start; their pace sizes the prefetch."""
        self.timed = bus.wants(RunsFinished)
        self._seconds: dict[str, list[float]] = {}

    def __bool__(self) -> bool:
        """Whether there is an outcome to write."""
        return bool(self.finished.ids or self.settlements)

    def add(self, claimed: Claimed, plan: Plan, ended: Ended, seconds: float) -> None:
        plain = ended.end is End.SUCCEEDED and ended.output is None and ended.effect is not Effect.NONE
        if not plain or claimed.ticket:
            self.settle(claimed, plan, ended, seconds)
            return
        self.finished.add(claimed.id, claimed.attempt, ended.result, claimed.receipt, claimed.kind)
        self.completed += 1
        if self.timed:
            self.time(plan, seconds)

    def settle(self, claimed: Claimed, plan: Plan, ended: Ended, seconds: float = 0.0) -> None:
        policy = Options.of(plan, claimed.options).policy
        verdict = decide(ended, policy, claimed.spent, random.random())
        self.settlements.append(
            Settlement(claimed.id, claimed.attempt, ended, verdict, claimed.receipt, claimed.ticket)
        )
        if ended.end is not End.RETURNED:
            # If runs that are handed back counted as done, they would keep the pace up and be claimed again.
            self.completed += 1
        self.on_outcome()
        if ended.end is End.SUCCEEDED:
            if self.timed:
                self.time(plan, seconds)
        elif ended.end is not End.ACCEPTED and self.bus.wants(RunAttemptEnded):
            self.bus.emit(
                RunAttemptEnded(
                    run_id=claimed.id,
                    attempt=claimed.attempt,
                    handler=plan.lane.handler,
                    end=ended.end,
                    status=verdict.status,
                    seconds=seconds,
                    error=ended.error,
                    belongs=self._belongs(claimed),
                )
            )

    def time(self, plan: Plan, seconds: float) -> None:
        """Keep a run's duration for the metrics."""
        times = self._seconds.get(plan.lane.handler)
        if times is None:
            times = self._seconds[plan.lane.handler] = []
        times.append(seconds)

    def collect(self) -> tuple[Finished, list[Settlement]]:
        """Hand over the outcomes so far."""
        finished, self.finished = self.finished, Finished()
        settlements, self.settlements = self.settlements, []
        self.timed = self.bus.wants(RunsFinished)
        if self._seconds:
            seconds, self._seconds = self._seconds, {}
            for handler, times in seconds.items():
                self.bus.emit(RunsFinished(handler=handler, seconds=times))
        return finished, settlements

    def put_back(self, finished: Finished, settlements: list[Settlement]) -> None:
        """Take back outcomes that could not be written yet."""
        for row in zip(finished.ids, finished.attempts, finished.results, finished.receipts, strict=True):
            self.finished.add(*row)
        self.finished.for_outbox += finished.for_outbox
        self.settlements[:0] = settlements

    def attempts(self) -> set[tuple[int, int]]:
        """Return (run, attempt) of everything that ended and is not written."""
        finished = set(zip(self.finished.ids, self.finished.attempts, strict=True))
        return finished | {(s.run_id, s.attempt) for s in self.settlements}

    def _belongs(self, claimed: Claimed) -> dict[str, Any]:
        """Return what the run belongs to; read only for attempts that an event reports."""
        if claimed.kind is None:
            return {}
        try:
            options = {} if claimed.options is None else decode(claimed.options)
            return log_fields_of(self.kinds.get(claimed.kind), claimed.owner_id, options, payload_of(claimed))
        except (ValueError, AttributeError):  # unreadable: the error of the attempt says so
            return {}


@dataclass(frozen=True, slots=True)
class Reports:
    """Writes to the store how attempts ended, and notes what the fence refused."""

    work_source: WorkSource
    bus: Bus

    async def settle(self, session: int, settlements: list[Settlement]) -> set[tuple[int, int]]:
        """Write settlements; returns the (run, attempt) pairs that the fence refused, noted as stale."""
        refused = set(await self.work_source.settle(session, settlements))
        if refused:
            late = [(s.run_id, s.attempt, s.ended.end) for s in settlements]
            await self.refused(one for one in late if one[:2] in refused)
        return refused

    async def refused(self, late: Iterable[Late]) -> None:
        """The fence refused these: this worker had lost them."""
        late = list(late)
        for run_id, attempt, end in late:
            self.bus.emit(RunRefused(run_id=run_id, attempt=attempt, end=end))
        await self.stale(late)

    async def stale(self, late: list[Late]) -> None:
        with contextlib.suppress(Exception):  # a note for the reader, never the truth
            await self.work_source.record_stale([(run, attempt, str(end)) for run, attempt, end in late])

    async def return_unknown(self, session: int, in_hand: set[tuple[int, int]]) -> None:
        """Hand back what the store assigned to this session and this worker does not hold.

        A claim whose reply was lost may have been carried out.
        """
        unknown = set(await self.work_source.owned(session)) - in_hand
        if unknown:
            returned = Ended(End.RETURNED, effect=Effect.NONE)
            verdict = decide(returned, RetryPolicy(), 0)
            # Some may have taken a place in a queue with limits.
            await self.settle(
                session, [Settlement(run, n, returned, verdict, ticket=True) for run, n in sorted(unknown)]
            )
