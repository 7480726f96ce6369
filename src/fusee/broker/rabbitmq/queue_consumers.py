"""The queues that a worker consumes: one consumer for each queue.

Each has a channel of its own, so that a queue which does not respond blocks no other. A consumer that ends,
for whatever reason, is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.rabbitmq.connection import TIMEOUT, driver_call, open_channel
from fusee.broker.rabbitmq.topology import Topology

__all__ = ["QueueConsumers"]

log = logging.getLogger("fusee.broker")

RETRY_AFTER = 2.0
"""Seconds before a queue that did not respond is tried again."""
MAX_TIMEOUTS = 2
"""A queue that times out this often in a row, on a connection that responds, is deleted."""

OnMessage = Callable[[AbstractChannel, DeliveredMessage], Coroutine[None, None, None]]


@dataclass(slots=True)
class _QueueConsumer:
    channel: AbstractChannel | None = None
    declared: bool = False
    tag: str | None = None
    wanted: bool = False
    """It consumes, or is about to."""
    starting: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class QueueConsumers:
    """Call `connected` with each connection and `disconnected` when it is lost; in between, `consume` and
    `cancel` as often as needed."""

    def __init__(self, topology: Topology, on_message: OnMessage, changed: Callable[[], None]) -> None:
        self.topology = topology
        self.on_message = on_message
        self.changed = changed
        """Called when a queue should be consumed again."""
        self._connection: AbstractConnection | None = None
        self._consumers: dict[str, _QueueConsumer] = {}
        self._timeouts: dict[str, int] = {}

    @property
    def consuming(self) -> set[str]:
        return {queue for queue, consumer in self._consumers.items() if consumer.tag is not None}

    def connected(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._timeouts.clear()

    def disconnected(self) -> None:
        self._connection = None
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            consumer.starting.cancel()

    def consume(self, queue: str, prefetch: int) -> None:
        """Start to consume that queue, with at most so many unacknowledged messages. Does not wait for it,
        and may be repeated."""
        if self._connection is None:
            return
        consumer = self._consumers.get(queue)
        if consumer is None:
            consumer = self._consumers[queue] = _QueueConsumer()
        if not consumer.wanted:
            consumer.wanted = True
            starting = self._start(self._connection, queue, consumer, prefetch)
            consumer.starting = asyncio.get_running_loop().create_task(
                starting, name=f"fusee-consume-{queue}"
            )

    async def cancel(self) -> None:
        """Consume nothing. The channels stay open: messages are acknowledged on the channel they came by."""
        for consumer in list(self._consumers.values()):
            tag, consumer.tag = consumer.tag, None
            if consumer.channel is not None and tag is not None:
                with contextlib.suppress(Exception), driver_call():
                    async with asyncio.timeout(TIMEOUT):
                        await consumer.channel.basic_cancel(tag)
                consumer.wanted = False

    async def _start(
        self, connection: AbstractConnection, queue: str, consumer: _QueueConsumer, prefetch: int
    ) -> None:
        try:
            with driver_call():
                async with asyncio.timeout(TIMEOUT):
                    channel = consumer.channel
                    if channel is None:
                        channel = consumer.channel = await open_channel(connection)
                        channel.closing.add_done_callback(lambda _: self._retry_later(queue, consumer))
                        channel.on_consumer_cancel_callbacks.add(lambda _: self._queue_deleted(consumer))
                    if not consumer.declared:
                        await self.topology.declare_run_queue(channel, queue)
                        consumer.declared = True
                    await channel.basic_qos(prefetch_count=prefetch)
                    started = await channel.basic_consume(queue, partial(self.on_message, channel))
            consumer.tag = started.consumer_tag
            self._timeouts.pop(queue, None)
        except Exception as problem:
            log.warning("could not consume %s: %s: %s", queue, type(problem).__name__, problem)
            if isinstance(problem, TimeoutError):
                await self._timed_out(connection, queue)
            self._retry_later(queue, consumer)

    def _queue_deleted(self, consumer: _QueueConsumer) -> None:
        """Someone deleted the queue. Messages that came from it are still acknowledged on its channel."""
        consumer.declared, consumer.tag, consumer.wanted = False, None, False
        self.changed()

    def _retry_later(self, queue: str, consumer: _QueueConsumer) -> None:
        """The channel was closed or did not respond: try again after a pause, on another one."""

        def forget() -> None:
            if self._consumers.get(queue) is consumer:
                del self._consumers[queue]
                self.changed()

        asyncio.get_running_loop().call_later(RETRY_AFTER, forget)

    async def _timed_out(self, connection: AbstractConnection, queue: str) -> None:
        """Delete a queue that stays without a leader: nothing else repairs it, and the store has all that was
        in it. RabbitMQ 3.10 forgets the leader of a queue that is a few seconds old when the server is
        killed. A publish to such a queue blocks everything that the publisher sends."""
        self._timeouts[queue] = self._timeouts.get(queue, 0) + 1
        if self._timeouts[queue] < MAX_TIMEOUTS:
            return
        del self._timeouts[queue]
        try:
            with driver_call():
                async with asyncio.timeout(TIMEOUT):
                    channel = await open_channel(connection)
                    await channel.queue_delete(queue)
                    await channel.close()
        except Exception as problem:
            log.warning("%s does not respond and could not be deleted: %r", queue, problem)
        else:
            log.warning("%s did not respond: it was deleted and will be declared and filled again", queue)
