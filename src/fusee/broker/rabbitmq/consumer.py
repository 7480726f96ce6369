"""Consuming the queues of the lanes that a worker serves, only while it has room.

A worker that is full must not sit on messages that another could run: what has waited here for too long is
handed back, and consuming stops until there is room again, then with a smaller window.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Bundle, Malformed
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection, own_cancels, taken
from fusee.broker.rabbitmq.deliveries import BufferedRun, PrefetchBuffer
from fusee.broker.rabbitmq.queue_consumers import QueueConsumers
from fusee.broker.rabbitmq.topology import Topology
from fusee.engine.ending import end
from fusee.engine.model.dispatched import LEVELS

__all__ = ["Consumer"]

STALE_AFTER = 0.8
"""Seconds that a message may wait for room here."""
LOOK_EVERY = 0.1
WIDEN_AFTER = 2.0
"""Seconds without a stale message after which the window grows again."""


class Consumer:
    def __init__(
        self,
        link: RobustConnection,
        names: Names,
        topology: Topology,
        *,
        prefetch: int,
        arrived: Callable[[], None],
        hand_back: Callable[[list[BufferedRun]], Awaitable[None]],
    ) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self.prefetch = prefetch
        self.arrived = arrived
        self.hand_back = hand_back
        self.buffer = PrefetchBuffer()
        self.window = prefetch
        """Messages of each queue that may be here at once."""
        self._lanes: list[int] = []
        self._closed = self._paused = False
        self._changed = asyncio.Event()
        self.queue_consumers = QueueConsumers(topology, self._on_message, self._changed.set)
        self._narrowed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        link.on_up(self._set_up, self._tear_down)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="fusee-consumer")

    def want(self, lanes: Sequence[int]) -> None:
        """There is room for runs of these lanes."""
        if self._closed:
            return
        if self._paused or len(lanes) != len(self._lanes) or lanes != self._lanes:
            self._lanes = list(lanes)
            self._paused = False
            self._changed.set()

    async def drain(self) -> None:
        """Take nothing more, and hand back what waits here."""
        self._closed = True
        self._changed.set()
        await self.queue_consumers.leave()
        await self._hand_back_all()

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])

    # -- the link

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(channel)
        self.queue_consumers.up(connection)
        self._changed.set()

    def _tear_down(self) -> None:
        self.queue_consumers.down()
        self.buffer.clear()

    # -- following what is wanted

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._changed.wait()
            self._changed.clear()
            try:
                with own_cancels():
                    await self._adjust()
            except Exception:
                # The channel is closed, or about to be: the link sets up another and nudges us.
                await asyncio.sleep(LOOK_EVERY)
                self._changed.set()

    async def _adjust(self) -> None:
        now = time.monotonic()
        if self.buffer.waited(now) > STALE_AFTER:
            self._paused = True
            self.window = max(1, self.window // 2)
            self._narrowed_at = now
            await self.queue_consumers.leave()
            await self._hand_back_all()
        elif self.window < self.prefetch and now - self._narrowed_at > WIDEN_AFTER and not self._paused:
            self.window = min(self.prefetch, self.window * 2)
            self._narrowed_at = now
            await self.queue_consumers.leave()
        if not (self._paused or self._closed):
            for lane in self._lanes:
                for level in LEVELS:
                    self.queue_consumers.sit(self.names.runs(lane, level), self.window)

    async def _hand_back_all(self) -> None:
        while held := self.buffer.take(500):
            await self.hand_back(held)

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        assert tag is not None
        try:
            bundle = Bundle.decode(message.body)
        except Malformed:
            # Not requeued: it would come back for ever. The dead-letter exchange takes it.
            await taken(channel.basic_reject(tag, requeue=False))
            return

        async def acknowledge() -> None:
            with contextlib.suppress(Exception):  # not acknowledged, it comes again, and is refused
                await taken(channel.basic_ack(tag, wait=False))

        delivery = self.buffer.put(bundle, acknowledge)
        if delivery.left == 0:
            await acknowledge()
        else:
            self.arrived()
