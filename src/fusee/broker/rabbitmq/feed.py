"""Consuming the queues of the lanes that a worker serves, only while it has room.

A worker that is full must not sit on messages that another could run: what has waited here for too long is
handed back, and consuming stops until there is room again, then with a smaller window.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Bundle, Malformed
from fusee.broker.names import Names
from fusee.broker.rabbitmq.inbox import Held, Inbox
from fusee.broker.rabbitmq.link import Link, own_cancels, taken
from fusee.broker.rabbitmq.topology import Topology
from fusee.ending import end
from fusee.model.dispatch import LEVELS

__all__ = ["Feed"]

log = logging.getLogger("fusee.broker")

STALE_AFTER = 0.8
"""Seconds that a message may wait for room here."""
LOOK_EVERY = 0.1
PATIENCE = 5.0
AGAIN_AFTER = 2.0
"""Seconds before a queue that does not answer is asked again."""
WIDEN_AFTER = 2.0
"""Seconds without a stale message after which the window grows again."""


class Feed:
    def __init__(
        self,
        link: Link,
        names: Names,
        topology: Topology,
        *,
        prefetch: int,
        arrived: Callable[[], None],
        hand_back: Callable[[list[Held]], Awaitable[None]],
    ) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self.prefetch = prefetch
        self.arrived = arrived
        self.hand_back = hand_back
        self.inbox = Inbox()
        self.window = prefetch
        """Messages of each queue that may be here at once."""
        self._lanes: list[int] = []
        self._connection: AbstractConnection | None = None
        self._tables: dict[str, _Table] = {}
        """By queue, each on a channel of its own: one that does not answer must not hold up the others."""
        self._closed = self._paused = False
        self._changed = asyncio.Event()
        self._narrowed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        link.on_up(self._set_up, self._tear_down)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="fusee-feed")

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
        await self._stop_consuming()
        await self._hand_back_all()

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])

    # -- the link

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(channel)
        self._connection = connection
        self._changed.set()

    def _tear_down(self) -> None:
        self._connection = None
        tables, self._tables = self._tables, {}
        for table in tables.values():
            table.sitting.cancel()
        self.inbox.clear()

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
        if self.inbox.waited(now) > STALE_AFTER:
            self._paused = True
            self.window = max(1, self.window // 2)
            self._narrowed_at = now
            await self._stop_consuming()
            await self._hand_back_all()
        elif self.window < self.prefetch and now - self._narrowed_at > WIDEN_AFTER and not self._paused:
            self.window = min(self.prefetch, self.window * 2)
            self._narrowed_at = now
            await self._stop_consuming()
        if not (self._paused or self._closed):
            self._consume_all()

    def _consume_all(self) -> None:
        """Sit down at every queue that is wanted; leave those that are not."""
        connection = self._connection
        if connection is None:
            return
        wanted = {self.names.runs(lane, level) for lane in self._lanes for level in LEVELS}
        for queue in wanted:
            table = self._tables.get(queue)
            if table is None:
                table = self._tables[queue] = _Table()
            if not table.taken:
                table.taken = True
                sitting = self._sit(connection, queue, table)
                table.sitting = asyncio.get_running_loop().create_task(sitting, name=f"fusee-consume-{queue}")

    async def _sit(self, connection: AbstractConnection, queue: str, table: _Table) -> None:
        try:
            with own_cancels():
                async with asyncio.timeout(PATIENCE):
                    channel = table.channel
                    if channel is None:
                        channel = table.channel = await connection.channel(publisher_confirms=False)
                        channel.closing.add_done_callback(lambda _: self._closed_by_server(queue, table))
                        await self.topology.runs(channel, queue)
                    await channel.basic_qos(prefetch_count=self.window)
                    consuming = await channel.basic_consume(queue, partial(self._on_message, channel))
                    table.tag = consuming.consumer_tag
        except Exception as problem:
            log.warning("could not consume %s: %s: %s", queue, type(problem).__name__, problem)
            self._closed_by_server(queue, table)

    def _closed_by_server(self, queue: str, table: _Table) -> None:
        """Or not answered by it: tried again in a while, on another channel."""

        def forget() -> None:
            if self._tables.get(queue) is table:
                del self._tables[queue]
                self._changed.set()

        asyncio.get_running_loop().call_later(AGAIN_AFTER, forget)

    async def _stop_consuming(self) -> None:
        """The channels stay: what came by them is acknowledged there."""
        for table in list(self._tables.values()):
            tag, table.tag = table.tag, None
            if table.channel is not None and tag is not None:
                with contextlib.suppress(Exception), own_cancels():
                    async with asyncio.timeout(PATIENCE):
                        await table.channel.basic_cancel(tag)
                table.taken = False

    async def _hand_back_all(self) -> None:
        while held := self.inbox.take(500):
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

        delivery = self.inbox.put(bundle, acknowledge)
        if delivery.left == 0:
            await acknowledge()
        else:
            self.arrived()


@dataclass(slots=True)
class _Table:
    """Where a worker sits at one queue."""

    channel: AbstractChannel | None = None
    tag: str | None = None
    taken: bool = False
    """Consuming, or about to."""
    sitting: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
