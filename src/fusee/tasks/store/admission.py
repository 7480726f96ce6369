"""Admission of queued fires: oldest first, as the cap allows, for many tasks in a few statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.tables import runs
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, rule_on_head
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.state import QUEUED, ClosedFire, OpenFire, TaskState
from fusee.tasks.store.tables import backfills, fires
from fusee.tasks.store.upstreams import Gated, Upstreams
from fusee.values.chunks import chunks

__all__ = ["Admission"]


ENDS_QUEUE = (TaskStatus.DISABLED, TaskStatus.DELETED)
"""A task with one of these statuses has no queued, blocked or held fires."""
WAITS_FOR_OTHERS = (Cause.SCHEDULE, Cause.AFTER)
"""Only these fires wait for upstream tasks; those by hand and by backfill do not."""


class Admission:
    def __init__(self, context: StoreContext, gates: Gates, upstreams: Upstreams) -> None:
        self.context = context
        self.gates = gates
        self.upstreams = upstreams

    def admit(
        self, connection: Connection, states: Iterable[TaskState], closed: Sequence[ClosedFire], now: int
    ) -> None:
        """Admit queued fires where the cap allows: in each round one more fire of every such task."""
        for state in states:
            if state.queued and state.status in ENDS_QUEUE:  # an older version kept its queue
                self.skip_all_held(connection, state.row.id, state.status, now)
                state.queued = 0
        waiting = {s.row.id: s for s in states if _has_room(s)}
        while waiting:
            waiting = self._admit_heads(connection, waiting, now)
        for backfill_id in sorted({c.fire.backfill_id for c in closed if c.fire.backfill_id is not None}):
            self.continue_backfill(connection, backfill_id, now)

    def _admit_heads(
        self, connection: Connection, waiting: dict[int, TaskState], now: int
    ) -> dict[int, TaskState]:
        """Admit the oldest queued fire of each task; returns the tasks that may admit another."""
        free: list[int] = []
        leaving: list[int] = []
        gated: list[Gated] = []
        skipped: dict[int, str] = {}
        again: dict[int, TaskState] = {}
        for task_id, shards in self._heads(connection, list(waiting)).items():
            state, at = waiting[task_id], shards[0].fire_time
            if shards[0].held == Held.PREVIOUS and state.active:
                continue  # the fire that it replaces has not ended yet
            run_ids = [shard.run_id for shard in shards if shard.status == RunStatus.BLOCKED]
            if not run_ids or len(shards) > 1:  # all or some were canceled while queued
                leaving += [shard.run_id for shard in shards]
            state.queued -= 1
            ruling = rule_on_head(state.spec.policy, state.situation())
            if run_ids and shards[0].attempt != ruling.attempt:
                self.gates.set_attempt(connection, run_ids, ruling.attempt)
            if run_ids and ruling.decision is Decision.SKIP:
                state.skip_for_failure(ruling.attempt)
                skipped |= dict.fromkeys(run_ids, ruling.rule)
                leaving += run_ids
            elif run_ids:
                state.active.append(OpenFire(at, None, None))
                start = state.start_at(now)
                if state.spec.after and shards[0].cause in WAITS_FOR_OTHERS:
                    self.gates.set_due(connection, run_ids, start)
                    since = self._fire_before(connection, state, at)
                    gated.append(Gated(task_id, at, since, state.spec.trigger_rule, run_ids))
                elif start > now:
                    self.gates.release(connection, run_ids, now, start)
                else:
                    free += run_ids
            if _has_room(state):
                again[task_id] = state
        self.gates.skip(connection, skipped, now, code="failure")
        self._set_held(connection, leaving, None)
        self.gates.release(connection, free, now, now)
        self._set_held(connection, [run_id for one in gated for run_id in one.run_ids], Held.UPSTREAM)
        self.upstreams.create_gates(connection, gated)
        return again

    def skip_held(
        self, connection: Connection, task_id: int, held: Sequence[Held], code: str, rule: str, now: int
    ) -> int:
        """Skip the fires of a locked task that are held for one of these reasons; returns how many fires.

        They are recorded as skipped by this rule, and fires that wait for them count them as ended. They are
        not canceled: that would count as a failure of the task.
        """
        waiting = select(fires.c.run_id, fires.c.fire_time).where(
            fires.c.open_task == task_id, fires.c.held.in_(held)
        )
        rows = connection.execute(waiting).all()
        ids = sorted(row.run_id for row in rows)
        self.gates.forget_gates(connection, ids)
        self.gates.skip(connection, dict.fromkeys(ids, rule), now, code=code)
        self._set_held(connection, ids, None)
        return len({row.fire_time for row in rows})

    def skip_all_held(self, connection: Connection, task_id: int, status: TaskStatus, now: int) -> None:
        """Skip every held fire of a locked task that is disabled or deleted."""
        rule = f"{status}: the task was {status} before this fire started"
        self.skip_held(connection, task_id, tuple(Held), str(status), rule, now)

    def drop_gates_of_ended(self, connection: Connection, opened: Iterable[OpenFire]) -> None:
        """Delete the gates of runs that were canceled before their gate was decided."""
        gone = [
            run.run_id
            for fire in opened
            for run in fire.runs
            if run.held == Held.UPSTREAM and run.finished_at is not None
        ]
        if gone:
            self.gates.forget_gates(connection, gone)
            self._set_held(connection, gone, None)

    def _set_held(self, connection: Connection, run_ids: Sequence[int], held: Held | None) -> None:
        for chunk in chunks(run_ids):
            part = fires.c.run_id.in_(chunk)
            connection.execute(update(fires).where(part).values(held=held))

    def _fire_before(self, connection: Connection, state: TaskState, at: int) -> int:
        """The time of the task's previous fire; where there is none, the time from which it fires."""
        mine = and_(fires.c.task_id == state.row.id, fires.c.fire_time < at)
        query = select(fires.c.fire_time).where(mine, fires.c.cause.in_(WAITS_FOR_OTHERS))
        found = connection.execute(query.order_by(fires.c.fire_time.desc()).limit(1)).scalar_one_or_none()
        return int(found) if found is not None else int(state.row.anchor)

    def _heads(self, connection: Connection, task_ids: Sequence[int]) -> dict[int, list[Any]]:
        """Task → the rows (one for each shard) of its oldest queued fire."""
        found: dict[int, list[Any]] = {}
        for part in chunks(task_ids):
            oldest = (
                select(fires.c.open_task, func.min(fires.c.fire_time).label("at"))
                .where(fires.c.open_task.in_(part), fires.c.held.in_(QUEUED))
                .group_by(fires.c.open_task)
                .subquery()
            )
            same = and_(fires.c.task_id == oldest.c.open_task, fires.c.fire_time == oldest.c.at)
            query = select(
                fires.c.task_id,
                fires.c.fire_time,
                fires.c.run_id,
                fires.c.held,
                fires.c.cause,
                runs.c.status,
                runs.c.attempt,
            )
            query = query.join(oldest, same).join(runs, runs.c.id == fires.c.run_id)
            for row in connection.execute(query.order_by(fires.c.task_id, fires.c.shard)):
                found.setdefault(row.task_id, []).append(row)
        return found

    def continue_backfill(self, connection: Connection, backfill_id: int, now: int) -> None:
        """Start the next fires of a backfill, up to its concurrency."""
        backfill = connection.execute(select(backfills).where(backfills.c.id == backfill_id)).one_or_none()
        if backfill is None:
            return
        mine = (fires.c.open_task == backfill.task_id, fires.c.backfill_id == backfill_id, fires.c.shard == 0)
        under_way = connection.execute(
            select(func.count()).select_from(fires).where(*mine, fires.c.held.is_(None))
        ).scalar_one()
        room = backfill.concurrency - int(under_way)
        if room <= 0:
            return
        query = (
            select(fires.c.fire_time)
            .where(*mine, fires.c.held == Held.BACKFILL)
            .order_by(fires.c.fire_time)
            .limit(room)
        )
        times = connection.execute(query).scalars().all()
        of_those = (fires.c.task_id == backfill.task_id, fires.c.fire_time.in_(times))
        run_ids = connection.execute(select(fires.c.run_id).where(*of_those)).scalars().all()
        self._set_held(connection, run_ids, None)
        self.gates.release(connection, run_ids, now, now)


def _has_room(state: TaskState) -> bool:
    """Whether the cap allows another fire. A paused task holds its queue until it is resumed."""
    if state.status is not TaskStatus.ENABLED:
        return False
    cap = state.spec.policy.max_concurrency
    return state.queued > 0 and (cap == 0 or len(state.active) < cap)
