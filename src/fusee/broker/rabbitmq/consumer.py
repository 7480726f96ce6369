"""Consumes the queues of the lanes that a worker serves, only while the worker has free slots.

A full worker must not hold messages that another one could run: messages that have waited here for too long
are handed back, and consuming stops until there are free slots again, then with a smaller prefetch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Bundle, Malformed, RunMessage
from fusee.broker.rabbitmq.connection import (
    RobustConnection,
    acknowledge,
    driver_call,
    open_channel,
    tag_of,
    write_frame,
)
from fusee.broker.rabbitmq.queue_consumers import QueueConsumers
from fusee.broker.rabbitmq.topology import Topology
from fusee.engine.ending import end
from fusee.engine.model.run import LEVELS

__all__ = ["BufferedRun", "Consumer", "PrefetchBuffer"]

STALE_AFTER = 0.8
"""Seconds that a message may wait here for a free slot."""
LOOK_EVERY = 0.1
WIDEN_AFTER = 2.0
"""Seconds without a stale message after which the prefetch grows again."""


@dataclass(slots=True)
class Delivery:
    """A message, acknowledged when the store has decided about all its runs."""

    acknowledge: Callable[[], Awaitable[None]]
    undecided: int
    arrived: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class BufferedRun:
    """One run of a delivery."""

    run: RunMessage
    delivery: Delivery

    @property
    def token(self) -> tuple[int, int]:
        return self.run.id, self.run.attempt


class PrefetchBuffer:
    """The runs that were delivered and have not started yet, by level of priority."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[BufferedRun]] = {level: deque() for level in LEVELS}
        self._known: set[tuple[int, int]] = set()
        """(run, attempt) of those that wait here or are being asked for: copies of them are dropped."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, bundle: Bundle, acknowledge: Callable[[], Awaitable[None]]) -> Delivery:
        """Buffer the runs of a message, except those that are here already."""
        new = [run for run in bundle.runs if (run.id, run.attempt) not in self._known]
        delivery = Delivery(acknowledge, len(new))
        self._known.update((run.id, run.attempt) for run in new)
        level = bundle.level if bundle.level in self._waiting else 0
        self._waiting[level].extend(BufferedRun(run, delivery) for run in new)
        return delivery

    def take(self, want: int) -> list[BufferedRun]:
        """Remove up to `want` runs, those of the highest level first."""
        taken: list[BufferedRun] = []
        for waiting in self._waiting.values():
            while waiting and len(taken) < want:
                taken.append(waiting.popleft())
        return taken

    async def decided(self, taken: list[BufferedRun]) -> None:
        """The store has granted, refused or taken back these runs: their messages have no further use."""
        for one in taken:
            self._known.discard(one.token)
            one.delivery.undecided -= 1
            if one.delivery.undecided == 0:
                await one.delivery.acknowledge()

    def clear(self) -> None:
        """The connection is lost, so RabbitMQ delivers these messages again, here or elsewhere."""
        for waiting in self._waiting.values():
            for one in waiting:
                self._known.discard(one.token)
            waiting.clear()

    def oldest_age(self, now: float) -> float:
        """Seconds for which the oldest message has been here."""
        return max((now - w[0].delivery.arrived for w in self._waiting.values() if w), default=0.0)


class Consumer:
    def __init__(
        self,
        connection: RobustConnection,
        topology: Topology,
        *,
        prefetch: int,
        arrived: Callable[[], None],
        hand_back: Callable[[list[BufferedRun]], Awaitable[None]],
    ) -> None:
        self.topology = topology
        self.max_prefetch = self.prefetch = prefetch
        """Unacknowledged messages of each queue: at most, and at present."""
        self.arrived = arrived
        self.hand_back = hand_back
        self.buffer = PrefetchBuffer()
        self._lanes: list[int] = []
        self._draining = self._paused = False
        self._changed = asyncio.Event()
        self.queues = QueueConsumers(topology, self._on_message, self._changed.set)
        self._prefetch_changed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        connection.on_connect(self._set_up, self._tear_down)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="fusee-consumer")

    def want(self, lanes: Sequence[int]) -> None:
        """There are free slots for runs of these lanes."""
        if self._draining:
            return
        if self._paused or len(lanes) != len(self._lanes) or lanes != self._lanes:
            self._lanes = list(lanes)
            self._paused = False
            self._changed.set()

    async def drain(self) -> None:
        """Consume nothing more, and hand back what waits here."""
        self._draining = True
        self._changed.set()
        await self.queues.cancel()
        await self._hand_back_all()

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])

    # -- the connection

    async def _set_up(self, connection: AbstractConnection) -> None:
        await self.topology.declare_dead_letters(await open_channel(connection))
        self.queues.connected(connection)
        self._changed.set()

    def _tear_down(self) -> None:
        self.queues.disconnected()
        self.buffer.clear()

    # -- following what is wanted

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._changed.wait()
            self._changed.clear()
            try:
                with driver_call():
                    await self._adjust()
            except Exception:
                # The channel is closed, or about to be; the next connection sets `_changed` too.
                await asyncio.sleep(LOOK_EVERY)
                self._changed.set()

    async def _adjust(self) -> None:
        now = time.monotonic()
        if self.buffer.oldest_age(now) > STALE_AFTER:
            self._paused = True
            self.prefetch = max(1, self.prefetch // 2)
            self._prefetch_changed_at = now
            await self.queues.cancel()
            await self._hand_back_all()
        elif (
            self.prefetch < self.max_prefetch
            and now - self._prefetch_changed_at > WIDEN_AFTER
            and not self._paused
        ):
            self.prefetch = min(self.max_prefetch, self.prefetch * 2)
            self._prefetch_changed_at = now
            await self.queues.cancel()
        if not (self._paused or self._draining):
            for lane in self._lanes:
                for level in LEVELS:
                    self.queues.consume(self.topology.run_queue(lane, level), self.prefetch)

    async def _hand_back_all(self) -> None:
        while taken := self.buffer.take(500):
            await self.hand_back(taken)

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        tag = tag_of(message)
        try:
            bundle = Bundle.decode(message.body)
        except Malformed:
            # Not requeued, as it would come back for ever: the dead-letter exchange takes it.
            await write_frame(channel.basic_reject(tag, requeue=False))
            return
        delivery = self.buffer.put(bundle, lambda: acknowledge(channel, tag))
        if delivery.undecided == 0:
            await delivery.acknowledge()
        else:
            self.arrived()
