"""Runs that started a batch and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select, update

from fusee.model import TERMINAL, Effect, End, Ended, RunStatus, Verdict
from fusee.model.batch import BatchPhase, BatchStatus
from fusee.store.batch_moves import Moving
from fusee.store.batch_schema import batches
from fusee.store.batches import Batches
from fusee.store.contract import Settlement
from fusee.store.schema import runs, tickets
from fusee.store.settle import RULED_BY, Settle

__all__ = ["BatchWaiters"]


class BatchWaiters(Batches, Settle):
    def _batch_waiters_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> list[int]:
        """Each of these runs started a batch, perhaps: end it with its batch, or that with it.

        Answers those whose attempt still runs: nobody knows yet whether it will wait.
        """
        query = select(batches).where(batches.c.waiter.in_(run_ids)).order_by(batches.c.id)
        started = {row.waiter: row for row in connection.execute(query.with_for_update())}
        again: list[int] = []
        known = select(*RULED_BY).where(runs.c.id.in_(started)).order_by(runs.c.id).with_for_update()
        for run in connection.execute(known).all() if started else ():
            if run.status == RunStatus.RUNNING:
                again.append(run.id)
            else:
                self._look_at_batch_of(connection, run, started[run.id], now)
        return again

    def _look_at_batch_of(self, connection: Connection, run: Any, batch: Any, now: int) -> None:
        status = RunStatus(run.status)
        over = batch.phase == BatchPhase.DONE
        if status is RunStatus.WAITING and over:
            self._apply(connection, [(_end(run, batch), run)], now)
        elif status is RunStatus.WAITING:
            waits = {"reason": f"waits for batch {batch.id}"}
            connection.execute(update(runs).where(runs.c.id == run.id).values(waits))
            # Its targets may need the place that it takes in a queue with limits.
            connection.execute(delete(tickets).where(tickets.c.run_id == run.id))
        elif status in TERMINAL and batch.phase == BatchPhase.UPLOADING:
            self._discard(connection, batch.id)
        elif status in TERMINAL and not over and batch.phase != BatchPhase.STOPPING:
            moving = Moving(batch)
            self._stop(connection, moving, f"run {run.id}, which started it, ended {status}", now)
            self._move_on(connection, moving, now)
        # else: it is tried again, asks for the same batch, and is looked at then.


def _end(run: Any, batch: Any) -> Settlement:
    """How a run ends whose batch is done. Not retried: it would find the same batch again."""
    what = f"batch {batch.id}"
    result = msgspec.json.encode({"batch_id": batch.id, "status": batch.status}).decode()
    match BatchStatus(batch.status):
        case BatchStatus.SUCCESS:
            ended = Ended(End.SUCCEEDED, result=result, effect=Effect.APPLIED)
            verdict = Verdict("succeed", RunStatus.SUCCEEDED, f"{what} succeeded", counted=False)
        case BatchStatus.CANCEL:
            ended = Ended(End.CANCELED, result=result, error=f"{what} was canceled: {batch.reason}")
            verdict = Verdict("cancel", RunStatus.CANCELED, f"{what} was canceled")
        case status:
            why = "" if batch.reason is None else f": {batch.reason}"
            ended = Ended(End.FAILED, result=result, error=f"{what} ended {status}{why}")
            verdict = Verdict("fail", RunStatus.FAILED, f"{what} ended {status}")
    return Settlement(run.id, run.attempt, ended, verdict, ticket=True)
