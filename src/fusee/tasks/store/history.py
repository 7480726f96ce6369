"""The fire history: what was decided about each fire, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import ColumnElement, Connection, Select, and_, select

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import runs
from fusee.tasks.model.fire import Cause, Fire, Held
from fusee.tasks.model.policy import Decision
from fusee.tasks.store.tables import fires
from fusee.tasks.store.tasks import TaskDefinitions
from fusee.values.fields import Mark

__all__ = ["FireFilter", "FireHistory", "Past"]

SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FireFilter:
    """Which fires of a task to list: newest first, older than `before` when that is given."""

    since: int | None = None
    until: int | None = None
    decision: Sequence[Decision] = ()
    before: tuple[int, int] | None = None
    """(fire time, shard) of the last fire of the previous page."""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Past:
    """How a fire went, as input for the simulation of another policy."""

    at: Annotated[int, Mark.HIDDEN]
    decision: Decision
    rule: str
    seconds: Annotated[
        float | None, "From the first start to the last end of its runs; null when it did not run."
    ]
    failed: bool
    started_at: Annotated[int | None, Mark.HIDDEN] = None


class FireHistory:
    def __init__(self, context: StoreContext, definitions: TaskDefinitions) -> None:
        self.context = context
        self.definitions = definitions

    async def fires(self, ref: str | int, wanted: FireFilter) -> list[Fire]:
        task = await self.context.database.read(
            lambda connection: self.definitions.recorded_task(connection, ref)
        )
        query = _select().where(fires.c.task_id == task.id)
        if wanted.since is not None:
            query = query.where(fires.c.fire_time >= wanted.since)
        if wanted.until is not None:
            query = query.where(fires.c.fire_time <= wanted.until)
        if wanted.decision:
            query = query.where(fires.c.decision.in_(wanted.decision))
        if wanted.before is not None:
            query = query.where(_before(*wanted.before))
        query = query.order_by(fires.c.fire_time.desc(), fires.c.shard.desc())
        return await self.context.page(
            query,
            wanted.limit,
            lambda last: _before(last.fire_time, last.shard),
            "fire",
            fire_from,
            id_of=lambda row: int(row.run_id or 0),
            key_of=lambda row: (row.task_id, row.fire_time, row.shard),
        )

    async def fires_at(self, ref: str | int, at: int) -> list[Fire]:
        """The fires of that instant, or of that second when the instant is a whole second. Where there are
        none, the row that covers the instant after a long outage."""

        def work(connection: Connection) -> list[Fire]:
            task = self.definitions.recorded_task(connection, ref)
            mine = _select().where(fires.c.task_id == task.id)
            last = at + SECOND - 1 if at % SECOND == 0 else at
            query = mine.where(fires.c.fire_time.between(at, last)).order_by(fires.c.fire_time, fires.c.shard)
            rows = connection.execute(query.limit(1000)).all()
            if not rows:
                covering = mine.where(fires.c.fire_time < at, fires.c.through >= at)
                rows = connection.execute(covering.order_by(fires.c.fire_time.desc()).limit(1)).all()
            return [fire_from(row) for row in rows]

        return await self.context.database.read(work)

    async def fire_of(self, run_id: int) -> Fire | None:
        """The fire that created this run."""
        query = _select().where(fires.c.run_id == run_id, fires.c.namespace == self.context.namespace)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else fire_from(row)

    async def past(self, ref: str | int, begin: int, end: int, limit: int = 20_000) -> list[Past]:
        """How the fires of a range of time went, oldest first."""

        def work(connection: Connection) -> list[Past]:
            task = self.definitions.recorded_task(connection, ref)
            query = (
                select(
                    fires.c.fire_time,
                    fires.c.decision,
                    fires.c.rule,
                    runs.c.status,
                    runs.c.started_at,
                    runs.c.finished_at,
                )
                .outerjoin(runs, runs.c.id == fires.c.run_id)
                .where(fires.c.task_id == task.id, fires.c.fire_time.between(begin, end))
                .order_by(fires.c.fire_time, fires.c.shard)
                .limit(limit)
            )
            by_time: dict[int, list[Any]] = {}
            for row in connection.execute(query):
                by_time.setdefault(row.fire_time, []).append(row)
            return [_past(at, rows) for at, rows in by_time.items()]

        return await self.context.database.read(work)


def _before(at: int, shard: int) -> ColumnElement[bool]:
    return and_(fires.c.fire_time <= at, ~and_(fires.c.fire_time == at, fires.c.shard >= shard))


def _select() -> Select[Any]:
    columns = (runs.c.status.label("run_status"), runs.c.started_at)
    return select(fires, *columns).outerjoin(runs, runs.c.id == fires.c.run_id)


def fire_from(row: Any) -> Fire:
    return Fire(
        task_id=row.task_id,
        fire_time=row.fire_time,
        shard=row.shard,
        cause=Cause(row.cause),
        decision=Decision(row.decision),
        code=row.code,
        rule=row.rule,
        run_id=row.run_id,
        run_status=RunStatus(row.run_status) if row.run_status else None,
        decided_at=row.decided_at,
        admitted_at=row.admitted_at,
        through=row.through,
        held=Held(row.held) if row.held else None,
        backfill_id=row.backfill_id,
        started_at=row.started_at,
    )


def _past(at: int, rows: Sequence[Any]) -> Past:
    started = [row.started_at for row in rows if row.started_at is not None]
    ended = [row.finished_at for row in rows if row.finished_at is not None]
    seconds = (max(ended) - min(started)) / 1e6 if started and len(ended) == len(rows) else None
    bad = (RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.CANCELED)
    failed = any(row.status in bad for row in rows)
    first = min(started, default=None)
    return Past(at, Decision(rows[0].decision), rows[0].rule, seconds, failed, first)
