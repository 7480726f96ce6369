"""The publish loop: dispatches runs to the message broker, a little ahead of the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from fusee.engine.model.run import Dispatched
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.own_lanes import own_lane
from fusee.events import Bus, RunsPublished, RunsRecalled
from fusee.placement.placing import serves
from fusee.service import Service

__all__ = ["BrokerGateway", "Publish"]

LOOK_EVERY = 0.5
"""Seconds between two looks at the live workers."""
AHEAD = 1.0
"""Seconds of work that may be published and not started: more would slow cancels, limits and priorities."""
MAX_AHEAD = 5000
BUNDLE = 0.01
"""Seconds of a lane's work that may share a message: many short runs, never two long ones."""
LARGEST_BUNDLE = 64
GATHER = 0.005
"""Seconds to wait for more runs while they come fast: fewer and fuller dispatches."""
MEASURE = 0.1
"""Seconds over which the rate of a lane is measured."""
ATTENTIVE_FOR = 1.0
"""Seconds after the last dispatch in which the loop polls fast, on a database that cannot notify."""


class BrokerGateway(Protocol):
    """What a dispatcher needs of a message broker."""

    worker_broker: str
    """What the sessions of workers that consume from it give as their broker."""
    on_granted: Callable[[], None]
    """Called when runs have started, so that more can be published."""

    @property
    def connected(self) -> bool: ...

    async def publish(self, runs: Iterable[Dispatched], bundle_sizes: Mapping[int, int]) -> int:
        """Publish runs, and return the number of messages once the broker has confirmed them all.

        `bundle_sizes` says for each lane how many of its runs may share a message; others travel alone."""

    async def count_ready(self, lane: int, level: int) -> int:
        """The number of messages in that queue that wait for a worker."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(slots=True)
class FedLane:
    """A lane whose runs are published, since live workers consume it."""

    slots: int
    """How many runs its workers execute at once."""
    sent: int = 0
    since: float = 0.0
    rate: float = 0.0

    def measure(self, sent: int, now: float) -> None:
        self.sent += sent
        elapsed = now - self.since
        if elapsed >= MEASURE:
            rate = self.sent / elapsed
            self.rate = rate if rate > self.rate else (rate + self.rate) / 2
            self.sent, self.since = 0, now

    @property
    def ahead(self) -> int:
        """How many runs may be published and not started."""
        return min(MAX_AHEAD, max(2 * self.slots, int(self.rate * AHEAD)))

    @property
    def bundle(self) -> int:
        """How many runs may share a message."""
        return max(1, min(LARGEST_BUNDLE, int(self.rate * BUNDLE)))


class Publish(Service):
    """Woken when runs become pending, and when published runs have started."""

    def __init__(
        self,
        store: EngineStore,
        gateway: BrokerGateway,
        bus: Bus,
        *,
        redispatch_after: float,
        interval: float = 0.5,
    ) -> None:
        super().__init__("publish", interval, bus)
        self.store = store
        self.gateway = gateway
        self.redispatch_after = redispatch_after
        self.fed: dict[int, FedLane] = {}
        self._looked = self._healed = self._busy = float("-inf")

    async def run_once(self) -> int:
        if not self.gateway.connected:
            self.pause = 0.1
            return 0
        self.pause = None
        now = monotonic()
        if now - self._looked >= LOOK_EVERY:
            await self._look()
            self._looked = now
        if any(fed.rate * GATHER > 1 for fed in self.fed.values()):
            await asyncio.sleep(GATHER)
        sent = await self._send()
        if now - self._healed >= min(1.0, self.redispatch_after / 4):
            await self.heal()
            self._healed = now
        if sent:
            self._busy = now
        if not self.store.database.capabilities.notify and now - self._busy < ATTENTIVE_FOR:
            self.pause = 0.02  # another process may enqueue and cannot wake this one
        return sent

    async def _look(self) -> None:
        """Read which lanes have workers, and how many runs these execute at once."""
        slots: dict[int, int] = {}
        lanes, placed = await self.store.dispatches.shared_lanes()
        for session in await self.store.sessions.fed_sessions(self.gateway.worker_broker):
            for lane_id, lane in lanes.items():
                if lane.namespace == session.namespace and serves(session.info, lane):
                    slots[lane_id] = slots.get(lane_id, 0) + session.info.capacity
            if placed:  # runs that a strategy assigns to this worker are in its own lane
                slots[own_lane(session.id)] = session.info.capacity
        now = monotonic()
        self.fed = {fed: self.fed.get(fed) or FedLane(many, since=now) for fed, many in slots.items()}
        for lane_id, many in slots.items():
            self.fed[lane_id].slots = many

    async def _send(self) -> int:
        if not self.fed:
            return 0
        sent = await self.store.dispatches.dispatch({lane: fed.ahead for lane, fed in self.fed.items()})
        if sent:
            await self.gateway.publish(sent, {lane: fed.bundle for lane, fed in self.fed.items()})
            self.bus.emit(RunsPublished(count=len(sent), again=False))
        counts: dict[int, int] = {}
        for run in sent:
            counts[run.stands] = counts.get(run.stands, 0) + 1
        now = monotonic()
        for lane, fed in self.fed.items():
            fed.measure(counts.get(lane, 0), now)
        return len(sent)

    async def heal(self) -> int:
        """Publish again the runs that were dispatched long ago and are in no queue, and take back those of
        lanes without a worker. Returns how many there were of both."""
        after = self.redispatch_after
        healed = await self.store.dispatches.recall_unserved(self.fed, after)
        if healed:
            self.bus.emit(RunsRecalled(count=healed))
        for overdue in await self.store.dispatches.overdue(after):
            if overdue.lane_id not in self.fed:
                continue
            # First in, first out: the queue holds the newest ones, so the missing ones are the oldest.
            missing = overdue.standing - await self.gateway.count_ready(overdue.lane_id, overdue.level)
            if missing <= 0:
                continue
            lost = await self.store.dispatches.republish(
                overdue.lane_id, overdue.level, after, min(missing, overdue.late)
            )
            if lost:
                # Each alone: if one of them kills its worker, the others are not affected.
                await self.gateway.publish(lost, {})
                self.bus.emit(RunsPublished(count=len(lost), again=True))
                healed += len(lost)
        return healed
