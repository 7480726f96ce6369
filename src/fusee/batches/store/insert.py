"""The runs of the next targets of a batch, made where the targets are: nothing of them travels to us."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, String, TextClause, bindparam, select, text

from fusee.batches.store.tables import batch_tasks
from fusee.engine.store.context import StoreContext
from fusee.engine.store.run_writer import Birth, RunWriter
from fusee.engine.store.wakes import PENDING

__all__ = ["Range", "TargetRuns"]

_RANGE = "batch_id = :batch_id AND position >= :first AND position < :end"
_RUN = "namespace, lane_id, status, priority, attempt, created_at, due_at, payload, options, kind, owner_id"
_VALUES = ":namespace, :lane_id, 'pending', :priority, 0, :now, :now, payload, :options, 'batch', :batch_id"
_TYPES = {
    "count": Integer,
    "batch_id": BigInteger,
    "first": BigInteger,
    "end": BigInteger,
    "now": BigInteger,
    "base": BigInteger,
    "step": BigInteger,
    "lane_id": Integer,
    "priority": Integer,
    "rank": Integer,
    "namespace": String,
    "options": String,
}


def _sql(statement: str) -> TextClause:
    used = [name for name in _TYPES if f":{name}" in statement]
    return text(statement).bindparams(*(bindparam(name, type_=_TYPES[name]) for name in used))


# Numbered in the order of the targets: a claim takes the lowest first. The numbers may have gaps: somebody
# else drew from the sequence at the same moment.
_FROM_SEQUENCE = f"""
WITH next AS (
  SELECT position, {{number}} AS run_id
  FROM (SELECT position FROM fusee_batch_tasks WHERE {_RANGE} ORDER BY position) AS ordered
), chosen AS (
  UPDATE fusee_batch_tasks AS target SET run_id = next.run_id FROM next
  WHERE target.batch_id = :batch_id AND target.position = next.position
  RETURNING target.run_id, target.payload
), born AS (
  INSERT INTO fusee_runs (id, {_RUN}) SELECT run_id, {_VALUES} FROM chosen
)
INSERT INTO fusee_ready (lane_id, rank, due_at, run_id) SELECT :lane_id, :rank, :now, run_id FROM chosen
"""

# With numbers in a row, which is the rule: no join of the targets with themselves. (PostgreSQL, a portion of
# 5,000: 8 to 10 instead of 12 µs a target.)
_IN_A_ROW = [
    _sql(
        f"INSERT INTO fusee_runs (id, {_RUN}) SELECT :base + position, {_VALUES} FROM fusee_batch_tasks"
        f" WHERE {_RANGE} ORDER BY position"
    ),
    _sql(
        "INSERT INTO fusee_ready (lane_id, rank, due_at, run_id)"
        " SELECT :lane_id, :rank, :now, :base + position"
        f" FROM fusee_batch_tasks WHERE {_RANGE} ORDER BY position"
    ),
    _sql(f"UPDATE fusee_batch_tasks SET run_id = :base + position WHERE {_RANGE}"),
]
_DRAW = "SELECT min(n), max(n) FROM (SELECT {number} AS n FROM generate_series(1, :count)) AS drawn"
_LAST = text("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'fusee_runs'")
_NUMBER_STRETCH = _sql(
    f"UPDATE fusee_batch_tasks SET run_id = :base + (position - :first) * :step WHERE {_RANGE}"
)


class Range(NamedTuple):
    """Targets from `first` to below `end`, and what their runs have in common."""

    batch_id: int
    first: int
    end: int
    namespace: str
    lane_id: int
    priority: int
    options: str | None


class TargetRuns:
    def __init__(self, context: StoreContext, run_writer: RunWriter) -> None:
        self.context = context
        self.run_writer = run_writer

    def insert_range(self, connection: Connection, range_: Range, now: int) -> None:
        """A run for each of these targets, in line; each target knows its own."""
        given = {**range_._asdict(), "rank": -range_.priority, "now": now}
        if (number := self.context.database.capabilities.sequence) is not None:
            count = range_.end - range_.first
            lowest, highest = connection.execute(_sql(_DRAW.format(number=number)), {"count": count}).one()
            if highest - lowest == count - 1:
                for step in _IN_A_ROW:
                    connection.execute(step, {**given, "base": lowest - range_.first})
            else:
                connection.execute(_sql(_FROM_SEQUENCE.format(number=number)), given)
            self.context.notify(connection, PENDING)
        elif not self.context.database.capabilities.skip_locked:  # one writer
            base = connection.execute(_LAST).scalar_one() + 1 - range_.first
            for step in _IN_A_ROW:
                connection.execute(step, {**given, "base": base})
        else:
            self._bear_by_rows(connection, range_, now)

    def _bear_by_rows(self, connection: Connection, range_: Range, now: int) -> None:
        """MySQL may number the rows of an INSERT … SELECT with gaps; those of one with VALUES never."""
        mine = (
            batch_tasks.c.batch_id == range_.batch_id,
            batch_tasks.c.position >= range_.first,
            batch_tasks.c.position < range_.end,
        )
        query = select(batch_tasks.c.payload).where(*mine).order_by(batch_tasks.c.position)
        births = [
            Birth(
                lane_id=range_.lane_id,
                priority=range_.priority,
                payload=payload,
                options=range_.options,
                kind="batch",
                owner_id=range_.batch_id,
            )
            for payload in connection.execute(query).scalars()
        ]
        ids = self.run_writer.insert_runs(connection, births, now, range_.namespace)
        step = connection.execute(text("SELECT @@auto_increment_increment")).scalar_one()
        # A statement for each stretch of numbers without a gap: one for each INSERT, or fewer.
        start = 0
        for nr in range(1, len(ids) + 1):
            if nr == len(ids) or ids[nr] != ids[nr - 1] + step:
                stretch = {"first": range_.first + start, "end": range_.first + nr}
                numbers = {"base": ids[start], "step": step, "batch_id": range_.batch_id}
                connection.execute(_NUMBER_STRETCH, stretch | numbers)
                start = nr
