"""Queues: what waits in them, and the limits that hold across all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from fusee.model import Claimed, Lane, QueueLimits, RunStatus, TokenBucket
from fusee.store.parts import StorePart
from fusee.store.schema import lanes, queues, runs, sessions, status_is

__all__ = ["Queues"]


class Queues(StorePart):
    async def read_limits(self) -> dict[str, QueueLimits]:
        """The limits of this namespace's queues; also remembered in the lane map."""
        query = select(queues).where(queues.c.namespace == self.namespace)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        self.lane_map.limits = {row.name: _limits(row) for row in rows}
        return self.lane_map.limits

    async def set_limits(self, queue: str, limits: QueueLimits) -> None:
        """Replace a queue's limits; workers follow within a second."""
        mine = (queues.c.namespace == self.namespace, queues.c.name == queue)

        def work(connection: Connection) -> None:
            now = self._now(connection)
            connection.execute(delete(queues).where(*mine))
            if limits.limited:
                bucket = TokenBucket(0.0, 0).filled(limits, now)
                connection.execute(
                    insert(queues).values(
                        namespace=self.namespace,
                        name=queue,
                        paused=limits.paused,
                        concurrency=limits.concurrency,
                        rate=limits.rate,
                        burst=limits.burst,
                        tokens=bucket.tokens,
                        tokens_at=now,
                    )
                )

        await self.database.write(work)
        await self.read_limits()

    async def claim_limited(
        self, session: int, queue: str, want: int, lane_ids: Sequence[int]
    ) -> list[Claimed]:
        """Claim from a queue that has limits.

        The queue's row is locked for the transaction: claims from it happen one after the other, so
        the count of running runs and the bucket cannot be passed by two workers at once.
        """

        def work(connection: Connection) -> list[Claimed]:
            mine = (queues.c.namespace == self.namespace, queues.c.name == queue)
            row = connection.execute(select(queues).where(*mine).with_for_update()).one_or_none()
            alive = select(sessions.c.id).where(sessions.c.id == session, sessions.c.state == "alive")
            if connection.execute(alive).one_or_none() is None:
                return []
            now = self._now(connection)
            allowed = want
            bucket = None
            if row is not None:
                limits = _limits(row)
                if limits.paused:
                    return []
                if limits.concurrency is not None:
                    allowed = min(allowed, limits.concurrency - self._running(connection, queue))
                if limits.rate is not None:
                    bucket = TokenBucket(row.tokens, row.tokens_at).filled(limits, now)
                    allowed = min(allowed, int(bucket.tokens))
            claimed = self._claim(connection, session, allowed, lane_ids, now) if allowed > 0 else []
            if bucket is not None and claimed:
                left = bucket.take(len(claimed))
                connection.execute(update(queues).where(*mine).values(tokens=left.tokens, tokens_at=left.at))
            return claimed

        return await self.database.write(work)

    def _running(self, connection: Connection, queue: str) -> int:
        """Runs of this queue in the hands of any worker; reads the index of running runs only."""
        of_queue = select(lanes.c.id).where(lanes.c.namespace == self.namespace, lanes.c.queue == queue)
        query = (
            select(func.count())
            .select_from(runs)
            .where(status_is(RunStatus.RUNNING), runs.c.lane_id.in_(of_queue))
        )
        return int(connection.execute(query).scalar_one())

    def _claim(
        self, connection: Connection, session: int, want: int, lane_ids: Sequence[int], now: int
    ) -> list[Claimed]:
        found: list[Any] = []
        for lane_id in lane_ids:
            query = (
                select(
                    runs.c.id,
                    runs.c.attempt,
                    runs.c.spent,
                    runs.c.lane_id,
                    runs.c.payload,
                    runs.c.options,
                    runs.c.priority,
                    runs.c.due_at,
                )
                .where(status_is(RunStatus.PENDING), runs.c.lane_id == lane_id)
                .order_by(runs.c.priority.desc(), runs.c.due_at, runs.c.id)
                .limit(want)
                .with_for_update(skip_locked=self.database.capabilities.skip_locked)
            )
            found += connection.execute(query).all()
        found.sort(key=lambda row: (-row.priority, row.due_at, row.id))
        chosen = found[:want]
        if chosen:
            connection.execute(
                update(runs)
                .where(runs.c.id.in_([row.id for row in chosen]), status_is(RunStatus.PENDING))
                .values(
                    status=RunStatus.RUNNING, attempt=runs.c.attempt + 1, session_id=session, started_at=now
                )
            )
        return [Claimed(r.id, r.attempt + 1, r.spent, r.lane_id, r.payload, r.options) for r in chosen]

    async def counts(self) -> dict[Lane, dict[str, tuple[int, int | None]]]:
        """For each lane with work that has not ended: status → (how many, the earliest due)."""

        def work(connection: Connection) -> dict[Lane, dict[str, tuple[int, int | None]]]:
            answer: dict[Lane, dict[str, tuple[int, int | None]]] = {}
            # One status at a time: each has an index that holds just its rows.
            for status in ("pending", "running", "delayed", "blocked", "waiting", "dispatched"):
                query = (
                    select(
                        lanes.c.queue,
                        lanes.c.executor,
                        lanes.c.handler,
                        lanes.c.region,
                        func.count().label("many"),
                        func.min(runs.c.due_at).label("earliest"),
                    )
                    .join(lanes, lanes.c.id == runs.c.lane_id)
                    .where(status_is(status), lanes.c.namespace == self.namespace)
                    .group_by(lanes.c.queue, lanes.c.executor, lanes.c.handler, lanes.c.region)
                )
                for row in connection.execute(query):
                    lane = Lane(self.namespace, row.queue, row.executor, row.handler, row.region)
                    answer.setdefault(lane, {})[status] = (row.many, row.earliest)
            return answer

        return await self.database.read(work)


def _limits(row: Any) -> QueueLimits:
    return QueueLimits(bool(row.paused), row.concurrency, row.rate, row.burst)
