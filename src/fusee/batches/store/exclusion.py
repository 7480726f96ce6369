"""Mutual exclusion of targets: no two batches change one target at the same moment.

A target is busy while a run of another batch for it has not ended, and while another batch that began
earlier has still to come to it. Nothing is stored for that: the runs are the locks, so a process that dies
cannot leave one behind. Transactions that start targets of one (namespace, target type) take turns, so that
two of them cannot both find the same target free.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, or_, select

from fusee.batches.model.batch import BatchPhase
from fusee.batches.store.tables import batch_tasks, batches
from fusee.engine.store.edit_lock import take_turn
from fusee.engine.store.tables import runs

__all__ = ["UNDER_WAY", "Rivals", "take_target_turn"]

UNDER_WAY = (BatchPhase.APPLYING, BatchPhase.STOPPING, BatchPhase.ROLLING_BACK)
TO_COME = ("retry", "undo", "parked")
"""Values of `todo` of targets that the batch has still to come to."""


def take_target_turn(connection: Connection, namespace: str, target_type: str) -> None:
    """Wait until no other transaction starts targets of this type."""
    digest = sha256(f"{namespace}\0{target_type}".encode()).hexdigest()
    take_turn(connection, f"batch-targets:{digest}")


class Rivals:
    """The other batches under way whose targets are of the same type; read after the turn was taken.

    A batch without `entered_at` was started by a version that did not write it: it comes before all that have
    one, and of two without it the lower number comes first. Both see that order in the same way.
    """

    def __init__(self, connection: Connection, row: Any, entered_at: int | None) -> None:
        query = select(batches.c.id, batches.c.phase, batches.c.entered_at, batches.c.waits_for).where(
            batches.c.phase.in_(UNDER_WAY),
            batches.c.namespace == row.namespace,
            batches.c.target_type == row.target_type,
            batches.c.id != row.id,
        )
        self._connection = connection
        self._batch_id: int = row.id
        self._rows: Sequence[Any] = connection.execute(query).all()
        self._ids = [rival.id for rival in self._rows]
        mine = _order(entered_at, row.id)
        self._earlier = [rival for rival in self._rows if _order(rival.entered_at, rival.id) < mine]

    def __bool__(self) -> bool:
        return bool(self._rows)

    def free(self) -> ColumnElement[bool]:
        """The condition on `batch_tasks` that no rival has the target."""
        return ~exists(self._claims(batch_tasks))

    def busy_between(self, first: int, end: int) -> dict[int, int]:
        """Position → the batch that has the target, of the targets in this range."""
        mine = batch_tasks.alias("mine")
        holder = self._claims(mine).limit(1).scalar_subquery()
        query = select(mine.c.position, holder).where(
            mine.c.batch_id == self._batch_id, mine.c.position >= first, mine.c.position < end
        )
        return {position: batch_id for position, batch_id in self._connection.execute(query) if batch_id}

    def first_conflict(self, *which: ColumnElement[bool]) -> tuple[str, int] | None:
        """(a target, the batch that has it), of those of this batch's targets that fit the conditions."""
        holder = self._claims(batch_tasks).limit(1).scalar_subquery()
        query = select(batch_tasks.c.target_id, holder).where(
            batch_tasks.c.batch_id == self._batch_id, ~self.free(), *which
        )
        found = self._connection.execute(query.limit(1)).one_or_none()
        return None if found is None else (found[0], found[1])

    def waiting(self) -> list[int]:
        """The batches that wait for a target."""
        return [rival.id for rival in self._rows if rival.waits_for is not None]

    def _claims(self, mine: Any) -> Select[Any]:
        """The rivals that have the target of a row of `mine`."""
        theirs, applies, undoes = batch_tasks.alias("theirs"), runs.alias("applies"), runs.alias("undoes")
        earlier = self._earlier
        applying = [r.id for r in earlier if r.phase == BatchPhase.APPLYING]
        to_come = or_(
            and_(theirs.c.batch_id.in_(applying), theirs.c.run_id.is_(None)) if applying else false(),
            and_(theirs.c.batch_id.in_([r.id for r in earlier]), theirs.c.todo.in_(TO_COME))
            if earlier
            else false(),
        )
        return (
            select(theirs.c.batch_id)
            .select_from(
                theirs.outerjoin(applies, applies.c.id == theirs.c.run_id).outerjoin(
                    undoes, undoes.c.id == theirs.c.rollback_run_id
                )
            )
            .where(
                theirs.c.batch_id.in_(self._ids),
                theirs.c.target_id == mine.c.target_id,
                or_(
                    and_(applies.c.id.is_not(None), applies.c.finished_at.is_(None)),
                    and_(undoes.c.id.is_not(None), undoes.c.finished_at.is_(None)),
                    to_come,
                ),
            )
            .correlate(mine)
        )


def _order(entered_at: int | None, batch_id: int) -> tuple[int, int]:
    """Which of two batches has a target first: the lower one."""
    return (entered_at or 0, batch_id)
