"""Queues: what waits in them, and the limits that hold across all workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.queue import QueueLimits, TokenBucket
from fusee.engine.model.run import Claimed, Lane
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Order
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.own_lanes import assigned_by_lane, own_lanes
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.runs import Runs
from fusee.engine.store.tables import delayed, queues, ready, receipts, runs, sessions, tickets
from fusee.engine.store.wakes import PENDING
from fusee.values.chunks import chunks

__all__ = ["Queues", "limits_of"]


class Queues:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue, runs: Runs, lanes: Lanes) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.runs = runs
        self.lanes = lanes

    async def read_limits(self) -> dict[str, QueueLimits]:
        """The limits of this namespace's queues; also remembered in the lane map."""
        query = select(queues).where(queues.c.namespace == self.context.namespace)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        self.context.lane_map.limits = {row.name: limits_of(row) for row in rows}
        return self.context.lane_map.limits

    async def set_limits(self, queue: str, limits: QueueLimits) -> None:
        """Replace a queue's limits; workers follow within a second."""
        await self.change_limits(queue, lambda before: limits)

    async def change_limits(self, queue: str, change: Callable[[QueueLimits], QueueLimits]) -> None:
        """Replace a queue's limits by what `change` makes of them, in one transaction: of two changes at the
        same time neither undoes the other."""
        mine = (queues.c.namespace == self.context.namespace, queues.c.name == queue)

        def work(connection: Connection) -> None:
            now = self.context.now(connection)
            row = connection.execute(select(queues).where(*mine).with_for_update()).one_or_none()
            limits = change(QueueLimits() if row is None else limits_of(row))
            if not limits.limited and (row is None or row.strategy is None):
                connection.execute(delete(queues).where(*mine))
                return
            values = {
                "paused": limits.paused,
                "concurrency": limits.concurrency,
                "rate": limits.rate,
                "burst": limits.burst,
            }
            # Changed in place: a claim that waits for a row which is then deleted would find no limits, and
            # a bucket that is filled anew at each change would let a burst through each time.
            if connection.execute(update(queues).where(*mine).values(values)).rowcount == 0:
                full = TokenBucket(0.0, 0).filled(limits, now)
                connection.execute(
                    insert(queues).values(
                        namespace=self.context.namespace,
                        name=queue,
                        tokens=full.tokens,
                        tokens_at=now,
                        **values,
                    )
                )

        try:
            await self.context.database.write(work)
        except IntegrityError:  # someone else set the queue's first limits just now
            await self.context.database.write(work)
        await self.read_limits()

    async def set_strategy(self, queue: str, strategy: str | None) -> None:
        """How its runs find their worker, where they do not say so themselves; workers follow in a second."""
        mine = (queues.c.namespace == self.context.namespace, queues.c.name == queue)

        def work(connection: Connection) -> None:
            change = update(queues).where(*mine).values(strategy=strategy)
            if connection.execute(change).rowcount == 0 and strategy is not None:
                connection.execute(
                    insert(queues).values(
                        namespace=self.context.namespace, name=queue, paused=False, strategy=strategy
                    )
                )

        try:
            await self.context.database.write(work)
        except IntegrityError:  # someone else made the queue's row just now
            await self.context.database.write(work)
        await self.read_limits()
        self.context.wakes.fire(PENDING)

    async def claim_limited(self, session: int, queue: str, order: Order) -> list[Claimed]:
        """Claim from a queue that has limits; each run takes a ticket, which its end gives back.

        The queue's row is locked for the transaction: claims from it happen one after the other, so
        the count of tickets and the bucket cannot be passed by two workers at once.
        """

        def work(connection: Connection) -> list[Claimed]:
            mine = (queues.c.namespace == self.context.namespace, queues.c.name == queue)
            row = connection.execute(select(queues).where(*mine).with_for_update()).one_or_none()
            alive = select(sessions.c.id).where(
                sessions.c.id == session, sessions.c.state == SessionState.ALIVE
            )
            if connection.execute(alive).one_or_none() is None:
                return []
            now = self.context.now(connection)
            allowed = order.want
            bucket = None
            if row is not None:
                limits = limits_of(row)
                if limits.paused:
                    return []
                if limits.concurrency is not None:
                    allowed = min(allowed, limits.concurrency - self.tickets(connection, queue))
                if limits.rate is not None:
                    bucket = TokenBucket(row.tokens, row.tokens_at).filled(limits, now)
                    allowed = min(allowed, int(bucket.tokens))
            claimed = self._claim(connection, session, queue, allowed, order, now) if allowed > 0 else []
            if bucket is not None and claimed:
                left = bucket.take(len(claimed))
                connection.execute(update(queues).where(*mine).values(tokens=left.tokens, tokens_at=left.at))
            return claimed

        return await self.context.database.write(work)

    def tickets(self, connection: Connection, queue: str) -> int:
        """Runs of this queue in the hands of any worker."""
        mine = (tickets.c.namespace == self.context.namespace, tickets.c.queue == queue)
        return int(connection.execute(select(func.count()).select_from(tickets).where(*mine)).scalar_one())

    def _claim(
        self, connection: Connection, session: int, queue: str, want: int, order: Order, now: int
    ) -> list[Claimed]:
        found: list[Any] = []
        for lane_id in order.lanes:
            found += self.ready_queue.lock_first(connection, lane_id, want)
        found.sort(key=lambda row: (row.rank, row.due_at, row.run_id))
        chosen = found[:want]
        return self.take_up(connection, session, chosen, order.receipt, now, lambda row: queue)

    def take_up(
        self,
        connection: Connection,
        session: int,
        chosen: Sequence[Any],
        receipt: int,
        now: int,
        ticket_for: Callable[[Any], str | None],
    ) -> list[Claimed]:
        """Claim the runs of these entries, which are locked, for the session; a run of a queue with limits
        takes a ticket."""
        if not chosen:
            return []
        ids = [row.run_id for row in chosen]
        self.ready_queue.remove(connection, chosen)
        pending = (runs.c.id.in_(ids), runs.c.status == RunStatus.PENDING)
        known = select(
            runs.c.id,
            runs.c.attempt,
            runs.c.spent,
            runs.c.lane_id,
            runs.c.payload,
            runs.c.options,
            runs.c.kind,
            runs.c.owner_id,
        )
        rows = {row.id: row for row in connection.execute(known.where(*pending).with_for_update())}
        if not rows:
            return []
        connection.execute(
            update(runs)
            .where(*pending)
            .values(status=RunStatus.RUNNING, attempt=runs.c.attempt + 1, session_id=session, started_at=now)
        )
        connection.execute(
            insert(receipts).values(session_id=session, number=receipt, run_ids=",".join(map(str, ids)))
        )
        held = {row.id: queue for row in rows.values() if (queue := ticket_for(row)) is not None}
        if held:
            connection.execute(
                insert(tickets),
                [
                    {"namespace": self.context.namespace, "queue": queue, "run_id": run}
                    for run, queue in held.items()
                ],
            )
        claimed = []
        for row in (rows[run_id] for run_id in ids if run_id in rows):
            taken = Claimed(
                row.id, row.attempt + 1, row.spent, row.lane_id, row.payload, row.options, receipt
            )
            taken.ticket = row.id in held
            taken.kind, taken.owner_id = row.kind, row.owner_id
            claimed.append(taken)
        return claimed

    async def counts(self) -> dict[Lane, dict[str, tuple[int, int | None]]]:
        """For each lane with work that has not ended: status → (how many, the earliest due)."""
        in_flight = await self.runs.in_flight()

        def work(connection: Connection) -> dict[int, dict[str, tuple[int, int | None]]]:
            answer: dict[int, dict[str, tuple[int, int | None]]] = {}

            def note(status: str, query: Select[Any]) -> None:
                for lane_id, many, earliest in connection.execute(query):
                    before, first = answer.setdefault(lane_id, {}).get(status, (0, earliest))
                    answer[lane_id][status] = (before + many, min(first, earliest))

            many = func.count()
            at_home = select(ready.c.lane_id, many, func.min(ready.c.due_at)).where(ready.c.lane_id > 0)
            note("pending", at_home.group_by(ready.c.lane_id))
            for lane_id, given, earliest in assigned_by_lane(connection, own_lanes(connection)):
                before, first = answer.setdefault(lane_id, {}).get("pending", (0, earliest))
                answer[lane_id]["pending"] = (before + given, min(first or earliest, earliest))
            note(
                "delayed",
                select(delayed.c.lane_id, many, func.min(delayed.c.due_at)).group_by(delayed.c.lane_id),
            )
            by_lane = select(runs.c.lane_id, many, func.min(runs.c.due_at)).group_by(runs.c.lane_id)
            for part in chunks(in_flight):
                note("running", by_lane.where(runs.c.id.in_(part), runs.c.status == RunStatus.RUNNING))
            sent = select(dispatched.c.lane_id, many, func.min(dispatched.c.published_at))
            note("dispatched", sent.group_by(dispatched.c.lane_id))
            for status in ("blocked", "waiting"):
                note(status, by_lane.where(runs.c.namespace == self.context.namespace, runs.c.rare == status))
            return answer

        by_lane_id = await self.context.database.read(work)
        await self.lanes.read_new_lanes()
        known = self.context.lane_map.lanes
        return {known[lane_id]: counts for lane_id, counts in by_lane_id.items() if lane_id in known}


def limits_of(row: Any) -> QueueLimits:
    return QueueLimits(bool(row.paused), row.concurrency, row.rate, row.burst, row.strategy)
