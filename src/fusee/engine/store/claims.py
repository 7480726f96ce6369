"""Claiming runs and handing in successes: one round trip for both, for hundreds of each.

Runs that strategies assigned to a worker are in a lane of its own. Without limits the hot statement claims
from that lane like from any other; where some runs are of queues with limits, `AssignedClaims` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from fusee.engine.model.queue import TokenBucket
from fusee.engine.model.run import Claimed
from fusee.engine.model.states import SessionState
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Exchanged, Finished, Order
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.queues import Queues, limits_of
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.tables import lanes, queues, runs, sessions
from fusee.engine.store.wakes import ENDED

__all__ = ["AssignedClaims", "Claims"]


class Claims:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def exchange(self, session: int, finished: Finished, order: Order) -> Exchanged:
        """Write the successes of this session and claim what is ordered, in one transaction."""
        exchanged = await self.context.database.exchange(session, finished, order)
        if finished.for_outbox:
            self.context.wakes.fire(ENDED)
        return exchanged


MOST_LOOKED_AT = 500
"""Entries of a worker's own lane that one claim reads: what is over its limit must not hide the rest."""


class AssignedClaims:
    def __init__(self, context: StoreContext, ready_queue: ReadyQueue, queues: Queues) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.queues = queues

    async def claim_assigned(self, session: int, limited: Sequence[str], order: Order) -> list[Claimed]:
        """Claim runs that strategies assigned to this session; some may be of queues with limits."""

        def work(connection: Connection) -> list[Claimed]:
            # The rows of queues are locked before entries of `fusee_ready`, in the order of `claim_limited`.
            names = queues.c.name.in_(limited)
            query = (
                select(queues)
                .where(queues.c.namespace == self.context.namespace, names)
                .order_by(queues.c.name)
            )
            rows = {row.name: row for row in connection.execute(query.with_for_update())}
            alive = select(sessions.c.id).where(
                sessions.c.id == session, sessions.c.state == SessionState.ALIVE
            )
            if connection.execute(alive).one_or_none() is None:
                return []
            now = self.context.now(connection)
            budget = {name: self._allowed(connection, row, now) for name, row in rows.items()}
            entries = self.ready_queue.lock_first(connection, own_lane(session), MOST_LOOKED_AT)
            queue_of = self._queues_of(connection, [entry.run_id for entry in entries])
            chosen: list[Any] = []
            for entry in entries:
                queue = queue_of.get(entry.run_id)
                if queue is None or len(chosen) == order.want or budget.get(queue, 1) <= 0:
                    continue
                chosen.append(entry)
                if queue in budget:
                    budget[queue] -= 1
            claimed = self.queues.take_up(
                connection,
                session,
                chosen,
                order.receipt,
                now,
                lambda row: queue_of[row.id] if queue_of[row.id] in rows else None,
            )
            for name, row in rows.items():
                started = sum(queue_of[run.id] == name for run in claimed)
                if row.rate is not None and started:
                    left = TokenBucket(row.tokens, row.tokens_at).filled(limits_of(row), now).take(started)
                    mine = (queues.c.namespace == self.context.namespace, queues.c.name == name)
                    values = {"tokens": left.tokens, "tokens_at": left.at}
                    connection.execute(update(queues).where(*mine).values(values))
            return claimed

        return await self.context.database.write(work)

    def _allowed(self, connection: Connection, row: Any, now: int) -> int:
        """How many of this queue, whose row is locked, may start now."""
        limits = limits_of(row)
        if limits.paused:
            return 0
        allowed = 10**9
        if limits.concurrency is not None:
            allowed = min(allowed, limits.concurrency - self.queues.tickets(connection, row.name))
        if limits.rate is not None:
            bucket = TokenBucket(row.tokens, row.tokens_at).filled(limits, now)
            allowed = min(allowed, int(bucket.tokens))
        return allowed

    def _queues_of(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, str]:
        query = select(runs.c.id, lanes.c.queue).join(lanes, lanes.c.id == runs.c.lane_id)
        rows = connection.execute(query.where(runs.c.id.in_(run_ids))).all() if run_ids else []
        return {row.id: row.queue for row in rows}
