"""What follows when runs of a batch end: its counts, and the next targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from fusee.batches.store.moves import BatchMoves
from fusee.batches.store.moving import STANDS, Moving
from fusee.batches.store.tables import Stands, batch_tasks, batches
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode
from fusee.engine.store.tables import runs
from fusee.values.chunks import chunks

__all__ = ["BatchEnds"]

LONGEST_INFO = 2000


class BatchEnds:
    def __init__(self, context: StoreContext, moves: BatchMoves) -> None:
        self.context = context
        self.moves = moves

    def batch_successes(self, connection: Connection, counts: Mapping[int, int], now: int) -> None:
        """batch → how many of its runs ended in plain success; also a mere wake-up, when none did."""
        for row in self._locked(connection, list(counts)):
            batch = Moving(row)
            count = counts[batch.id]
            # Nothing is undone before everything that was applied has ended: one of the two at a time.
            if batch.running > 0:
                batch.shift("running", "success", count)
                batch.round_left -= count
            else:
                batch.shift("rollback_running", "rollback_success", count)
            self.moves.move_on(connection, batch, now, freed=count > 0)

    def batch_runs_ended(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        """Runs that ended in another way: each is looked at, and tells why on its target's row."""
        ends = self._ends(connection, run_ids)
        for row in self._locked(connection, sorted({end.owner_id for end in ends})):
            batch = Moving(row)
            mine = [end for end in ends if end.owner_id == batch.id]
            for (undo, stands), count in Counter((e.undo, _stands(e)) for e in mine).items():
                batch.shift("rollback_running" if undo else "running", stands, count)
                batch.round_left -= count if stands == "success" else 0
            infos = [
                {
                    "b_batch": batch.id,
                    "b_at": e.position,
                    "b_info": (e.error or e.reason or "")[:LONGEST_INFO],
                }
                for e in mine
                if e.status != RunStatus.SUCCEEDED
            ]
            if infos:
                connection.execute(_TELL_WHY, infos)
            self.moves.move_on(connection, batch, now)

    def _locked(self, connection: Connection, batch_ids: Sequence[int]) -> Sequence[Any]:
        """Ordered by type of target: transactions that move several batches take their turns in one order."""
        query = select(batches).where(batches.c.id.in_(batch_ids)).order_by(batches.c.id).with_for_update()
        rows = connection.execute(query).all() if batch_ids else []
        return sorted(rows, key=lambda row: (row.namespace, row.target_type, row.id))

    def _ends(self, connection: Connection, run_ids: Sequence[int]) -> list[_End]:
        found: list[_End] = []
        for part in chunks(run_ids):
            mine = (runs.c.id.in_(part), runs.c.finished_at.is_not(None))
            found += [_End(row) for row in connection.execute(select(*_TOLD).where(*mine))]
        return found


class _End:
    __slots__ = ("error", "owner_id", "position", "reason", "status", "undo")

    def __init__(self, row: Any) -> None:
        about = decode(row.payload)
        self.position: int = about["position"]
        self.undo: bool = about.get("rollback", False)
        self.owner_id: int = row.owner_id
        self.status: str = row.status
        self.error: str | None = row.error
        self.reason: str | None = row.reason


def _stands(end: _End) -> Stands:
    if end.undo:
        return "rollback_success" if end.status == RunStatus.SUCCEEDED else "rollback_fail"
    return STANDS[RunStatus(end.status)]


_TOLD = (runs.c.owner_id, runs.c.status, runs.c.error, runs.c.reason, runs.c.payload)
_TELL_WHY = (
    update(batch_tasks)
    .where(batch_tasks.c.batch_id == bindparam("b_batch"), batch_tasks.c.position == bindparam("b_at"))
    .values(info=bindparam("b_info"))
)
