"""The owner of the runs of tasks: what follows when one ends, and which rows are deleted with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, select, update

from fusee.engine.model.run import Run, RunKind
from fusee.engine.owners import Owner, Reaction, Retried
from fusee.engine.store.runs import Runs
from fusee.tasks.model.policy import Decision
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.tables import backfills, fires, tasks, waits
from fusee.tasks.store.triggers import Triggers
from fusee.tasks.store.upstreams import Upstreams

__all__ = ["TASK_RUNS", "TaskOwner"]


def _log_fields(
    owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    return {"task": options.get("task"), "shard": options.get("shard_index")}


TASK_RUNS = RunKind("task", _log_fields, ends_with_handler=True)


class TaskOwner(Owner):
    """Reads three outbox topics: runs of fires that ended, runs whose gate may open, tasks that follow."""

    kind = TASK_RUNS.name
    run_kind = TASK_RUNS

    def __init__(self, firing: Firing, upstreams: Upstreams, triggers: Triggers, runs: Runs) -> None:
        self.firing = firing
        self.upstreams = upstreams
        self.triggers = triggers
        self.runs = runs

    def reactions(self) -> Mapping[str, Reaction]:
        return {self.kind: self._runs_ended, "gate": self._gates, "after": self._follow}

    def _runs_ended(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        run_ids = sorted({row.run_id for row in rows})
        query = select(fires.c.task_id).where(fires.c.run_id.in_(run_ids)).distinct()
        task_ids = sorted(connection.execute(query).scalars())
        if task_ids:
            locked = select(tasks).where(tasks.c.id.in_(task_ids)).order_by(tasks.c.id).with_for_update()
            states = self.firing.refresh(connection, connection.execute(locked).all(), now, run_ids)
            self.firing.states.save(connection, states.values())
        return ()

    def _gates(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self.upstreams.check_gates(connection, sorted({row.run_id for row in rows}), now)
        return ()

    def _follow(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self.triggers.fire_after(connection, [(row.run_id, row.fire_time) for row in rows], now)
        return ()

    def needed(self, connection: Connection, run_ids: Sequence[int]) -> Collection[int]:
        """Runs of a fire that has not ended, or that is not closed yet."""
        kept = select(fires.c.run_id).where(fires.c.run_id.in_(run_ids), fires.c.open_task.is_not(None))
        return set(connection.execute(kept).scalars())

    def runs_released(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        mine = update(fires).where(fires.c.run_id.in_(run_ids))
        connection.execute(mine.values(held=None, admitted_at=now))

    def runs_skipped(self, connection: Connection, run_ids: Sequence[int], code: str, reason: str) -> None:
        """The fire was to run: the fire history now says why it did not."""
        mine = update(fires).where(fires.c.run_id.in_(run_ids))
        connection.execute(mine.values(decision=Decision.SKIP, code=code, rule=reason))

    def gates_forgotten(self, connection: Connection, run_ids: Sequence[int]) -> None:
        connection.execute(delete(waits).where(waits.c.run_id.in_(run_ids)))

    def forget_runs(self, connection: Connection, run_ids: Sequence[int]) -> None:
        for table in (fires, waits):
            connection.execute(delete(table).where(table.c.run_id.in_(run_ids)))

    def forget_old(self, connection: Connection, cutoff: int, most: int) -> int:
        """Delete tasks that were deleted by a person before `cutoff`, and backfills that are done."""
        under_way = exists().where(fires.c.open_task == tasks.c.id)
        forgotten = connection.execute(delete(tasks).where(tasks.c.deleted_at < cutoff, ~under_way)).rowcount
        # A backfill may take long: without its row, its next fires would never start.
        to_come = exists().where(
            fires.c.open_task == backfills.c.task_id, fires.c.backfill_id == backfills.c.id
        )
        connection.execute(delete(backfills).where(backfills.c.created_at < cutoff, ~to_come))
        return forgotten

    async def retry(self, run: Run, idempotency_key: str | None) -> Retried:
        """Repeat the run as a new fire, under the policies of its task."""
        fired = await self.triggers.fire_again(run.id, idempotency_key)
        (new,) = fired.run_ids
        return Retried(new, (await self.runs.run(new)).status, fired.rule, fired.created)
