"""Starting targets: which come next, and a run for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Update, bindparam, literal, select, text, update

from fusee.batches.model.spec import handler_of
from fusee.batches.store.exclusion import Rivals
from fusee.batches.store.moving import Moving
from fusee.batches.store.tables import batch_tasks
from fusee.engine.model.run import Lane
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.rows import NewRun, decode, encode, encode_rows
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import runs
from fusee.values.chunks import chunks

__all__ = ["HAS_UNDO", "TOUCHED", "TargetStarts"]

MOST_PARKED = 1000
"""Targets that a batch passes over because another has them; then it waits for the first of them."""
LOOK_AHEAD = 200
"""Targets looked at together where another batch may have them."""
TOUCHED = ("applied", "unknown")
"""Effects of a run after which its target may be changed."""

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


class TargetStarts:
    def __init__(self, context: StoreContext, run_writer: RunWriter, lanes: Lanes, outbox: Outbox) -> None:
        self.context = context
        self.run_writer = run_writer
        self.lanes = lanes
        self.outbox = outbox

    def start_new(self, connection: Connection, batch: Moving, count: int, now: int) -> None:
        """The next targets in their order."""
        first, end = batch.reached, batch.reached + count
        alike = self._alike(connection, batch)
        self.insert_range(connection, Range(batch.id, first, end, batch.namespace, alike), now)
        batch.reached = end
        batch.shift("pending", "running", count)

    def start_free(self, connection: Connection, batch: Moving, room: int, rivals: Rivals, now: int) -> None:
        """The next targets in their order; those that another batch has are parked, and passed over."""
        while room > 0 and batch.reached < batch.total and batch.parked < MOST_PARKED:
            end = min(batch.reached + max(room, LOOK_AHEAD), batch.total)
            busy = rivals.busy_between(batch.reached, end)
            if not busy:
                self.start_new(connection, batch, min(room, end - batch.reached), now)
                return
            stretch_end = min(min(busy), batch.reached + room)
            if stretch_end > batch.reached:  # those before the first that is busy
                room -= stretch_end - batch.reached
                self.start_new(connection, batch, stretch_end - batch.reached, now)
            while room > 0 and batch.parked < MOST_PARKED and batch.reached in busy:
                parked = {"todo": "parked", "turn": batch.reached, "info": _waits(busy[batch.reached])}
                at = (batch_tasks.c.batch_id == batch.id, batch_tasks.c.position == batch.reached)
                connection.execute(update(batch_tasks).where(*at).values(parked))
                batch.waits_for = busy[batch.reached]
                batch.reached += 1
                batch.parked += 1

    def start_parked(
        self, connection: Connection, batch: Moving, count: int, rivals: Rivals, now: int
    ) -> int:
        """Targets that were passed over, and that no other batch has any more."""
        rows = self.next_turns(connection, batch, "parked", count, rivals)
        ids = self.insert_for(connection, batch, [row.payload for row in rows], now)
        self.set_runs(connection, _HAS_RUN, batch, rows, ids)
        batch.parked -= len(rows)
        batch.shift("pending", "running", len(rows))
        if batch.parked and len(rows) < count:
            self.note_holder(connection, batch, "parked", rivals)
        return len(rows)

    def start_again(self, connection: Connection, batch: Moving, count: int, rivals: Rivals, now: int) -> int:
        """Failed targets that someone wants tried again come before new ones."""
        if batch.retry_pending == 0:
            return 0
        rows = self.next_turns(connection, batch, "retry", count, rivals)
        # What the earlier run did stays known: a retry that finds the target as wanted has not undone it.
        effects = self.effects_of(connection, [row.run_id for row in rows])
        ids = self.insert_for(
            connection,
            batch,
            [_with_image(row) for row in rows],
            now,
            [row.run_id for row in rows],
            [effects.get(row.run_id) for row in rows],
        )
        self._count_tries(connection, batch, rows)
        self.set_runs(connection, _HAS_RUN_AGAIN, batch, rows, ids)
        batch.shift("retry_pending", "running", len(rows))
        if batch.retry_pending and len(rows) < count:
            self.note_holder(connection, batch, "retry", rivals)
        return len(rows)

    def _count_tries(self, connection: Connection, batch: Moving, rows: Sequence[Any]) -> None:
        """Automatic retries of the runs that are replaced: they still count when the runs are gone."""
        by_run = {row.run_id: row.position for row in rows}
        ids = sorted(by_run)
        for chunk in chunks(ids):
            part = (runs.c.id.in_(chunk), runs.c.attempt > 1)
            more = [
                {"b_batch": batch.id, "b_at": by_run[run.id], "b_more": run.attempt - 1}
                for run in connection.execute(select(runs.c.id, runs.c.attempt).where(*part))
            ]
            if more:
                connection.execute(_TRIED_MORE, more)

    def note_holder(self, connection: Connection, batch: Moving, todo: str, rivals: Rivals) -> None:
        """Write down one batch that has a target which this one wants, and so wakes it.

        Ends of runs take no turn: a target may have become free since `next_turns` looked. Then nobody
        would wake this batch, and it looks again after the commit.
        """
        conflict = rivals.first_conflict(batch_tasks.c.todo == todo)
        if conflict is not None:
            batch.waits_for = conflict[1]
            return
        left = select(batch_tasks.c.position).where(
            batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == todo
        )
        if connection.execute(left.limit(1)).one_or_none() is not None:
            self.outbox.add(connection, [("batch", batch.id)])

    def next_turns(
        self, connection: Connection, batch: Moving, todo: str, count: int, rivals: Rivals
    ) -> Sequence[Any]:
        query = (
            select(batch_tasks)
            .where(batch_tasks.c.batch_id == batch.id, batch_tasks.c.todo == todo)
            .order_by(batch_tasks.c.turn, batch_tasks.c.position.desc())
            .limit(count)
        )
        if rivals:
            query = query.where(rivals.free())
        return connection.execute(query).all()

    def set_runs(
        self, connection: Connection, change: Update, batch: Moving, rows: Sequence[Any], ids: Sequence[int]
    ) -> None:
        """Each of these targets knows its new run."""
        if rows:
            numbers = zip(rows, ids, strict=True)
            connection.execute(
                change, [{"b_batch": batch.id, "b_at": row.position, "b_run": run} for row, run in numbers]
            )

    def insert_for(
        self,
        connection: Connection,
        batch: Moving,
        payloads: Sequence[str],
        now: int,
        origins: Sequence[int | None] = (),
        effects: Sequence[str | None] = (),
    ) -> list[int]:
        alike = self._alike(connection, batch)
        new_runs = [
            alike._replace(
                payload=payload,
                origin_id=origins[nr] if origins else None,
                effect=effects[nr] if effects and effects[nr] in TOUCHED else None,
            )
            for nr, payload in enumerate(payloads)
        ]
        return self.run_writer.insert_runs(connection, new_runs, now, batch.namespace)

    def _alike(self, connection: Connection, batch: Moving) -> NewRun:
        """What all runs of a batch have in common."""
        spec = batch.spec
        handler = handler_of(spec.target_type, spec.batch_type)
        lane = Lane(batch.namespace, spec.queue, "python", handler, spec.region)
        options: dict[str, Any] = {}
        if spec.timeout is not None:
            options["timeout"] = spec.timeout
        if spec.retry is not None:
            options["retry"] = spec.retry.to_dict()
        return NewRun(
            lane_id=self.lanes.lane_id(connection, lane),
            priority=spec.priority,
            options=encode(options, "options") if options else None,
            kind="batch",
            owner_id=batch.id,
        )

    def effects_of(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for part in chunks(run_ids):
            query = select(runs.c.id, runs.c.effect).where(runs.c.id.in_(part))
            found |= {row.id: row.effect for row in connection.execute(query)}
        return found

    # -- runs that the database makes from the rows of the targets: no payload travels to us

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


def _with_image(row: Any) -> str:
    """What the handler gets when a target is tried again: also what it was before the first try."""
    if row.image is None:
        return str(row.payload)
    return encode_rows(decode(row.payload) | {"image": decode(row.image)})


def _waits(batch_id: int) -> str:
    return f"waits: batch {batch_id} has this target"


_AT = (batch_tasks.c.batch_id == bindparam("b_batch"), batch_tasks.c.position == bindparam("b_at"))
_HAS_RUN = update(batch_tasks).where(*_AT).values(run_id=bindparam("b_run"), todo=None, turn=None, info=None)
_HAS_RUN_AGAIN = _HAS_RUN.values(retry_time=batch_tasks.c.retry_time + 1)
_TRIED_MORE = (
    update(batch_tasks).where(*_AT).values(retry_time=batch_tasks.c.retry_time + bindparam("b_more"))
)
HAS_UNDO = (
    update(batch_tasks)
    .where(*_AT)
    .values(rollback_run_id=bindparam("b_run"), todo=None, turn=None, info=None)
)
