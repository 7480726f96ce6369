"""A broadcast: the run that was asked for becomes one for each worker that is there.

The first keeps its number; the others are born beside it, as shards of the same fire where a task fired it.
Each names its worker, and waits for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.rows import NewRun, decode, encode
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import runs, sessions
from fusee.placement.placing import Candidate
from fusee.tasks.store.tables import fires

__all__ = ["Broadcasts"]

COMES_BACK_WITHIN = 60_000_000
"""Microseconds for which a run waits for its worker to come back under the same name: a restart."""


class Broadcasts:
    def __init__(
        self, context: StoreContext, ready_queue: ReadyQueue, run_writer: RunWriter, outbox: Outbox
    ) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.run_writer = run_writer
        self.outbox = outbox

    def spread(self, connection: Connection, run: Any, workers: Sequence[Candidate], now: int) -> int:
        """Name a worker for each; answers how many runs there are now, none when nobody is there."""
        if not workers:
            return 0
        options = decode(run.options) or {}
        many = len(workers)
        texts = [
            encode({**options, "worker": w.name, "shard_index": n, "shard_total": many}, "options")
            for n, w in enumerate(workers)
        ]
        self.run_writer.set_options(connection, run.id, texts[0])
        new_runs = [
            NewRun(
                lane_id=run.lane_id,
                priority=run.priority,
                due_at=run.due_at,
                payload=run.payload,
                options=text,
                kind=run.kind,
                origin_id=run.id if run.kind is None else run.origin_id,
            )
            for text in texts[1:]
        ]
        ids = self.run_writer.insert_runs(connection, new_runs, now, run.namespace)
        fire = connection.execute(select(fires).where(fires.c.run_id == run.id)).one_or_none()
        if fire is not None and ids:
            row = dict(fire._mapping)
            shards = [{**row, "shard": n, "run_id": run_id} for n, run_id in enumerate(ids, 1)]
            connection.execute(insert(fires), shards)
        return many

    def give_up_if_left(self, connection: Connection, entry: Any, run: Any, worker: str, now: int) -> int:
        """Its worker is not there: it is skipped, unless that one may come back; 1 when it was."""
        query = select(func.max(func.coalesce(sessions.c.ended_at, sessions.c.expires_at))).where(
            sessions.c.namespace == run.namespace, sessions.c.worker == worker
        )
        left_at = connection.execute(query).scalar_one_or_none()
        if left_at is not None and left_at > now - COMES_BACK_WITHIN:
            return 0
        connection.execute(
            update(runs)
            .where(runs.c.id == run.id)
            .values(
                status=RunStatus.SKIPPED,
                rare=RunStatus.SKIPPED,
                finished_at=now,
                effect=func.coalesce(runs.c.effect, Effect.NONE),
                reason=f"broadcast: worker {worker} has left",
            )
        )
        self.ready_queue.remove(connection, [entry])
        if run.kind is not None:
            self.outbox.add_ends(connection, [(run.kind, run.id)])
        return 1
