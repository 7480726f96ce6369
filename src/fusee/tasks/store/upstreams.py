"""Fires that wait for other tasks: for the same logical time or, when the schedules differ, for any fire
since their own previous one.

Code that reads or changes what waits for a task holds a lock on that task's row, shared or exclusive. So when
a fire is created while its upstream ends, one of the two transactions sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, insert, or_, select, update

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Counted, Gates
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.tables import gates, runs
from fusee.errors import Unreadable
from fusee.tasks.model.fire import Held, fire_end
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.state import ClosedFire
from fusee.tasks.store.tables import fires, task_edges, tasks, waits
from fusee.tasks.store.tasks import spec_of
from fusee.values.chunks import chunks

__all__ = ["EndedFire", "Gated", "Upstreams"]

LOOKED_BACK = 50
"""How many fires of an upstream are searched, newest first, for one that succeeded."""


class Gated(NamedTuple):
    """The new runs of a fire that wait for upstream tasks."""

    task_id: int
    at: int
    since: int
    """The time of the task's own previous fire."""
    rule: TriggerRule
    run_ids: Sequence[int]


class EndedFire(NamedTuple):
    """A fire that has ended, or one row for all fires from `at` to `through`."""

    task_id: int
    name: str
    at: int
    success: bool
    through: int | None = None


