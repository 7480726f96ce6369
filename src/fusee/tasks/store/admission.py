"""Letting fires out of a task's line, oldest first, as places become free; many tasks in a few statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.tables import runs
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, rule_on_head, start_at
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.state import IN_LINE, Closed, OpenFire, Standing
from fusee.tasks.store.tables import backfills, fires
from fusee.tasks.store.upstreams import Gated, Upstreams
from fusee.values.chunks import chunks

__all__ = ["Admission"]


EMPTIED_BY = (TaskStatus.DISABLED, TaskStatus.DELETED)
"""A task in one of these states has nothing that waits."""
WAITS_FOR_OTHERS = (Cause.SCHEDULE, Cause.AFTER)
"""By hand and by backfill, a fire does not wait for the tasks before it."""


class Admission:
    def __init__(self, context: StoreContext, gates: Gates, upstreams: Upstreams) -> None:
        self.context = context
        self.gates = gates
        self.upstreams = upstreams

    def admit(
        self, connection: Connection, standings: Iterable[Standing], closed: Sequence[Closed], now: int
    ) -> None:
        """Fill the places that are free: one more fire of each such task a round."""
        for standing in standings:
            if standing.queued and standing.status in EMPTIED_BY:  # an older version left its line as it was
                self.empty(connection, standing.row.id, standing.status, now)
                standing.queued = 0
        waiting = {s.row.id: s for s in standings if _has_room(s)}
        while waiting:
            waiting = self._let_out_heads(connection, waiting, now)
        for backfill_id in sorted({c.fire.backfill_id for c in closed if c.fire.backfill_id is not None}):
            self.go_on_with(connection, backfill_id, now)

    def _let_out_heads(
        self, connection: Connection, waiting: dict[int, Standing], now: int
    ) -> dict[int, Standing]:
        """The oldest fire in each of these lines; answers the tasks that have room for another."""
        free: list[int] = []
        leaving: list[int] = []
        gated: list[Gated] = []
        left_out: dict[int, str] = {}
        again: dict[int, Standing] = {}
        for task_id, shards in self._heads(connection, list(waiting)).items():
            standing, at = waiting[task_id], shards[0].fire_time
            if shards[0].held == Held.PREVIOUS and standing.active:
                continue  # it replaces what has not ended yet
            run_ids = [shard.run_id for shard in shards if shard.status == RunStatus.BLOCKED]
            if not run_ids or len(shards) > 1:  # canceled in line, all or some
                leaving += [shard.run_id for shard in shards]
            standing.queued -= 1
            ruling = rule_on_head(standing.spec.policy, standing.situation())
            if run_ids and shards[0].attempt != ruling.attempt:
                self._number(connection, run_ids, ruling.attempt)
            if run_ids and ruling.decision is Decision.SKIP:
                standing.skip_for_failure(ruling.attempt)
                left_out |= dict.fromkeys(run_ids, ruling.rule)
                leaving += run_ids
            elif run_ids:
                standing.active.append(OpenFire(at, None, None))
                start, standing.rate_at = start_at(standing.spec.policy, now, standing.rate_at)
                if standing.spec.policy.rate is not None:
                    standing.values["rate_at"] = standing.rate_at
                if standing.spec.after and shards[0].cause in WAITS_FOR_OTHERS:
                    connection.execute(update(runs).where(runs.c.id.in_(run_ids)).values(due_at=start))
                    since = self._fire_before(connection, standing, at)
                    gated.append(Gated(task_id, at, since, standing.spec.trigger_rule, run_ids))
                elif start > now:
                    self.gates.release(connection, run_ids, now, start)
                else:
                    free += run_ids
            if _has_room(standing):
                again[task_id] = standing
        self.gates.skip(connection, left_out, now, code="failure")
        self._leave_line(connection, leaving, None)
        self.gates.release(connection, free, now, now)
        self._leave_line(connection, [run_id for one in gated for run_id in one.run_ids], Held.UPSTREAM)
        self.upstreams.raise_gates(connection, gated)
        return again

    def _number(self, connection: Connection, run_ids: Sequence[int], attempt: int) -> None:
        """Attempts counted before their first one; none of them has begun."""
        mine = (runs.c.id.in_(run_ids), runs.c.status == RunStatus.BLOCKED)
        connection.execute(update(runs).where(*mine).values(attempt=attempt))

    def skip_waiting(
        self, connection: Connection, task_id: int, held: Sequence[Held], code: str, rule: str, now: int
    ) -> int:
        """Leave out the fires of a task (locked) that wait in these ways; returns how many fires.

        They are recorded as skipped by this rule, and whoever waits for them hears of it. They are not
        canceled: that would count as a failure of the task.
        """
        waiting = select(fires.c.run_id, fires.c.fire_time).where(
            fires.c.open_task == task_id, fires.c.held.in_(held)
        )
        rows = connection.execute(waiting).all()
        ids = sorted(row.run_id for row in rows)
        self.gates.forget_gates(connection, ids)
        self.gates.skip(connection, dict.fromkeys(ids, rule), now, code=code)
        self._leave_line(connection, ids, None)
        return len({row.fire_time for row in rows})

    def empty(self, connection: Connection, task_id: int, status: TaskStatus, now: int) -> None:
        """The task (locked) is disabled or deleted: nothing of it waits any more."""
        rule = f"{status}: the task was {status} before this fire started"
        self.skip_waiting(connection, task_id, tuple(Held), str(status), rule, now)

    def leave_gates(self, connection: Connection, opened: Iterable[OpenFire]) -> None:
        """What was canceled before its gate was decided stands before it no more."""
        gone = [
            run.run_id
            for fire in opened
            for run in fire.runs
            if run.held == Held.UPSTREAM and run.finished_at is not None
        ]
        if gone:
            self.gates.forget_gates(connection, gone)
            self._leave_line(connection, gone, None)

    def _leave_line(self, connection: Connection, run_ids: Sequence[int], held: Held | None) -> None:
        for chunk in chunks(run_ids):
            part = fires.c.run_id.in_(chunk)
            connection.execute(update(fires).where(part).values(held=held))

    def _fire_before(self, connection: Connection, standing: Standing, at: int) -> int:
        """The time of a task's previous fire, or since when it fires."""
        mine = and_(fires.c.task_id == standing.row.id, fires.c.fire_time < at)
        query = select(fires.c.fire_time).where(mine, fires.c.cause.in_(WAITS_FOR_OTHERS))
        found = connection.execute(query.order_by(fires.c.fire_time.desc()).limit(1)).scalar_one_or_none()
        return int(found) if found is not None else int(standing.row.anchor)

    def _heads(self, connection: Connection, task_ids: Sequence[int]) -> dict[int, list[Any]]:
        """Task → the rows (one for each shard) of the oldest fire in its line."""
        found: dict[int, list[Any]] = {}
        for part in chunks(task_ids):
            oldest = (
                select(fires.c.open_task, func.min(fires.c.fire_time).label("at"))
                .where(fires.c.open_task.in_(part), fires.c.held.in_(IN_LINE))
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

    def go_on_with(self, connection: Connection, backfill_id: int, now: int) -> None:
        """Start the next fires of a backfill, as many at once as it may have."""
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
        self._leave_line(connection, run_ids, None)
        self.gates.release(connection, run_ids, now, now)

    def runs_of(self, connection: Connection, task_id: int, at: int) -> list[int]:
        query = select(fires.c.run_id).where(fires.c.task_id == task_id, fires.c.fire_time == at)
        return [int(run_id) for run_id in connection.execute(query).scalars()]


def _has_room(standing: Standing) -> bool:
    """A paused task holds its line: nothing leaves it until the task is resumed."""
    if standing.status is not TaskStatus.ENABLED:
        return False
    cap = standing.spec.policy.max_concurrency
    return standing.queued > 0 and (cap == 0 or len(standing.active) < cap)
