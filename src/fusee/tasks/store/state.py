"""A task's current state: open fires, queued fires, last outcome.

The runs are the truth; a task's row keeps only what would be slow to find in the fire history. Code that
decides about a task locks the task's row and loads this state, so that it decides on what is true then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, or_, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.tables import runs
from fusee.tasks.model.fire import Held, fire_end
from fusee.tasks.model.policy import FailureAction, Situation, start_at
from fusee.tasks.model.task import TaskSpec, TaskStatus
from fusee.tasks.store.tables import fires, tasks
from fusee.tasks.store.tasks import spec_of, task_status_of
from fusee.values.chunks import chunks

__all__ = ["QUEUED", "ClosedFire", "OpenFire", "TaskState", "TaskStates"]

QUEUED = (Held.QUEUE, Held.PREVIOUS)
BAD = (RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.CANCELED)


@dataclass(slots=True, eq=False)
class OpenFire:
    """A fire that has not ended, with its runs, one for each shard."""

    at: int
    backfill_id: int | None
    held: str | None
    superseded: bool = False
    runs: list[Any] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return all(run.finished_at is not None for run in self.runs)

    @property
    def end(self) -> RunStatus | None:
        return fire_end([RunStatus(run.status) for run in self.runs], superseded=self.superseded)

    @property
    def finished_at(self) -> int:
        return max(int(run.finished_at) for run in self.runs)

    @property
    def culprit(self) -> Any:
        """The run because of which a failed fire failed."""
        return next(run for run in self.runs if run.status in BAD)

    @property
    def run_ids(self) -> list[int]:
        """Empty while the fire is not written yet."""
        return [run.run_id for run in self.runs]


@dataclass(slots=True, eq=False)
class TaskState:
    """The current state of one locked task."""

    row: Any
    spec: TaskSpec
    active: list[OpenFire] = field(default_factory=list)
    """Fires that may run and have not ended, without those of backfills. A fire that waits for other tasks
    counts as active."""
    queued: int = 0
    status: TaskStatus = TaskStatus.ENABLED
    failed: bool = False
    failure_skipped: bool = False
    last_attempt: int = 0
    failures: int = 0
    rate_at: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    """The columns of the task's row that change."""

    @classmethod
    def of(cls, row: Any) -> TaskState:
        return cls(
            row,
            spec_of(row),
            status=task_status_of(row),
            failed=row.last_status == RunStatus.FAILED,
            failure_skipped=bool(row.failure_skipped),
            last_attempt=row.last_attempt,
            failures=row.failures,
            rate_at=row.rate_at,
        )

    def situation(self) -> Situation:
        first = self.active[0].run_ids if self.active else []
        return Situation(
            active=len(self.active),
            queued=self.queued,
            queue_held=self.status is TaskStatus.PAUSED,
            example=first[0] if first else None,
            failed=self.failed,
            failure_skipped=self.failure_skipped,
            last_attempt=self.last_attempt,
        )

    def start_at(self, earliest: int) -> int:
        """When a fire may start under the task's rate; takes that start from the rate."""
        start, self.rate_at = start_at(self.spec.policy, earliest, self.rate_at)
        if self.spec.policy.rate is not None:
            self.values["rate_at"] = self.rate_at
        return start

    def record_end(self, fire: OpenFire) -> None:
        """Remember how a fire ended, unless it was one of a backfill or did nothing that could fail."""
        end = fire.end
        if end is None or fire.backfill_id is not None:
            return
        self.failed = end is RunStatus.FAILED
        self.failures = self.failures + 1 if self.failed else 0
        self.failure_skipped = False
        self.last_attempt = max(run.attempt for run in fire.runs)
        self.values |= {
            "last_status": end,
            "last_run_id": fire.runs[0].run_id,
            "last_attempt": self.last_attempt,
            "failures": self.failures,
            "failure_skipped": False,
        }
        pauses = self.spec.policy.failure is FailureAction.PAUSE
        if self.failed and pauses and self.status is TaskStatus.ENABLED:
            bad = fire.culprit
            self.pause(f"failure_action PAUSE: run {bad.run_id} ended {bad.status}", fire.finished_at)

    def pause(self, reason: str, at: int) -> None:
        self.status = TaskStatus.PAUSED
        self.values |= {"status": TaskStatus.PAUSED, "reason": reason[:500], "next_fire_at": None}
        self.values |= {"version": self.row.version + 1, "updated_at": at}

    def skip_for_failure(self, attempt: int) -> None:
        """One fire was skipped because the last one failed: the next one runs."""
        self.failure_skipped, self.last_attempt = True, attempt
        self.values |= {"failure_skipped": True, "last_attempt": attempt}


