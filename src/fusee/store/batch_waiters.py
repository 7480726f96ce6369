"""Runs that started a batch and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from fusee.model import Effect, End, Ended, RunStatus, Verdict
from fusee.model.batch import BatchStatus
from fusee.store.batch_schema import batches
from fusee.store.batches import Batches
from fusee.store.contract import Settlement
from fusee.store.schema import runs
from fusee.store.settle import RULED_BY, Settle

__all__ = ["BatchWaiters"]


class BatchWaiters(Batches, Settle):
    def _batch_waiters_due(self, connection: Connection, batch_ids: Sequence[int], now: int) -> list[int]:
        """End the runs that wait for these batches; answers batches whose run does not wait yet."""
        again: list[int] = []
        query = select(batches.c.id, batches.c.status, batches.c.waiter).where(batches.c.id.in_(batch_ids))
        for batch in connection.execute(query).all():
            mine = select(*RULED_BY).where(runs.c.id == batch.waiter).with_for_update()
            run = connection.execute(mine).one_or_none()
            if run is not None and run.status == RunStatus.RUNNING:
                again.append(batch.id)
            elif run is not None and run.status == RunStatus.WAITING:
                self._apply(connection, [(_end(run, batch), run)], now)
        return again


def _end(run: Any, batch: Any) -> Settlement:
    """How a run ends whose batch is done. Not retried: it would find the same batch again."""
    result = msgspec.json.encode({"batch_id": batch.id, "status": batch.status}).decode()
    if batch.status == BatchStatus.SUCCESS:
        ended = Ended(End.SUCCEEDED, result=result, effect=Effect.APPLIED)
        verdict = Verdict("succeed", RunStatus.SUCCEEDED, f"batch {batch.id} succeeded", counted=False)
    else:
        what = f"batch {batch.id} ended {batch.status}"
        ended = Ended(End.FAILED, result=result, error=what)
        verdict = Verdict("fail", RunStatus.FAILED, what)
    return Settlement(run.id, run.attempt, ended, verdict, ticket=True)
