"""The definitions of tasks: creating and reading them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.run import Lane
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.set_aside import reading
from fusee.engine.store.wakes import SCHEDULE
from fusee.errors import Conflict, NotFound
from fusee.facts import facts
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus
from fusee.tasks.store.dependencies import TaskDependencies
from fusee.tasks.store.tables import tasks
from fusee.values.chunks import chunks
from fusee.values.labels import requires_text

__all__ = ["TaskDefinitions", "TaskFilter", "lane_of", "spec_of", "task_from", "task_status_of"]

log = logging.getLogger("fusee.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to list: by name, from behind `after` when that is given."""

    status: Sequence[TaskStatus] = ()
    prefix: str = ""
    after: str | None = None
    limit: int = 50


class TaskDefinitions:
    def __init__(self, context: StoreContext, lanes: Lanes, dependencies: TaskDependencies) -> None:
        self.context = context
        self.lanes = lanes
        self.dependencies = dependencies

    async def create_task(
        self,
        spec: TaskSpec,
        *,
        status: TaskStatus = TaskStatus.ENABLED,
        request: KeyedRequest | None = None,
    ) -> Task:
        """Create a task; raises `Conflict` when the name is taken."""

        def work(connection: Connection) -> Task:
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                return task_from(self.task_row(connection, int(made)))
            now = self.context.now(connection)
            schedule = spec.schedule(now)
            fires = schedule is not None and status is TaskStatus.ENABLED
            added = connection.execute(
                insert(tasks).values(
                    namespace=self.context.namespace,
                    name=spec.name,
                    live_name=spec.name,
                    status=status,
                    version=1,
                    definition=encode(spec.to_dict(), "the task"),
                    next_fire_at=schedule.next(now) if schedule is not None and fires else None,
                    anchor=now,
                    failure_skipped=False,
                    region=spec.region,
                    created_at=now,
                    updated_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            remember(connection, self.context.namespace, request, key[0], now)
            # Inserted with the task, so that the lane is committed before the first fire needs it.
            self.lanes.lane_id(connection, lane_of(spec, self.context.namespace))
            if spec.after:
                self.dependencies.set_upstreams(connection, int(key[0]), spec.name, spec.after)
            self.context.notify(connection, SCHEDULE)
            return task_from(self.task_row(connection, int(key[0])))

        try:
            task = await write_once(self.context.database, work, request)
        except IntegrityError:
            raise Conflict(
                f"there is a task {spec.name!r} already: change that one, or choose another name"
            ) from None
        self.context.wakes.fire(SCHEDULE)
        return task

    async def task(self, ref: str | int, *, deleted: bool = False) -> Task:
        """The task of this name or id; with `deleted` also a deleted one, whose fire history is kept."""
        look = self.recorded_task if deleted else self.task_row
        return task_from(await self.context.database.read(lambda connection: look(connection, ref)))

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        query = (
            select(tasks)
            .where(tasks.c.namespace == self.context.namespace, tasks.c.live_name.is_not(None))
            .order_by(tasks.c.live_name)
        )
        if wanted.status:
            query = query.where(tasks.c.status.in_(wanted.status))
        if wanted.prefix:
            query = query.where(tasks.c.live_name.startswith(wanted.prefix, autoescape=True))
        if wanted.after is not None:
            query = query.where(tasks.c.live_name > wanted.after)
        return await self.context.page(
            query, wanted.limit, lambda last: tasks.c.live_name > last.live_name, "task", task_from
        )

    async def task_specs(self, names: Iterable[str]) -> dict[str, TaskSpec]:
        """The definitions of these tasks of this namespace by name; unknown names are left out."""
        wanted = sorted(set(names))

        def work(connection: Connection) -> dict[str, TaskSpec]:
            found: dict[str, TaskSpec] = {}
            for part in chunks(wanted):
                query = select(tasks.c.id, tasks.c.live_name, tasks.c.definition).where(
                    tasks.c.namespace == self.context.namespace,
                    tasks.c.live_name.in_(part),
                )
                found |= {row.live_name: spec_of(row) for row in connection.execute(query)}
            return found

        return await self.context.database.read(work) if wanted else {}

    def change_task(self, connection: Connection, task_id: int, now: int, values: dict[str, Any]) -> None:
        change = update(tasks).where(tasks.c.id == task_id)
        connection.execute(change.values(version=tasks.c.version + 1, updated_at=now, **values))
        self.context.notify(connection, SCHEDULE)

    def task_row(self, connection: Connection, ref: str | int, *, lock: bool = False) -> Row[Any]:
        """The row of a live task of this namespace, by name or id; with `lock`, locked for a change."""
        mine = tasks.c.id == ref if isinstance(ref, int) else tasks.c.live_name == ref
        query = select(tasks).where(
            mine, tasks.c.namespace == self.context.namespace, tasks.c.live_name.is_not(None)
        )
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            shown = ref if isinstance(ref, int) else repr(ref)
            raise NotFound(f"no task {shown} in namespace {self.context.namespace!r}")
        return row

    def recorded_task(self, connection: Connection, ref: str | int) -> Row[Any]:
        """The live task, else the last deleted one of that name or id: its fire history is kept."""
        try:
            return self.task_row(connection, ref)
        except NotFound:
            mine = tasks.c.id == ref if isinstance(ref, int) else tasks.c.name == ref
            gone = tasks.c.live_name.is_(None)
            query = select(tasks).where(mine, tasks.c.namespace == self.context.namespace, gone)
            row = connection.execute(query.order_by(tasks.c.id.desc()).limit(1)).one_or_none()
            if row is None:
                raise
            return row


def lane_of(spec: TaskSpec, namespace: str) -> Lane:
    return Lane(
        namespace,
        spec.queue,
        spec.executor,
        spec.handler,
        spec.region,
        spec.strategy,
        requires_text(spec.requires),
    )


def task_status_of(row: Any) -> TaskStatus:
    return reading("task", row.id, lambda: TaskStatus(row.status))


def spec_of(row: Any) -> TaskSpec:
    """The definition in the row. It is parsed once for each version, since every fire needs it."""
    return reading("task", row.id, lambda: _spec(row.definition))


@lru_cache(maxsize=20_000)
def _spec(definition: str) -> TaskSpec:
    given = decode(definition)
    spec = TaskSpec.from_dict(given)
    if unknown := TaskSpec.unknown_in(given):
        log.warning(
            "a newer version of Fusee defined this task: what this version does not know counts as not given",
            extra=facts(task=spec.name, unknown=unknown),
        )
    return spec


def task_from(row: Any) -> Task:
    return Task(
        id=row.id,
        namespace=row.namespace,
        spec=spec_of(row),
        status=task_status_of(row),
        reason=row.reason,
        version=row.version,
        anchor=row.anchor,
        next_fire_at=row.next_fire_at,
        last_fire_at=row.last_fire_at,
        last_run_id=row.last_run_id,
        last_status=row.last_status,
        failures=row.failures,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
