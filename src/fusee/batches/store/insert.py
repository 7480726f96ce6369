"""The runs of the next targets of a batch, inserted from the targets' own rows: no payload travels to us."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, literal, select, text, update

from fusee.batches.store.tables import batch_tasks
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import NewRun
from fusee.engine.store.run_writer import RunWriter

__all__ = ["Range", "TargetRuns"]

# Numbered in the order of the targets: a claim takes the lowest first.
_NUMBER_FROM_SEQUENCE = """
UPDATE fusee_batch_tasks AS target SET run_id = numbered.run_id
FROM (
  SELECT position, {number} AS run_id FROM (
    SELECT position FROM fusee_batch_tasks
    WHERE batch_id = :batch_id AND position >= :first AND position < :end ORDER BY position
  ) AS ordered
) AS numbered
WHERE target.batch_id = :batch_id AND target.position = numbered.position
"""


class Range(NamedTuple):
    """Targets from `first` to below `end`, and what their runs have in common."""

    batch_id: int
    first: int
    end: int
    namespace: str
    alike: NewRun

    @property
    def targets(self) -> tuple[ColumnElement[bool], ...]:
        """The condition that selects them."""
        return _between(self.batch_id, self.first, self.end)


class TargetRuns:
    def __init__(self, context: StoreContext, run_writer: RunWriter) -> None:
        self.context = context
        self.run_writer = run_writer

    def insert_range(self, connection: Connection, range_: Range, now: int) -> None:
        """Insert a pending run for each of these targets, and write its number into the target's row."""
        position, payload = batch_tasks.c.position, batch_tasks.c.payload
        base = self.run_writer.reserve(connection, range_.end - range_.first)
        if base is not None:
            # With numbers in a row, which is the rule, the targets are numbered last: no join of the targets
            # with themselves. (PostgreSQL, a portion of 5,000: 8 to 10 instead of 12 µs a target.)
            self._insert_numbered(connection, range_, position + (base - range_.first), now)
            numbers = update(batch_tasks).where(*range_.targets)
            connection.execute(numbers.values(run_id=position + (base - range_.first)))
        elif (number := self.context.database.capabilities.sequence) is not None:
            some = {"batch_id": range_.batch_id, "first": range_.first, "end": range_.end}
            connection.execute(text(_NUMBER_FROM_SEQUENCE.format(number=number)), some)
            self._insert_numbered(connection, range_, batch_tasks.c.run_id, now)
        else:
            query = select(payload).where(*range_.targets).order_by(position)
            self._insert_by_rows(connection, range_, connection.execute(query).scalars().all(), now)

    def _insert_numbered(self, connection: Connection, range_: Range, number: Any, now: int) -> None:
        source = select(number.label("run_id"), batch_tasks.c.payload).where(*range_.targets)
        ordered = source.order_by(batch_tasks.c.position)
        self.run_writer.insert_selected(connection, ordered, range_.alike, now, range_.namespace)

    def _insert_by_rows(self, connection: Connection, range_: Range, payloads: Any, now: int) -> None:
        """MySQL may number the rows of an INSERT … SELECT with gaps; those of one with VALUES never."""
        new = [range_.alike._replace(payload=payload) for payload in payloads]
        ids = self.run_writer.insert_runs(connection, new, now, range_.namespace)
        step = connection.execute(text("SELECT @@auto_increment_increment")).scalar_one()
        # A statement for each stretch of numbers without a gap: one for each INSERT, or fewer.
        start = 0
        for nr in range(1, len(ids) + 1):
            if nr == len(ids) or ids[nr] != ids[nr - 1] + step:
                first, end = range_.first + start, range_.first + nr
                numbers = literal(ids[start]) + (batch_tasks.c.position - first) * step
                stretch = update(batch_tasks).where(*_between(range_.batch_id, first, end))
                connection.execute(stretch.values(run_id=numbers))
                start = nr


def _between(batch_id: int, first: int, end: int) -> tuple[ColumnElement[bool], ...]:
    position = batch_tasks.c.position
    return batch_tasks.c.batch_id == batch_id, position >= first, position < end
