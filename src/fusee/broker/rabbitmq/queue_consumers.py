"""Where a worker sits: one consumer for each queue, on a channel of its own, so that a queue which does not
answer holds up none of the others. Whatever ends a consumer, another one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.rabbitmq.connection import own_cancels
from fusee.broker.rabbitmq.topology import Topology

__all__ = ["QueueConsumers"]

log = logging.getLogger("fusee.broker")

PATIENCE = 5.0
AGAIN_AFTER = 2.0
"""Seconds before a queue that does not answer is asked again."""
SILENCES = 2
"""Times in a row that a queue may not answer, on a connection that does, before it is made anew."""

OnMessage = Callable[[AbstractChannel, DeliveredMessage], Coroutine[None, None, None]]


@dataclass(slots=True)
class _QueueConsumer:
    channel: AbstractChannel | None = None
    declared: bool = False
    tag: str | None = None
    taken: bool = False
    """Consuming, or about to."""
    sitting: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class QueueConsumers:
    """`up` with each connection, `down` when it is lost; in between, `sit` at queues and `leave` them."""

    def __init__(self, topology: Topology, on_message: OnMessage, changed: Callable[[], None]) -> None:
        self.topology = topology
        self.on_message = on_message
        self.changed = changed
        """Called when a queue should be sat down at again."""
        self._connection: AbstractConnection | None = None
        self._tables: dict[str, _QueueConsumer] = {}
        self._silences: dict[str, int] = {}

    @property
    def consuming(self) -> set[str]:
        return {queue for queue, table in self._tables.items() if table.tag is not None}

    def up(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._silences.clear()

    def down(self) -> None:
        self._connection = None
        queue_consumers, self._tables = self._tables, {}
        for table in queue_consumers.values():
            table.sitting.cancel()

    def sit(self, queue: str, window: int) -> None:
        """Consume that queue, at most so many messages at once; does not wait, and may be repeated."""
        if self._connection is None:
            return
        table = self._tables.get(queue)
        if table is None:
            table = self._tables[queue] = _QueueConsumer()
        if not table.taken:
            table.taken = True
            sitting = self._sit(self._connection, queue, table, window)
            table.sitting = asyncio.get_running_loop().create_task(sitting, name=f"fusee-consume-{queue}")

    async def leave(self) -> None:
        """Consume nothing. The channels stay: what came by them is acknowledged there."""
        for table in list(self._tables.values()):
            tag, table.tag = table.tag, None
            if table.channel is not None and tag is not None:
                with contextlib.suppress(Exception), own_cancels():
                    async with asyncio.timeout(PATIENCE):
                        await table.channel.basic_cancel(tag)
                table.taken = False

    async def _sit(
        self, connection: AbstractConnection, queue: str, table: _QueueConsumer, window: int
    ) -> None:
        try:
            with own_cancels():
                async with asyncio.timeout(PATIENCE):
                    channel = table.channel
                    if channel is None:
                        channel = table.channel = await connection.channel(publisher_confirms=False)
                        channel.closing.add_done_callback(lambda _: self._forget(queue, table))
                        channel.on_consumer_cancel_callbacks.add(lambda _: self._deleted(table))
                    if not table.declared:
                        await self.topology.runs(channel, queue)
                        table.declared = True
                    await channel.basic_qos(prefetch_count=window)
                    consuming = await channel.basic_consume(queue, partial(self.on_message, channel))
            table.tag = consuming.consumer_tag
            self._silences.pop(queue, None)
        except Exception as problem:
            log.warning("could not consume %s: %s: %s", queue, type(problem).__name__, problem)
            if isinstance(problem, TimeoutError):
                await self._silent(connection, queue)
            self._forget(queue, table)

    def _deleted(self, table: _QueueConsumer) -> None:
        """By someone, while we sat there. What it brought is still acknowledged on its channel."""
        table.declared, table.tag, table.taken = False, None, False
        self.changed()

    def _forget(self, queue: str, table: _QueueConsumer) -> None:
        """Its channel is closed, or not answered: tried again in a while, on another one."""

        def forget() -> None:
            if self._tables.get(queue) is table:
                del self._tables[queue]
                self.changed()

        asyncio.get_running_loop().call_later(AGAIN_AFTER, forget)

    async def _silent(self, connection: AbstractConnection, queue: str) -> None:
        """A queue that stays without a leader is deleted: nobody else would ever mend it, and the store has
        all that was in it. (RabbitMQ 3.10 forgets the leader of a queue that is a few seconds old when the
        server is killed; whoever publishes to such a queue is held up with all that it sends.)"""
        self._silences[queue] = self._silences.get(queue, 0) + 1
        if self._silences[queue] < SILENCES:
            return
        del self._silences[queue]
        try:
            with own_cancels():
                async with asyncio.timeout(PATIENCE):
                    channel = await connection.channel(publisher_confirms=False)
                    await channel.queue_delete(queue)
                    await channel.close()
        except Exception as problem:
            log.warning("%s does not answer, and could not be deleted: %r", queue, problem)
        else:
            log.warning("%s did not answer: deleted, to be declared and filled again", queue)
