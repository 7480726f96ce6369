"""Writing down attempts that ended in another way than plain success; fenced like every write about a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.owners import Owners
from fusee.engine.store.callback_waits import CallbackWaits, leave_waiting
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Settlement
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.tables import LONGEST_REASON, RARE, attempts, runs, tickets
from fusee.engine.store.totals import RESULTS_REFUSED, add_to_totals
from fusee.engine.store.wakes import DELAYED, ENDED, PENDING
from fusee.values.chunks import chunks

__all__ = ["Outcomes"]

RULED_BY = (
    runs.c.id,
    runs.c.namespace,
    runs.c.lane_id,
    runs.c.priority,
    runs.c.attempt,
    runs.c.status,
    runs.c.due_at,
    runs.c.started_at,
    runs.c.cancel_requested_at,
    runs.c.session_id,
    runs.c.effect,
    runs.c.reason,
    runs.c.kind,
    runs.c.owner_id,
)
"""What a row must tell before a verdict about it can be written."""


class Outcomes:
    def __init__(
        self,
        context: StoreContext,
        owners: Owners,
        ready_queue: ReadyQueue,
        outbox: Outbox,
        callback_waits: CallbackWaits,
    ) -> None:
        self.context = context
        self.owners = owners
        self.ready_queue = ready_queue
        self.outbox = outbox
        self.callback_waits = callback_waits

    async def settle(self, session: int, settlements: Sequence[Settlement]) -> list[tuple[int, int]]:
        """Apply each verdict where this session still owns the attempt.

        Returns the (run, attempt) pairs that the fence refused.
        """

        def work(connection: Connection) -> tuple[list[tuple[int, int]], list[RunStatus]]:
            refused: list[tuple[int, int]] = []
            written: list[RunStatus] = []
            for chunk in chunks(settlements):
                part = self._settle(connection, session, chunk)
                refused += part[0]
                written += part[1]
            return refused, written

        refused, written = await self.context.database.write(work)
        statuses = {s.verdict.status for s in settlements}.union(written)
        if RunStatus.PENDING in statuses:
            self.context.wakes.fire(PENDING)
        if RunStatus.DELAYED in statuses:
            self.context.wakes.fire(DELAYED)
        if statuses & TERMINAL:
            self.context.wakes.fire(ENDED)
        return refused

    def _settle(
        self, connection: Connection, session: int, settlements: Sequence[Settlement]
    ) -> tuple[list[tuple[int, int]], list[RunStatus]]:
        query = (
            select(*RULED_BY)
            .where(runs.c.id.in_([s.run_id for s in settlements]), runs.c.session_id == session)
            .order_by(runs.c.id)
            .with_for_update()
        )
        rows = {(row.id, row.attempt): row for row in connection.execute(query)}
        now = self.context.now(connection)
        owned: list[tuple[Settlement, Any]] = []
        refused: list[tuple[int, int]] = []
        for settlement in settlements:
            row = rows.get((settlement.run_id, settlement.attempt))
            if row is None:
                refused.append((settlement.run_id, settlement.attempt))
            elif row.status == RunStatus.RUNNING:
                owned.append((settlement, row))
            # else: written already by an earlier try of this very call, whose answer was lost.
        return refused, self.apply_verdicts(connection, owned, now)

    def apply_verdicts(
        self, connection: Connection, owned: Sequence[tuple[Settlement, Any]], now: int
    ) -> list[RunStatus]:
        """Write verdicts about rows that are locked in this transaction; returns the status of each."""
        if not owned:
            return []
        owned = self.owners.before_retry(connection, self.callback_waits.heed_answers(connection, owned))
        changes = [_changes(settlement, row, now) for settlement, row in owned]
        connection.execute(_UPDATE, changes)
        self.ready_queue.add(
            connection,
            [
                QueueEntry(row.id, row.lane_id, row.priority, change["b_due_at"], change["b_status"])
                for change, (_, row) in zip(changes, owned, strict=True)
            ],
        )
        self.outbox.add_ends(
            connection,
            [
                (row.kind, row.id)
                for change, (_, row) in zip(changes, owned, strict=True)
                if row.kind is not None and change["b_finished_at"] is not None
            ],
        )
        begin = {c["b_id"]: c["b_attempt"] for c in changes if c["b_status"] is RunStatus.WAITING}
        self.callback_waits.begin(connection, begin, now)
        leave_waiting(connection, [row.id for _, row in owned if row.status == RunStatus.WAITING])
        # What waits keeps its place: the work that the limit counts continues elsewhere.
        if held := [s.run_id for s, _ in owned if s.ticket and s.run_id not in begin]:
            connection.execute(delete(tickets).where(tickets.c.run_id.in_(held)))
        kept = [
            {
                "run_id": settlement.run_id,
                "attempt": settlement.attempt,
                "namespace": row.namespace,
                "session_id": row.session_id,
                "ended": settlement.ended.end,
                "started_at": row.started_at,
                "finished_at": now,
                "effect": settlement.ended.effect,
                "error": settlement.ended.error,
                "output": settlement.ended.output,
            }
            for settlement, row in owned
            if (settlement.ended.end is not End.RETURNED or settlement.ended.effect is not Effect.NONE)
            and settlement.ended.end is not End.ACCEPTED
            and (settlement.verdict.status not in TERMINAL or settlement.ended.end is End.LOST)
        ]
        if kept:
            connection.execute(insert(attempts), kept)
        return [change["b_status"] for change in changes]

    async def record_stale(self, late: Iterable[tuple[int, int, str]]) -> None:
        """Keep what a worker reported about (run, attempt) after it had lost them."""
        reports = list(late)

        def work(connection: Connection) -> None:
            now = self.context.now(connection)
            connection.execute(
                update(attempts)
                .where(attempts.c.run_id == bindparam("b_run"), attempts.c.attempt == bindparam("b_attempt"))
                .values(late_end=bindparam("b_end"), late_at=bindparam("b_now")),
                [
                    {"b_run": run, "b_attempt": attempt, "b_end": end, "b_now": now}
                    for run, attempt, end in reports
                ],
            )
            query = select(runs.c.namespace).where(runs.c.id.in_([run for run, _, _ in reports]))
            refused = Counter((namespace, "") for namespace in connection.execute(query).scalars())
            add_to_totals(connection, RESULTS_REFUSED, refused)

        if reports:
            await self.context.database.write(work)


_UPDATE = (
    update(runs)
    .where(
        runs.c.id == bindparam("b_id"),
        runs.c.attempt == bindparam("b_attempt"),
        runs.c.status == bindparam("b_from"),
    )
    .values(
        status=bindparam("b_status"),
        rare=bindparam("b_rare"),
        due_at=bindparam("b_due_at"),
        finished_at=bindparam("b_finished_at"),
        spent=runs.c.spent + bindparam("b_counted"),
        session_id=bindparam("b_session"),
        effect=bindparam("b_effect"),
        reason=bindparam("b_reason"),
        error=bindparam("b_error"),
        output=bindparam("b_output"),
        result=bindparam("b_result"),
    )
)


def _changes(settlement: Settlement, row: Any, now: int) -> dict[str, Any]:
    verdict, ended = settlement.verdict, settlement.ended
    status, reason = verdict.status, verdict.reason
    if row.cancel_requested_at is not None and status not in TERMINAL:
        # Someone was told that no further attempt will start.
        status = RunStatus.CANCELED
    if row.cancel_requested_at is not None and status is RunStatus.CANCELED:
        reason = row.reason or "canceled while running"  # what the caller gave as the reason
    return {
        "b_id": settlement.run_id,
        "b_attempt": settlement.attempt,
        "b_from": row.status,
        "b_status": status,
        "b_rare": status if status in RARE else None,
        "b_due_at": now + round(verdict.delay * 1_000_000) if status is RunStatus.DELAYED else row.due_at,
        "b_finished_at": now if status in TERMINAL else None,
        "b_counted": int(verdict.counted),
        # A lost run is taken away from its session: that is what the fence looks at.
        "b_session": None if ended.end is End.LOST else row.session_id,
        # An earlier attempt may have done something: a later one that did nothing does not undo that.
        "b_effect": row.effect if ended.effect is Effect.NONE and row.effect is not None else ended.effect,
        "b_reason": None if status is RunStatus.SUCCEEDED else reason[:LONGEST_REASON],
        "b_error": ended.error,
        "b_output": ended.output,
        "b_result": ended.result,
    }
