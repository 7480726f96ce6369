"""Tasks: made, changed, steered, looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.errors import Conflict, NotFound
from fusee.model.task import Task, TaskSpec, TaskStatus, next_task_status
from fusee.store.rows import decode, encode
from fusee.store.task_graph import TaskGraph
from fusee.store.task_schema import tasks
from fusee.store.wakes import SCHEDULE

__all__ = ["TaskFilter", "Tasks", "spec_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to list; by name, behind `after` when given."""

    status: Sequence[TaskStatus] = ()
    prefix: str = ""
    after: str | None = None
    limit: int = 50


class Tasks(TaskGraph):
    async def create_task(self, spec: TaskSpec, *, status: TaskStatus = TaskStatus.ENABLED) -> Task:
        """`Conflict` when the name is taken."""

        def work(connection: Connection) -> Task:
            now = self._now(connection)
            schedule = spec.schedule(now)
            fires = schedule is not None and status is TaskStatus.ENABLED
            added = connection.execute(
                insert(tasks).values(
                    namespace=self.namespace,
                    name=spec.name,
                    live_name=spec.name,
                    status=status,
                    version=1,
                    definition=encode(spec.to_dict(), "the task"),
                    next_fire_at=schedule.next(now) if schedule is not None and fires else None,
                    anchor=now,
                    failure_skipped=False,
                    created_at=now,
                    updated_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            if spec.after:
                self._set_upstreams(connection, int(key[0]), spec.name, spec.after)
            self._notify(connection, SCHEDULE)
            return task_from(self._task_row(connection, int(key[0])))

        try:
            task = await self.database.write(work)
        except IntegrityError:
            raise Conflict(
                f"there is a task {spec.name!r} already: change that one, or choose another name"
            ) from None
        self.wakes.fire(SCHEDULE)
        return task

    async def task(self, ref: str | int) -> Task:
        """By its name, or by its number."""
        return task_from(await self.database.read(lambda connection: self._task_row(connection, ref)))

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        query = (
            select(tasks)
            .where(tasks.c.namespace == self.namespace, tasks.c.live_name.is_not(None))
            .order_by(tasks.c.live_name)
            .limit(wanted.limit)
        )
        if wanted.status:
            query = query.where(tasks.c.status.in_(wanted.status))
        if wanted.prefix:
            query = query.where(tasks.c.live_name.startswith(wanted.prefix, autoescape=True))
        if wanted.after is not None:
            query = query.where(tasks.c.live_name > wanted.after)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return [task_from(row) for row in rows]

    async def update_task(self, ref: str | int, spec: TaskSpec, version: int | None) -> Task:
        """Replace what a task is; `Conflict` when it is not at `version` any more.

        A task whose schedule changes fires by the new one from now on; else it goes on as it was.
        """

        def work(connection: Connection) -> Task:
            row = self._task_row(connection, ref, lock=True)
            _at_version(row, version)
            before = spec_of(row)
            if spec.name != before.name:
                raise Conflict(
                    f"a task keeps its name: make a new one called {spec.name!r} and delete this one"
                )
            now = self._now(connection)
            same = (spec.cron, spec.every, spec.at, spec.timezone) == (
                before.cron,
                before.every,
                before.at,
                before.timezone,
            )
            values: dict[str, Any] = {"definition": encode(spec.to_dict(), "the task")}
            if not same:
                schedule = spec.schedule(now)
                fires = schedule is not None and row.status == TaskStatus.ENABLED
                values |= {
                    "anchor": now,
                    "next_fire_at": schedule.next(now) if schedule is not None and fires else None,
                }
            if set(spec.after) != set(before.after):
                self._set_upstreams(connection, row.id, spec.name, spec.after)
            self._change_task(connection, row.id, now, values)
            return task_from(self._task_row(connection, row.id))

        task = await self.database.write(work)
        self.wakes.fire(SCHEDULE)
        return task

    async def steer_task(
        self, ref: str | int, verb: str, reason: str | None = None, version: int | None = None
    ) -> Task:
        """pause, resume, enable, disable or delete. Resumed or enabled, it fires from now on."""

        def work(connection: Connection) -> Task:
            row = self._task_row(connection, ref, lock=True)
            _at_version(row, version)
            status = TaskStatus(row.status)
            to = next_task_status(status, verb)
            if to is None:
                raise Conflict(f"task {row.name} is {status}: it cannot {verb}")
            if to is status:
                return task_from(row)
            now = self._now(connection)
            values: dict[str, Any] = {"status": to, "reason": reason, "next_fire_at": None}
            if to is TaskStatus.ENABLED:
                schedule = spec_of(row).schedule(now)
                values |= {
                    "anchor": now,
                    "next_fire_at": schedule.next(now) if schedule else None,
                    "reason": None,
                }
            if to is TaskStatus.DELETED:
                self._refuse_if_awaited(connection, row.id, row.name)
                values |= {"live_name": None, "deleted_at": now}
            self._change_task(connection, row.id, now, values)
            return task_from(connection.execute(select(tasks).where(tasks.c.id == row.id)).one())

        task = await self.database.write(work)
        self.wakes.fire(SCHEDULE)
        return task

    def _change_task(self, connection: Connection, task_id: int, now: int, values: dict[str, Any]) -> None:
        change = update(tasks).where(tasks.c.id == task_id)
        connection.execute(change.values(version=tasks.c.version + 1, updated_at=now, **values))
        self._notify(connection, SCHEDULE)

    def _task_row(self, connection: Connection, ref: str | int, *, lock: bool = False) -> Row[Any]:
        """The live task of this namespace by name or number, locked when it is to be changed."""
        mine = tasks.c.id == ref if isinstance(ref, int) else tasks.c.live_name == ref
        query = select(tasks).where(mine, tasks.c.namespace == self.namespace, tasks.c.live_name.is_not(None))
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            shown = ref if isinstance(ref, int) else repr(ref)
            raise NotFound(f"no task {shown} in namespace {self.namespace!r}")
        return row


def _at_version(row: Any, version: int | None) -> None:
    if version is not None and row.version != version:
        raise Conflict(
            f"task {row.name} is at version {row.version}, not {version}: look at it again, then change it"
        )


def spec_of(row: Any) -> TaskSpec:
    """What the row defines; read once for each version, since the scan asks at every fire."""
    return _spec(row.definition)


@lru_cache(maxsize=20_000)
def _spec(definition: str) -> TaskSpec:
    return TaskSpec.from_dict(decode(definition))


def task_from(row: Any) -> Task:
    return Task(
        id=row.id,
        namespace=row.namespace,
        spec=spec_of(row),
        status=TaskStatus(row.status),
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