@dataclass(frozen=True, slots=True)
class ClosedFire:
    """A fire that was found ended."""

    state: TaskState
    fire: OpenFire
    failures: int
    """Failures in a row, including this one."""


class TaskStates:
    """Loads and saves the states of locked tasks."""

    def load(
        self, connection: Connection, rows: Sequence[Any], ended: Iterable[int] = ()
    ) -> tuple[dict[int, TaskState], list[ClosedFire]]:
        """Load the states of these locked tasks, and close the fires that have ended, in order of their end.

        `ended` are runs that may have ended while they were queued; the fires of other queued runs are not
        read.
        """
        states = {row.id: TaskState.of(row) for row in rows}
        closed: list[ClosedFire] = []
        for task_id, opened in self._open_fires(connection, list(states), list(ended)).items():
            state = states[task_id]
            for fire in sorted((f for f in opened if f.ended), key=lambda f: f.finished_at):
                state.record_end(fire)
                closed.append(ClosedFire(state, fire, state.failures))
            state.active = [
                f for f in opened if not f.ended and f.backfill_id is None and f.held not in QUEUED
            ]
        for part in chunks([run_id for one in closed for run_id in one.fire.run_ids]):
            mine = update(fires).where(fires.c.run_id.in_(part))
            connection.execute(mine.values(open_task=None, held=None))
        self._count_queued(connection, states)
        return states, closed

    def save(self, connection: Connection, states: Iterable[TaskState]) -> None:
        """Update the tasks' rows; one statement for all rows that change in the same columns."""
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for state in states:
            if values := state.values:
                row = {"b_id": state.row.id, **{f"b_{name}": value for name, value in values.items()}}
                alike.setdefault(tuple(sorted(values)), []).append(row)
        for names, rows in alike.items():
            change = update(tasks).where(tasks.c.id == bindparam("b_id"))
            connection.execute(change.values({name: bindparam(f"b_{name}") for name in names}), rows)

    def _open_fires(
        self, connection: Connection, task_ids: Sequence[int], ended: Sequence[int]
    ) -> dict[int, list[OpenFire]]:
        """Task → its active fires, and those queued ones of which a run may have ended."""
        active = or_(fires.c.held.is_(None), fires.c.held == Held.UPSTREAM)
        queries = [_OPEN.where(fires.c.open_task.in_(part), active) for part in chunks(task_ids)]
        # All shards of a queued fire of which one may have ended: the fire has ended when all have.
        for part in chunks(ended):
            queued = (
                select(fires.c.task_id, fires.c.fire_time)
                .where(fires.c.run_id.in_(part))
                .where(fires.c.held.in_([*QUEUED, Held.BACKFILL]))
                .distinct()
                .subquery()
            )
            same = and_(queued.c.task_id == fires.c.task_id, queued.c.fire_time == fires.c.fire_time)
            queries.append(_OPEN.join(queued, same))
        found: dict[tuple[int, int], OpenFire] = {}
        seen: set[int] = set()
        for query in queries:
            for row in connection.execute(query):
                key = (row.task_id, row.fire_time)
                fire = found.setdefault(key, OpenFire(row.fire_time, row.backfill_id, row.held))
                fire.superseded |= bool(row.superseded)
                if row.run_id not in seen:
                    fire.runs.append(row)
                    seen.add(row.run_id)
        by_task: dict[int, list[OpenFire]] = {task_id: [] for task_id in task_ids}
        for (task_id, _), fire in found.items():
            if task_id in by_task:
                by_task[task_id].append(fire)
        return by_task

    def _count_queued(self, connection: Connection, states: dict[int, TaskState]) -> None:
        for part in chunks(list(states)):
            query = (
                select(fires.c.open_task, func.count())
                .where(fires.c.open_task.in_(part), fires.c.held.in_(QUEUED))
                .where(fires.c.shard == 0)
                .group_by(fires.c.open_task)
            )
            for task_id, count in connection.execute(query):
                states[task_id].queued = int(count)


_OPEN = (
    select(
        fires.c.task_id,
        fires.c.fire_time,
        fires.c.run_id,
        fires.c.held,
        fires.c.backfill_id,
        fires.c.superseded,
        runs.c.status,
        runs.c.finished_at,
        runs.c.attempt,
        runs.c.error,
        runs.c.reason,
    )
    .join(runs, runs.c.id == fires.c.run_id)
    .order_by(fires.c.task_id, fires.c.fire_time, fires.c.shard)
)
