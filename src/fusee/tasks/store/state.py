"""How a task stands: what of it is under way, what stands in line, how its last fire ended.

The runs tell; a task's row only remembers what the record would be long to tell. Whoever decides about a task
locks its row, brings this up to date, and then decides on what is true at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import runs
from fusee.tasks.model.fire import Held, fire_end
from fusee.tasks.model.policy import FailureAction, Situation
from fusee.tasks.model.task import TaskSpec, TaskStatus
from fusee.tasks.store.tables import fires
from fusee.tasks.store.tasks import spec_of, task_status_of
from fusee.values.chunks import chunks

__all__ = ["ClosedFire", "OpenFire", "TaskState", "TaskStates"]

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
    def first_run(self) -> int | None:
        """None while it is not written yet."""
        return self.runs[0].run_id if self.runs else None

    @property
    def culprit(self) -> Any:
        """Of a fire that failed, the run that made it so."""
        return next(run for run in self.runs if run.status in BAD)

    @property
    def run_ids(self) -> list[int]:
        return [run.run_id for run in self.runs]


@dataclass(slots=True, eq=False)
class TaskState:
    """One task, locked."""

    row: Any
    spec: TaskSpec
    active: list[OpenFire] = field(default_factory=list)
    """Under way, backfills apart; what waits for other tasks holds its place here."""
    queued: int = 0
    status: TaskStatus = TaskStatus.ENABLED
    failed: bool = False
    failure_skipped: bool = False
    last_attempt: int = 0
    failures: int = 0
    rate_at: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    """What changes in the task's row."""

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
        example = self.active[0].first_run if self.active else None
        return Situation(
            active=len(self.active),
            queued=self.queued,
            queue_held=self.status is TaskStatus.PAUSED,
            example=example,
            failed=self.failed,
            failure_skipped=self.failure_skipped,
            last_attempt=self.last_attempt,
        )

    def record_end(self, fire: OpenFire) -> None:
        """A fire ended: remember how, when it counts."""
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
        if (
            self.failed
            and self.spec.policy.failure is FailureAction.PAUSE
            and self.status is TaskStatus.ENABLED
        ):
            bad = fire.culprit
            self.pause(f"failure_action PAUSE: run {bad.run_id} ended {bad.status}", fire.finished_at)

    def pause(self, reason: str, at: int) -> None:
        self.status = TaskStatus.PAUSED
        self.values |= {"status": TaskStatus.PAUSED, "reason": reason[:500], "next_fire_at": None}
        self.values |= {"version": self.row.version + 1, "updated_at": at}

    def skip_for_failure(self, attempt: int) -> None:
        """One fire was left out because the last failed: the next one runs."""
        self.failure_skipped, self.last_attempt = True, attempt
        self.values |= {"failure_skipped": True, "last_attempt": attempt}


@dataclass(frozen=True, slots=True)
class ClosedFire:
    """A fire that was found ended."""

    state: TaskState
    fire: OpenFire
    failures: int
    """Failures in a row, this one counted."""


class TaskStates:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def load(
        self, connection: Connection, rows: Sequence[Any], hinted: Iterable[int] = ()
    ) -> tuple[dict[int, TaskState], list[ClosedFire]]:
        """Read how these tasks (locked) stand; fires that have ended are closed and heard of, in order.

        `hinted` are runs that were told of: some may have ended while they stood in line.
        """
        states = {row.id: TaskState.of(row) for row in rows}
        closed: list[ClosedFire] = []
        for state, opened in self._open_fires(connection, states, hinted):
            for fire in sorted((f for f in opened if f.ended), key=lambda f: f.finished_at):
                state.record_end(fire)
                closed.append(ClosedFire(state, fire, state.failures))
            state.active = [f for f in opened if not f.ended and f.backfill_id is None and not _in_line(f)]
        if closed:
            run_ids = [run_id for one in closed for run_id in one.fire.run_ids]
            for chunk in chunks(run_ids):
                part = fires.c.run_id.in_(chunk)
                connection.execute(update(fires).where(part).values(open_task=None, held=None))
        self._count_queued(connection, states)
        return states, closed

    def _open_fires(
        self, connection: Connection, states: dict[int, TaskState], hinted: Iterable[int]
    ) -> list[tuple[TaskState, list[OpenFire]]]:
        hinted = list(hinted)
        under_way = or_(fires.c.held.is_(None), fires.c.held == Held.UPSTREAM)
        query = (
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
        ids = list(states)
        found: dict[tuple[int, int], OpenFire] = {}
        seen: set[int] = set()
        queries = [query.where(fires.c.open_task.in_(part), under_way) for part in chunks(ids)]
        # All shards of a fire in line of which one was told of: it has ended when all have.
        for part in chunks(hinted):
            told = (
                select(fires.c.task_id, fires.c.fire_time)
                .where(fires.c.run_id.in_(part))
                .where(fires.c.held.in_([*QUEUED, Held.BACKFILL]))
                .distinct()
                .subquery()
            )
            same = and_(told.c.task_id == fires.c.task_id, told.c.fire_time == fires.c.fire_time)
            queries.append(query.join(told, same))
        for one in queries:
            for row in connection.execute(one):
                key = (row.task_id, row.fire_time)
                fire = found.setdefault(key, OpenFire(row.fire_time, row.backfill_id, row.held))
                fire.superseded |= bool(row.superseded)
                if row.run_id not in seen:
                    fire.runs.append(row)
                    seen.add(row.run_id)
        by_task: dict[int, list[OpenFire]] = {task_id: [] for task_id in states}
        for (task_id, _), fire in found.items():
            if task_id in by_task:
                by_task[task_id].append(fire)
        return [(states[task_id], opened) for task_id, opened in by_task.items()]

    def _count_queued(self, connection: Connection, states: dict[int, TaskState]) -> None:
        ids = list(states)
        for part in chunks(ids):
            query = (
                select(fires.c.open_task, func.count())
                .where(fires.c.open_task.in_(part), fires.c.held.in_(QUEUED))
                .where(fires.c.shard == 0)
                .group_by(fires.c.open_task)
            )
            for task_id, count in connection.execute(query):
                states[task_id].queued = int(count)


def _in_line(fire: OpenFire) -> bool:
    return fire.held in QUEUED
