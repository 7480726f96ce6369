"""Reacting to what has ended: one transaction takes a handful of notices and does all that follows from them.

Taken with their locks and deleted with the reaction: a dispatcher that dies leaves them for the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, literal, select, union_all

from fusee.batches.store.ends import BatchEnds
from fusee.batches.store.parents import BatchParents
from fusee.batches.store.regions import not_of_others
from fusee.bulk.model.job import BulkRest
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.parents import BulkParents
from fusee.engine.store.context import StoreContext
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.tables import outbox
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.state import TaskStates
from fusee.tasks.store.tables import fires, tasks
from fusee.tasks.store.triggers import Triggers
from fusee.tasks.store.upstreams import Upstreams
from fusee.workflows.store.ends import WorkflowEnds
from fusee.workflows.store.parents import WorkflowParents

__all__ = ["Aggregated", "Aggregation"]

KINDS = ("task", "gate", "after", "workflow", "waiter", "batch", "batch_run", "bulk", "bulk_run")
"""Each in a transaction of its own, so that task rows are always locked in one order."""


@dataclass(frozen=True, slots=True)
class Aggregated:
    """How many notices of each kind were taken."""

    counts: Mapping[str, int] = field(default_factory=dict)
    rested: Sequence[BulkRest] = ()
    """Bulk jobs that came to rest."""

    def __bool__(self) -> bool:
        return any(self.counts.values())


class Aggregation:
    def __init__(
        self,
        context: StoreContext,
        tasks_firing: Firing,
        tasks_states: TaskStates,
        tasks_upstreams: Upstreams,
        tasks_triggers: Triggers,
        workflows_ends: WorkflowEnds,
        batches_ends: BatchEnds,
        bulk_moves: BulkMoves,
        workflows_parents: WorkflowParents,
        batches_parents: BatchParents,
        bulk_parents: BulkParents,
    ) -> None:
        self.context = context
        self.tasks_firing = tasks_firing
        self.tasks_states = tasks_states
        self.tasks_upstreams = tasks_upstreams
        self.tasks_triggers = tasks_triggers
        self.workflows_ends = workflows_ends
        self.batches_ends = batches_ends
        self.bulk_moves = bulk_moves
        self.workflows_parents = workflows_parents
        self.batches_parents = batches_parents
        self.bulk_parents = bulk_parents

    async def aggregate(self, limit: int = 500, region: str = "") -> Aggregated:
        """Take up to `limit` notices of each kind and react; with a region, batches of others are left to
        others."""
        counts: dict[str, int] = {}
        rested: list[BulkRest] = []
        for kind in await self.context.database.read(_kinds_waiting):
            counts[kind], rest = await self._react_to(kind, limit, region)
            rested += rest
        self.tasks_firing.wake_all(any(counts.values()))
        return Aggregated(counts, rested)

    async def _react_to(self, kind: str, limit: int, region: str) -> tuple[int, Sequence[BulkRest]]:
        """(how many notices were taken, the bulk jobs that came to rest)."""
        place = f"ended {kind}"
        try:
            taken, rested = await self.context.write_aloud(
                lambda connection: self._react(connection, kind, limit, region)
            )
            again = self.context.set_aside.due(place)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            taken, rested = 0, ()
            again = await self.context.database.read(
                lambda connection: self._notice_ids(connection, kind, limit, region)
            )
        if again:
            done = await self.context.set_aside.one_by_one(
                self.context.write_aloud,
                place,
                again,
                "notice",
                lambda connection, notice: self._react(connection, kind, 1, region, only=notice),
            )
            taken += sum(count for count, _ in done)
            rested = [*rested, *(rest for _, some in done for rest in some)]
        return taken, rested

    def _notices(self, kind: str, limit: int, region: str, columns: Sequence[Any]) -> Select[Any]:
        mine = (outbox.c.kind == kind, *not_of_others(kind, region))
        query = select(*columns).where(*mine).order_by(outbox.c.id).limit(limit)
        aside = self.context.set_aside.keys(f"ended {kind}")
        return query.where(outbox.c.id.not_in(aside)) if aside else query

    def _notice_ids(self, connection: Connection, kind: str, limit: int, region: str) -> list[int]:
        return list(connection.execute(self._notices(kind, limit, region, [outbox.c.id])).scalars())

    def _react(
        self, connection: Connection, kind: str, limit: int, region: str, *, only: int | None = None
    ) -> tuple[int, Sequence[BulkRest]]:
        """As `_react_to`, in one transaction."""
        query = self._notices(kind, limit, region, [outbox])
        if only is not None:
            query = select(outbox).where(outbox.c.id == only)
        skip_locked = self.context.database.capabilities.skip_locked
        notices = connection.execute(query.with_for_update(skip_locked=skip_locked)).all()
        if not notices:
            return 0, ()
        now = self.context.now(connection)
        run_ids = sorted({notice.run_id for notice in notices})
        again: set[int] = set()
        rested: Sequence[BulkRest] = ()
        match kind:
            case "task":
                self._task_runs_ended(connection, run_ids, now)
            case "gate":
                self.tasks_upstreams.check_gates(connection, run_ids, now)
            case "after":
                self.tasks_triggers.fire_after(
                    connection, [(notice.run_id, notice.fire_time) for notice in notices], now
                )
            case "workflow":
                self.workflows_ends.workflow_runs_ended(connection, run_ids, now)
            case "waiter":
                again.update(self.workflows_parents.waiters_due(connection, run_ids, now))
                again.update(self.batches_parents.batch_waiters_due(connection, run_ids, now))
                again.update(self.bulk_parents.bulk_waiters_due(connection, run_ids, now))
            case "batch":
                counts: Counter[int] = Counter()
                for notice in notices:
                    counts[notice.run_id] += notice.many
                self.batches_ends.batch_successes(connection, counts, now)
            case "batch_run":
                self.batches_ends.batch_runs_ended(connection, run_ids, now)
            case "bulk":  # of this kind: the jobs
                rested = self.bulk_moves.bulk_jobs_ended(connection, run_ids, now)
            case "bulk_run":
                rested = self.bulk_moves.bulk_runs_ended(connection, run_ids, now)
            case _:
                raise AssertionError(kind)
        # What is to be looked at again stays, and does not count as done: the next pass may come later.
        taken = [notice.id for notice in notices if notice.run_id not in again]
        self._take_away(connection, taken)
        return len(taken), rested

    def _take_away(self, connection: Connection, notices: Sequence[int]) -> None:
        if not notices:
            return
        if self.context.database.capabilities.returning:
            connection.execute(delete(outbox).where(outbox.c.id.in_(notices)))
        else:
            # One by one: of a table that is mostly empty MySQL reads all for an IN, waiting for the rows that
            # other aggregators hold, who wait for our tasks. (Three busy dispatchers: 10 deadlocks, not 67.)
            connection.execute(_TAKE_AWAY, [{"b_id": notice} for notice in notices])

    def _task_runs_ended(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        query = select(fires.c.task_id).where(fires.c.run_id.in_(run_ids)).distinct()
        task_ids = sorted(connection.execute(query).scalars())
        if not task_ids:
            return
        locked = select(tasks).where(tasks.c.id.in_(task_ids)).order_by(tasks.c.id).with_for_update()
        rows = connection.execute(locked).all()
        states, closed = self.tasks_states.load(connection, rows, run_ids)
        self.tasks_firing.on_fires_ended(connection, states, closed, now)
        self.tasks_firing.save(connection, states.values())


_TAKE_AWAY = delete(outbox).where(outbox.c.id == bindparam("b_id"))


def _head(kind: str) -> Select[Any]:
    head = select(literal(kind).label("kind")).where(outbox.c.kind == kind).limit(1).subquery()
    return select(head.c.kind)


_HEADS = union_all(*map(_head, KINDS))


def _kinds_waiting(connection: Connection) -> list[str]:
    """Which kinds have something to look at; a look at the head of each."""
    return list(connection.execute(_HEADS).scalars())
