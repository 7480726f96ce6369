"""Changing tasks: their definition, and whether they fire.

Fires that were due before the change and that no dispatcher had decided are recorded as missed: every due
fire has its row, and fires that wait for one of them count it as ended.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.wakes import ENDED, SCHEDULE
from fusee.errors import Conflict, Unreadable
from fusee.tasks.model.policy import Decision, Ruling
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus, next_task_status
from fusee.tasks.store.admission import ENDS_QUEUE, Admission
from fusee.tasks.store.dependencies import TaskDependencies
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.state import QUEUED, TaskState
from fusee.tasks.store.tables import fires, tasks, waits
from fusee.tasks.store.tasks import TaskDefinitions, lane_of, spec_of, task_from, task_status_of

__all__ = ["Steering"]

PAST = {"pause": "paused", "disable": "disabled", "delete": "deleted"}


class Steering:
    def __init__(
        self,
        context: StoreContext,
        dependencies: TaskDependencies,
        admission: Admission,
        definitions: TaskDefinitions,
        firing: Firing,
        lanes: Lanes,
        outbox: Outbox,
    ) -> None:
        self.context = context
        self.outbox = outbox
        self.dependencies = dependencies
        self.admission = admission
        self.definitions = definitions
        self.firing = firing
        self.lanes = lanes

    async def update_task(self, ref: str | int, spec: TaskSpec, version: int | None) -> Task:
        """Replace the definition of a task; raises `Conflict` when the task is not at `version` any more.

        A task whose schedule changes fires by the new schedule from now on; other changes keep its next fire.
        """

        def work(connection: Connection) -> Task:
            row = self.definitions.task_row(connection, ref, lock=True)
            _at_version(row, version)
            before = spec_of(row)
            if spec.name != before.name:
                raise Conflict(
                    f"a task keeps its name: make a new one called {spec.name!r} and delete this one"
                )
            now = self.context.now(connection)
            kept = spec.to_dict_beside(TaskSpec.unknown_in(decode(row.definition)))
            values: dict[str, Any] = {
                "definition": encode(kept, "the task"),
                "region": spec.region,
            }
            if _timing(spec) != _timing(before):
                values |= self._record_missed(connection, row, "given another schedule", now)
                schedule = spec.schedule(now)
                scheduled = schedule is not None and row.status == TaskStatus.ENABLED
                values |= {
                    "anchor": now,
                    "next_fire_at": schedule.next(now) if schedule is not None and scheduled else None,
                }
            self.lanes.lane_id(connection, lane_of(spec, self.context.namespace))
            if set(spec.after) != set(before.after):
                self.dependencies.set_upstreams(connection, row.id, spec.name, spec.after)
            self.definitions.change_task(connection, row.id, now, values)
            return task_from(self.definitions.task_row(connection, row.id))

        task = await self.context.database.write(work)
        self.context.wakes.fire(SCHEDULE)
        return task

    async def steer_task(
        self, ref: str | int, verb: str, reason: str | None = None, version: int | None = None
    ) -> Task:
        """Pause, resume, enable, disable or delete a task. Resumed or enabled, it fires from now on.

        A paused task keeps its held fires until it is resumed; those of a disabled or deleted task are
        skipped.
        """

        def work(connection: Connection) -> Task:
            row = self.definitions.task_row(connection, ref, lock=True)
            _at_version(row, version)
            if verb == "delete" and not _is_readable(row):
                return self._delete_unreadable(connection, row)
            status = task_status_of(row)
            to = next_task_status(status, verb)
            if to is None:
                raise Conflict(f"task {row.name} is {status}: it cannot {verb}")
            if to is status:
                return task_from(row)
            now = self.context.now(connection)
            values: dict[str, Any] = {"status": to, "reason": reason, "next_fire_at": None}
            if to is TaskStatus.ENABLED:
                schedule = spec_of(row).schedule(now)
                values |= {
                    "anchor": now,
                    "next_fire_at": schedule.next(now) if schedule else None,
                    "reason": None,
                }
                self._recheck_queue(connection, row.id)
            else:
                values |= self._record_missed(connection, row, PAST[verb], now)
            if to in ENDS_QUEUE:
                self.admission.skip_all_held(connection, row.id, to, now)
            if to is TaskStatus.DELETED:
                self.dependencies.refuse_if_upstream(connection, row.id, row.name)
                self._recheck_gates_on(connection, row.id)
                values |= {"live_name": None, "deleted_at": now}
            self.definitions.change_task(connection, row.id, now, values)
            return task_from(connection.execute(select(tasks).where(tasks.c.id == row.id)).one())

        task = await self.context.database.write(work)
        self.context.wakes.fire(SCHEDULE)
        self.context.wakes.fire(ENDED)
        return task

    def _delete_unreadable(self, connection: Connection, row: Any) -> Task:
        """Delete a task whose definition cannot be read; neither can its due fires, so none is recorded."""
        now = self.context.now(connection)
        self.dependencies.refuse_if_upstream(connection, row.id, row.name)
        self._recheck_gates_on(connection, row.id)
        self.admission.skip_all_held(connection, row.id, TaskStatus.DELETED, now)
        values = {"status": TaskStatus.DELETED, "next_fire_at": None, "live_name": None, "deleted_at": now}
        empty = encode(TaskSpec(name=row.name, handler="unreadable").to_dict(), "the task")
        self.definitions.change_task(connection, row.id, now, {**values, "definition": empty})
        return task_from(connection.execute(select(tasks).where(tasks.c.id == row.id)).one())

    async def clear_queue(self, ref: str | int, reason: str) -> int:
        """Skip every queued fire of the task; returns how many. Running fires continue."""

        def work(connection: Connection) -> int:
            row = self.definitions.task_row(connection, ref, lock=True)
            now = self.context.now(connection)
            return self.admission.skip_held(
                connection, row.id, QUEUED, "cleared", f"queue cleared: {reason}", now
            )

        cleared = await self.context.database.write(work)
        if cleared:
            self.context.wakes.fire(ENDED)
        return cleared

    def _recheck_queue(self, connection: Connection, task_id: int) -> None:
        """Have the aggregator admit the queued fires of a task, if there are any."""
        mine = (fires.c.open_task == task_id, fires.c.held.in_(QUEUED))
        head = connection.execute(select(fires.c.run_id).where(*mine).limit(1)).scalar_one_or_none()
        if head is not None:
            self.outbox.add(connection, [("task", head)])

    def _record_missed(self, connection: Connection, row: Any, what: str, now: int) -> dict[str, Any]:
        """Record undecided fires as missed; returns the columns of the task's row that change with that."""
        state = TaskState.of(row)
        rule = f"the task was {what} before a dispatcher decided it"
        ruling = Ruling(decision=Decision.MISS, code="catch_up", rule=rule)
        self.firing.record_undecided(connection, state, ruling, now)
        return state.values

    def _recheck_gates_on(self, connection: Connection, task_id: int) -> None:
        """Have the gates of fires that wait for this task checked again: the task is being deleted."""
        query = select(waits.c.run_id).where(waits.c.task_id == task_id).distinct()
        self.outbox.add(connection, [("gate", run_id) for run_id in connection.execute(query).scalars()])


def _is_readable(row: Any) -> bool:
    try:
        task_from(row)
    except Unreadable:
        return False
    return True


def _timing(spec: TaskSpec) -> tuple[Any, ...]:
    return (spec.cron, spec.every, spec.at, spec.timezone)


def _at_version(row: Any, version: int | None) -> None:
    if version is not None and row.version != version:
        raise Conflict(
            f"task {row.name} is at version {row.version}, not {version}: look at it again, then change it"
        )
