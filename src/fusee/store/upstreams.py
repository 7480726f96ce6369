"""Fires that wait for other tasks: for the same logical time, or, when schedules differ, since their last.

Whoever reads or changes what waits for a task holds that task's row, shared or alone: so a fire that is made
while its upstream ends is seen by one of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, insert, or_, select

from fusee.model import RunStatus
from fusee.model.fire import fire_end
from fusee.model.task import TaskStatus, TriggerRule
from fusee.store.gates import Counted, Gates
from fusee.store.schema import runs
from fusee.store.standing import Closed
from fusee.store.task_schema import ended, fires, gates, task_edges, tasks, waits
from fusee.store.tasks import spec_of
from fusee.store.wakes import ENDED

__all__ = ["Gated", "Upstreams"]

LOOKED_BACK = 50
"""Fires of an upstream that are looked at, newest first, for one that succeeded."""


class Gated(NamedTuple):
    """A fire's runs, just made, that shall wait for the tasks before it."""

    task_id: int
    at: int
    since: int
    """Its own previous fire."""
    rule: TriggerRule
    run_ids: Sequence[int]


class Upstreams(Gates):
    def _raise_gates(self, connection: Connection, gated: Sequence[Gated]) -> None:
        """Write down what each waits for; whether that has ended already is looked at in a transaction
        of its own, which may wait for the upstream's row."""
        upstreams = self._upstreams_of(connection, [one.task_id for one in gated])
        for one in gated:
            ups = upstreams.get(one.task_id, [])
            at_that_time = self._fired_at(connection, [up.id for up in ups], one.at)
            rows = []
            for up in ups:
                schedule = spec_of(up).schedule(up.anchor)
                same_time = up.id in at_that_time or (schedule is not None and schedule.matches(one.at))
                time = one.at if same_time else -max(1, one.since)
                rows += [{"task_id": up.id, "fire_time": time, "run_id": run_id} for run_id in one.run_ids]
            self._build_gates(connection, one.rule, {run_id: len(ups) for run_id in one.run_ids})
            if rows:
                connection.execute(insert(waits), rows)
            connection.execute(insert(ended), [{"kind": "gate", "run_id": run_id} for run_id in one.run_ids])
        if gated:
            self._notify(connection, ENDED)

    def _check_gates(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        """New gates: count what had ended before they were made."""
        query = select(waits.c.task_id).where(waits.c.run_id.in_(run_ids)).distinct()
        upstreams = sorted(connection.execute(query).scalars())
        # Task before gate, each in order, as everyone locks them.
        held = select(tasks.c.id, tasks.c.name, tasks.c.status).where(tasks.c.id.in_(upstreams))
        known = {
            row.id: row
            for row in connection.execute(held.order_by(tasks.c.id).with_for_update(read=True)).all()
        }
        locked = select(gates).where(gates.c.run_id.in_(run_ids)).order_by(gates.c.run_id).with_for_update()
        rules = {row.run_id: TriggerRule(row.rule) for row in connection.execute(locked)}
        counted: dict[int, Counted] = {run_id: Counted() for run_id in rules}
        met: list[Any] = []
        for wait in connection.execute(select(waits).where(waits.c.run_id.in_(list(rules)))).all():
            upstream = known.get(wait.task_id)
            if upstream is None or upstream.status == TaskStatus.DELETED:
                success: bool | None = False
            elif wait.fire_time >= 0:
                success = self._ended_at(connection, wait.task_id, wait.fire_time)
            else:
                success = self._ended_since(connection, wait.task_id, -wait.fire_time, rules[wait.run_id])
            if success is not None:
                counted[wait.run_id].add(upstream.name if upstream is not None else "an upstream", success)
                met.append(wait)
        self._forget_waits(connection, met)
        self._count_down(connection, counted, now)

    def _tell_downstream(self, connection: Connection, closed: Sequence[Closed], now: int) -> None:
        """Fires ended: count them for who waits, and let tasks that follow them fire."""
        ended_tasks = {one.standing.row.id for one in closed}
        query = select(task_edges).where(task_edges.c.upstream_id.in_(ended_tasks))
        edges = connection.execute(query).all() if ended_tasks else []
        if not edges:
            return
        followed = {edge.upstream_id for edge in edges}
        ends = [
            (one.standing.row.id, one.standing.row.name, one.fire.at, one.fire.end is RunStatus.SUCCEEDED)
            for one in closed
            if one.standing.row.id in followed
        ]
        self._count_ends(connection, ends, now)
        downstream: dict[int, list[int]] = {}
        for edge in edges:
            downstream.setdefault(edge.upstream_id, []).append(edge.downstream_id)
        rows = [
            {"kind": "after", "run_id": task_id, "fire_time": at}
            for upstream, _, at, _ in ends
            for task_id in downstream[upstream]
        ]
        connection.execute(insert(ended), rows)
        self._notify(connection, ENDED)

    def _count_ends(
        self, connection: Connection, ends: Iterable[tuple[int, str, int, bool]], now: int
    ) -> None:
        counted: dict[int, Counted] = {}
        met: list[Any] = []
        for task_id, name, at, success in ends:
            query = (
                select(waits, gates.c.rule)
                .join(gates, gates.c.run_id == waits.c.run_id)
                .where(waits.c.task_id == task_id)
                .where(or_(waits.c.fire_time == at, and_(waits.c.fire_time < 0, waits.c.fire_time > -at)))
            )
            for wait in connection.execute(query):
                # Waiting for any success since: a failure decides nothing, another fire may succeed.
                if wait.fire_time < 0 and not success and wait.rule != TriggerRule.ALL_DONE:
                    continue
                counted.setdefault(wait.run_id, Counted()).add(name, success)
                met.append(wait)
        self._forget_waits(connection, met)
        self._count_down(connection, counted, now)

    def _upstreams_of(self, connection: Connection, task_ids: Sequence[int]) -> dict[int, list[Any]]:
        if not task_ids:
            return {}
        query = (
            select(task_edges.c.downstream_id, tasks.c.id, tasks.c.anchor, tasks.c.definition)
            .join(tasks, tasks.c.id == task_edges.c.upstream_id)
            .where(task_edges.c.downstream_id.in_(set(task_ids)))
        )
        found: dict[int, list[Any]] = {}
        for row in connection.execute(query):
            found.setdefault(row.downstream_id, []).append(row)
        return found

    def _fired_at(self, connection: Connection, task_ids: Sequence[int], at: int) -> set[int]:
        query = select(fires.c.task_id).where(fires.c.task_id.in_(task_ids), fires.c.fire_time == at)
        return set(connection.execute(query).scalars()) if task_ids else set()

    def _ended_at(self, connection: Connection, task_id: int, at: int) -> bool | None:
        """Whether that fire succeeded; None when it has not ended, or not fired."""
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
        """True when a fire after `since` succeeded; where any end will do, false when one ended otherwise."""
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

    def _forget_waits(self, connection: Connection, met: Sequence[Any]) -> None:
        if met:
            connection.execute(
                _FORGET, [{"b_task": w.task_id, "b_time": w.fire_time, "b_run": w.run_id} for w in met]
            )


_FORGET = delete(waits).where(
    waits.c.task_id == bindparam("b_task"),
    waits.c.fire_time == bindparam("b_time"),
    waits.c.run_id == bindparam("b_run"),
)
