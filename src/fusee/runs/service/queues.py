"""Queues, as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusee.engine.model.queue import LIMITS, QueueLimits, QueueStats, Strategy, check_strategy
from fusee.engine.model.run import Lane
from fusee.engine.model.session import Session
from fusee.engine.store.engine_store import EngineStore
from fusee.errors import Invalid
from fusee.placement.placing import serves
from fusee.values.names import check_name

__all__ = ["QueueOperations"]


class QueueOperations:
    def __init__(self, store: EngineStore) -> None:
        self.store = store

    async def list(self) -> Sequence[QueueStats]:
        """Every queue that has work or limits, by name."""
        counts = await self.store.queues.counts()
        limits = await self.store.queues.read_limits()
        sessions = await self.store.sessions.sessions()
        names = sorted({lane.queue for lane in counts} | set(limits))
        return [self._stats(name, counts, limits.get(name, QueueLimits()), sessions) for name in names]

    async def get(self, name: str) -> QueueStats:
        _checked(name)
        found = {stats.name: stats for stats in await self.list()}
        return found.get(name) or self._stats(name, {}, QueueLimits(), [])

    async def limit(self, name: str, limits: QueueLimits) -> QueueStats:
        """Replace a queue's limits; they hold across all workers within a second."""
        await self.store.queues.set_limits(_checked(name), limits)
        return await self.get(name)

    async def place(self, name: str, strategy: str) -> QueueStats:
        """Choose how the queue's runs find their worker, where they do not say so themselves."""
        _checked(name)
        strategy = check_strategy(strategy)
        await self.store.queues.set_strategy(name, None if strategy == Strategy.SHARED else strategy)
        return await self.get(name)

    async def change(self, name: str, changes: Mapping[str, Any]) -> QueueStats:
        """Other values for some of its limits; null lifts one, and a burst is lifted with its rate."""
        named = LIMITS.named(changes)

        def changed(before: QueueLimits) -> QueueLimits:
            after = {**{field: getattr(before, field) for field in LIMITS.fields}, **named}
            if after["rate"] is None and changes.get("burst") is None:
                after["burst"] = None
            return QueueLimits(**{**after, "paused": False if after["paused"] is None else after["paused"]})

        await self.store.queues.change_limits(_checked(name), changed)
        return await self.get(name)

    async def pause(self, name: str, paused: bool) -> QueueStats:
        return await self.change(name, {"paused": paused})

    @staticmethod
    def _stats(
        name: str,
        counts: dict[Lane, dict[str, tuple[int, int | None]]],
        limits: QueueLimits,
        sessions: Sequence[Session],
    ) -> QueueStats:
        mine = {lane: by_status for lane, by_status in counts.items() if lane.queue == name}

        def total(status: str) -> int:
            return sum(by_status.get(status, (0, None))[0] for by_status in mine.values())

        oldest = [by_status["pending"][1] for by_status in mine.values() if "pending" in by_status]
        unserved = {
            lane.handler
            for lane, by_status in mine.items()
            if "pending" in by_status and not any(serves(session.info, lane) for session in sessions)
        }
        return QueueStats(
            name=name,
            limits=limits,
            blocked=total("blocked"),
            delayed=total("delayed"),
            pending=total("pending"),
            running=total("running") + total("dispatched"),
            waiting=total("waiting"),
            oldest_pending_at=min((at for at in oldest if at is not None), default=None),
            unserved=tuple(sorted(unserved)),
        )


def _checked(name: str) -> str:
    try:
        return check_name(name, "queue")
    except ValueError as error:
        raise Invalid(str(error), field="queue") from None
