"""Letting fires out of a task's line, first in, first out, as places become free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from fusee.model.fire import Held
from fusee.model.policy import start_at
from fusee.store.standing import IN_LINE, Closed, OpenFire, Standing, Standings
from fusee.store.task_schema import backfills, fires
from fusee.store.upstreams import Gated, Upstreams

__all__ = ["Admission"]


class Admission(Standings, Upstreams):
    def _admit(
        self, connection: Connection, standings: Iterable[Standing], closed: Sequence[Closed], now: int
    ) -> None:
        """Fill the places that are free."""
        for standing in standings:
            cap = standing.spec.policy.max_concurrency
            room = cap - len(standing.active) if cap else standing.queued
            if standing.queued and room > 0:
                self._let_out(connection, standing, room, now)
        for backfill_id in sorted({c.fire.backfill_id for c in closed if c.fire.backfill_id is not None}):
            self._go_on_with(connection, backfill_id, now)

    def _let_out(self, connection: Connection, standing: Standing, room: int, now: int) -> None:
        query = (
            select(fires.c.fire_time, fires.c.held)
            .where(fires.c.open_task == standing.row.id, fires.c.held.in_(IN_LINE), fires.c.shard == 0)
            .order_by(fires.c.decided_at, fires.c.fire_time)
            .limit(room)
        )
        for head in connection.execute(query).all():
            if head.held == Held.PREVIOUS and standing.active:
                break  # it replaces what has not ended yet
            run_ids = self._runs_of(connection, standing.row.id, head.fire_time)
            start, standing.rate_at = start_at(standing.spec.policy, now, standing.rate_at)
            standing.values["rate_at"] = standing.rate_at
            standing.queued -= 1
            standing.active.append(OpenFire(head.fire_time, None, None))
            if standing.spec.after:
                connection.execute(
                    update(fires)
                    .where(fires.c.task_id == standing.row.id, fires.c.fire_time == head.fire_time)
                    .values(held=Held.UPSTREAM)
                )
                since = standing.row.last_fire_at or standing.row.anchor
                rule = standing.spec.trigger_rule
                self._raise_gates(connection, [Gated(standing.row.id, head.fire_time, since, rule, run_ids)])
            else:
                self._let_go(connection, run_ids, now, start)

    def _go_on_with(self, connection: Connection, backfill_id: int, now: int) -> None:
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
        for at in connection.execute(query).scalars().all():
            self._let_go(connection, self._runs_of(connection, backfill.task_id, at), now)

    def _runs_of(self, connection: Connection, task_id: int, at: int) -> list[int]:
        query = select(fires.c.run_id).where(fires.c.task_id == task_id, fires.c.fire_time == at)
        return [int(run_id) for run_id in connection.execute(query).scalars()]

    def _line_of(self, connection: Connection, task_id: int) -> list[Any]:
        """The runs that stand in a task's line."""
        query = select(fires.c.run_id).where(fires.c.open_task == task_id, fires.c.held.in_(IN_LINE))
        return list(connection.execute(query).scalars())
