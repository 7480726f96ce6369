"""A broadcast: the run that was submitted becomes one run for each worker that is alive.

The first keeps its number; the others are inserted beside it, as shards of the same fire where a task fired
it. Each names its worker, and waits for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, func, select

from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import AnyRow, NewRun, decode, encode
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import sessions
from fusee.placement.placing import Candidate

__all__ = ["Broadcasts"]

AddShards = Callable[[Connection, int, Sequence[int]], None]
"""Given a run and the runs that were inserted beside it: record these as shards of the same thing."""
COMES_BACK_WITHIN = 60_000_000
"""Microseconds for which a run waits for its worker to come back under the same name: a restart."""


class Broadcasts:
    def __init__(
        self,
        context: StoreContext,
        run_writer: RunWriter,
        cancels: Cancels,
        add_shards: Mapping[str, AddShards],
    ) -> None:
        self.context = context
        self.run_writer = run_writer
        self.cancels = cancels
        self.add_shards = add_shards
        """By kind; runs of any other kind are not spread."""

    def spreads(self, kind: str | None) -> bool:
        """Whether a broadcast makes one run per worker of a run of this kind; of an ad-hoc run it does."""
        return kind is None or kind in self.add_shards

    def spread(self, connection: Connection, run: AnyRow, workers: Sequence[Candidate], now: int) -> int:
        """Name a worker for each; returns how many runs there are now, 0 when no worker is alive."""
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
        if ids and run.kind is not None:
            self.add_shards[run.kind](connection, run.id, ids)
        return many

    def give_up_if_left(
        self, connection: Connection, entry: AnyRow, run: AnyRow, worker: str, now: int
    ) -> int:
        """Skip a run whose worker is gone, unless that worker may come back; returns 1 when it was."""
        query = select(func.max(func.coalesce(sessions.c.ended_at, sessions.c.expires_at))).where(
            sessions.c.namespace == run.namespace, sessions.c.worker == worker
        )
        left_at = connection.execute(query).scalar_one_or_none()
        if left_at is not None and left_at > now - COMES_BACK_WITHIN:
            return 0
        self.cancels.skip_pending(connection, entry, run, f"broadcast: worker {worker} has left", now)
        return 1
