"""Publishes runs: durable, confirmed, and many in one message where they are short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelNotFoundEntity, PublishError

from fusee.broker.messages import Bundle, RunMessage
from fusee.broker.rabbitmq.connection import (
    TIMEOUT,
    NotConnected,
    RobustConnection,
    driver_call,
    open_channel,
)
from fusee.broker.rabbitmq.topology import Topology
from fusee.engine.model.run import Dispatched
from fusee.values.chunks import chunks

__all__ = ["Publisher"]


class Publisher:
    def __init__(self, connection: RobustConnection, topology: Topology) -> None:
        self.connection = connection
        self.topology = topology
        self._open: tuple[AbstractConnection, AbstractChannel] | None = None
        self._declared: set[str] = set()
        connection.on_connect(self._set_up, self._tear_down)

    async def publish(self, runs: Iterable[Dispatched], bundle_sizes: Mapping[int, int]) -> int:
        """Publish runs, and return the number of messages once RabbitMQ has confirmed them all.

        `bundle_sizes` says for each lane how many of its runs may share a message; others travel alone."""
        queued: dict[tuple[int, int], list[RunMessage]] = {}
        for run in runs:
            queued.setdefault((run.stands, run.level), []).append(RunMessage.of(run))
        publishing = []
        for (lane, level), messages in queued.items():
            queue = self.topology.run_queue(lane, level)
            await self._declare(queue)
            size = max(1, bundle_sizes.get(lane, 1))
            for part in chunks(messages, size):
                body = Bundle(lane, level, list(part)).encode()
                publishing.append(self._publish(queue, body))
        await asyncio.gather(*publishing)
        return len(publishing)

    async def _publish(self, queue: str, body: bytes) -> None:
        try:
            await self.connection.publish_confirmed(queue, body)
        except PublishError:  # the queue was deleted as unused since it was declared
            self._declared.discard(queue)
            await self._declare(queue)
            await self.connection.publish_confirmed(queue, body)

    async def count_ready(self, lane: int, level: int) -> int:
        """The number of messages in that queue that wait for a worker."""
        queue = self.topology.run_queue(lane, level)
        connection, _ = self._require_open()
        with driver_call():
            channel = await open_channel(connection)  # of its own: a queue that is missing closes it
        try:
            with driver_call():
                async with asyncio.timeout(TIMEOUT):
                    found = await channel.queue_declare(queue, passive=True)
            return found.message_count or 0
        except ChannelNotFoundEntity:
            self._declared.discard(queue)
            return 0
        finally:
            if not channel.is_closed:
                await channel.close()

    async def _declare(self, queue: str) -> None:
        if queue not in self._declared:
            _, channel = self._require_open()
            with driver_call():
                async with asyncio.timeout(TIMEOUT):  # then the driver closes the channel, and we reconnect
                    await self.topology.declare_run_queue(channel, queue)
            self._declared.add(queue)

    def _require_open(self) -> tuple[AbstractConnection, AbstractChannel]:
        if self._open is None:
            raise NotConnected("RabbitMQ is not connected")
        return self._open

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await open_channel(connection)
        self._open = connection, channel
        await self.topology.declare_dead_letters(channel)

    def _tear_down(self) -> None:
        self._open = None
        self._declared.clear()