class Upstreams:
    def __init__(self, context: StoreContext, gates: Gates, outbox: Outbox) -> None:
        self.context = context
        self.outbox = outbox
        self.gates = gates

    def create_gates(self, connection: Connection, gated: Sequence[Gated]) -> None:
        """Write what each fire waits for. Whether that has ended already is checked in a later transaction,
        which may wait for the upstream's row."""
        upstreams = self._upstreams_of(connection, [one.task_id for one in gated])
        for one in gated:
            ups = upstreams.get(one.task_id, [])
            at_that_time = self.fired_at(connection, [up.id for up in ups], one.at)
            rows = []
            for up in ups:
                time = one.at if up.id in at_that_time or _fires_at(up, one.at) else -max(1, one.since)
                rows += [{"task_id": up.id, "fire_time": time, "run_id": run_id} for run_id in one.run_ids]
            self.gates.build_gates(connection, one.rule, {run_id: len(ups) for run_id in one.run_ids})
            if rows:
                connection.execute(insert(waits), rows)
        self.outbox.add(connection, [("gate", run_id) for one in gated for run_id in one.run_ids])

    def check_gates(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        """Count the upstream fires that had ended before these gates were created."""
        query = select(waits.c.task_id).where(waits.c.run_id.in_(run_ids)).distinct()
        upstreams = sorted(connection.execute(query).scalars())
        # Everyone locks tasks before gates, and each in order of id.
        held = select(tasks.c.id, tasks.c.name, tasks.c.status, tasks.c.next_fire_at)
        held = held.where(tasks.c.id.in_(upstreams)).order_by(tasks.c.id).with_for_update(read=True)
        known = {row.id: row for row in connection.execute(held)}
        locked = select(gates).where(gates.c.run_id.in_(run_ids)).order_by(gates.c.run_id).with_for_update()
        rules = {row.run_id: TriggerRule.as_stored(row.rule) for row in connection.execute(locked)}
        counted: dict[int, Counted] = {run_id: Counted() for run_id in rules}
        met: list[Any] = []
        for wait in connection.execute(_WAITS.where(waits.c.run_id.in_(list(rules)))).all():
            upstream = known.get(wait.task_id)
            if upstream is None or upstream.status == TaskStatus.DELETED:
                success: bool | None = False
            else:
                success = self._has_ended(connection, upstream, wait, rules[wait.run_id])
            if success is not None:
                counted[wait.run_id].add(upstream.name if upstream is not None else "an upstream", success)
                met.append(wait)
        self._delete_waits(connection, met)
        self.gates.count_down(connection, counted, now, may_start=self._hold_paused)

    def notify_downstream(self, connection: Connection, closed: Sequence[ClosedFire], now: int) -> None:
        """Count ended fires for the fires that wait for them, and have the tasks that follow them fire."""
        if not closed:
            return
        ends = [
            EndedFire(one.state.row.id, one.state.row.name, one.fire.at, one.fire.end is RunStatus.SUCCEEDED)
            for one in closed
        ]
        self.count_ended(connection, ends, now)
        followed = task_edges.c.upstream_id.in_({one.task_id for one in ends})
        downstream: dict[int, list[int]] = {}
        for edge in connection.execute(select(task_edges).where(followed)):
            downstream.setdefault(edge.upstream_id, []).append(edge.downstream_id)
        follow = [(task_id, one.at) for one in ends for task_id in downstream.get(one.task_id, ())]
        self.outbox.add_fires(connection, "after", follow)

    def count_ended(self, connection: Connection, ends: Sequence[EndedFire], now: int) -> None:
        """Count fires that ended, or that never will run, for the fires that wait for them.

        The tasks of the ended fires are locked.
        """
        some = waits.c.task_id.in_({one.task_id for one in ends})
        # Also fires whose task no longer follows this one: they keep waiting for what they were created with.
        waited = set(connection.execute(select(waits.c.task_id).where(some).distinct()).scalars())
        counted: dict[int, Counted] = {}
        met: dict[tuple[int, int, int], Any] = {}
        for one in ends:
            if one.task_id not in waited:
                continue
            last = one.at if one.through is None else one.through
            then = waits.c.fire_time.between(one.at, last)
            since = and_(waits.c.fire_time < 0, waits.c.fire_time > -last)
            query = _WAITS.where(waits.c.task_id == one.task_id, or_(then, since))
            for wait in connection.execute(query):
                key = (wait.task_id, wait.fire_time, wait.run_id)
                # A fire that waits for any success since a time ignores the failure of another time: another
                # fire may succeed. Of two fires that end together, one counts.
                other = wait.fire_time < 0 and not one.at <= wait.own_time <= last
                if key in met or (other and not one.success and wait.rule != TriggerRule.ALL_DONE):
                    continue
                counted.setdefault(wait.run_id, Counted()).add(one.name, one.success)
                met[key] = wait
        self._delete_waits(connection, list(met.values()))
        self.gates.count_down(connection, counted, now, may_start=self._hold_paused)

    def _hold_paused(self, connection: Connection, run_ids: Sequence[int]) -> Sequence[int]:
        """Returns the runs that may start; those of paused tasks are queued, and their queue is held.

        Once the task is resumed, they are admitted and check their upstreams again. The task's row is not
        locked here: a resume that commits before this does not see them in the queue. So the queue is checked
        once more after the commit.
        """
        held: set[int] = set()
        one_of: dict[int, int] = {}  # task → one of its held runs
        for chunk in chunks(run_ids):
            query = (
                select(fires.c.run_id, fires.c.task_id)
                .join(tasks, tasks.c.id == fires.c.task_id)
                .where(fires.c.run_id.in_(chunk))
                .where(tasks.c.status == TaskStatus.PAUSED)
            )
            part = {row.run_id: row.task_id for row in connection.execute(query)}
            if part:
                connection.execute(update(fires).where(fires.c.run_id.in_(part)).values(held=Held.QUEUE))
            held.update(part)
            one_of |= {task_id: run_id for run_id, task_id in part.items()}
        self.outbox.add(connection, [("task", run_id) for run_id in one_of.values()])
        return [run_id for run_id in run_ids if run_id not in held]

    def _upstreams_of(self, connection: Connection, task_ids: Sequence[int]) -> dict[int, list[Any]]:
        if not task_ids:
            return {}
        query = (
            select(task_edges.c.downstream_id, tasks.c.id, tasks.c.status, tasks.c.anchor, tasks.c.definition)
            .join(tasks, tasks.c.id == task_edges.c.upstream_id)
            .where(task_edges.c.downstream_id.in_(set(task_ids)))
        )
        found: dict[int, list[Any]] = {}
        for row in connection.execute(query):
            found.setdefault(row.downstream_id, []).append(row)
        return found

    def fired_at(self, connection: Connection, task_ids: Sequence[int], at: int) -> set[int]:
        query = select(fires.c.task_id).where(fires.c.task_id.in_(task_ids), fires.c.fire_time == at)
        return set(connection.execute(query).scalars()) if task_ids else set()

    def _has_ended(self, connection: Connection, upstream: Any, wait: Any, rule: TriggerRule) -> bool | None:
        """Whether the upstream fire succeeded; None when that is not known yet."""
        if wait.fire_time < 0:
            same_time = self._ended_at(connection, wait.task_id, wait.own_time)
            if same_time is not None:
                return same_time
            return self._ended_since(connection, wait.task_id, -wait.fire_time, rule)
        if self.fired_at(connection, [wait.task_id], wait.fire_time):
            return self._ended_at(connection, wait.task_id, wait.fire_time)
        # The upstream has yet to fire for that time, or has passed it: one row covers many fires, or its row
        # was deleted by retention.
        to_come = upstream.next_fire_at is not None and upstream.next_fire_at <= wait.fire_time
        return None if to_come else False

    def _ended_at(self, connection: Connection, task_id: int, at: int) -> bool | None:
        """Whether the fire of that time succeeded; None when it has not ended or does not exist."""
        query = (
            select(fires.c.open_task, fires.c.superseded, runs.c.status)
            .join(runs, runs.c.id == fires.c.run_id)
            .where(fires.c.task_id == task_id, fires.c.fire_time == at)
        )
        rows = connection.execute(query).all()
        if not rows or any(row.open_task is not None for row in rows):
            return None
        statuses = [RunStatus(row.status) for row in rows]
        return fire_end(statuses, superseded=any(row.superseded for row in rows)) is RunStatus.SUCCEEDED

    def _ended_since(
        self, connection: Connection, task_id: int, since: int, rule: TriggerRule
    ) -> bool | None:
        """True when a fire after `since` succeeded; False when any end is enough and one ended otherwise."""
        query = (
            select(fires.c.fire_time)
            .where(fires.c.task_id == task_id, fires.c.fire_time > since, fires.c.shard == 0)
            .order_by(fires.c.fire_time.desc())
            .limit(LOOKED_BACK)
        )
        ends = [self._ended_at(connection, task_id, at) for at in connection.execute(query).scalars()]
        if True in ends:
            return True
        return False if rule is TriggerRule.ALL_DONE and False in ends else None

    def _delete_waits(self, connection: Connection, met: Sequence[Any]) -> None:
        if met:
            connection.execute(
                _DELETE_WAIT, [{"b_task": w.task_id, "b_time": w.fire_time, "b_run": w.run_id} for w in met]
            )


_WAITS = (
    select(waits, gates.c.rule, fires.c.fire_time.label("own_time"))
    .join(gates, gates.c.run_id == waits.c.run_id)
    .join(fires, fires.c.run_id == waits.c.run_id)
)
_DELETE_WAIT = delete(waits).where(
    waits.c.task_id == bindparam("b_task"),
    waits.c.fire_time == bindparam("b_time"),
    waits.c.run_id == bindparam("b_run"),
)


def _fires_at(upstream: Any, at: int) -> bool:
    """Whether its schedule fires at that time; False before the task was created or resumed."""
    if upstream.status != TaskStatus.ENABLED or at <= upstream.anchor:
        return False
    try:
        schedule = spec_of(upstream).schedule(upstream.anchor)
    except Unreadable:
        return False  # the unreadable task is set aside; the fires that wait for it must not be
    return schedule is not None and schedule.matches(at)
