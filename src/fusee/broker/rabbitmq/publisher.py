"""Publishing runs: durable, confirmed, many in one message where they are short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import ChannelNotFoundEntity, PublishError

from fusee.broker.messages import Bundle, Message
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import NotConnected, RobustConnection, own_cancels
from fusee.broker.rabbitmq.topology import Topology
from fusee.engine.model.dispatched import Dispatched

__all__ = ["Publisher"]

PATIENCE = 5.0


class Publisher:
    def __init__(self, link: RobustConnection, names: Names, topology: Topology) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self._channel: AbstractChannel | None = None
        self._connection: AbstractConnection | None = None
        self._declared: set[str] = set()
        link.on_up(self._set_up, self._tear_down)

    @property
    def up(self) -> bool:
        return self.link.up.is_set()

    async def publish(self, runs: Iterable[Dispatched], size: Mapping[int, int]) -> int:
        """Returns when the broker has them all; `size` says how many runs of a lane share a message."""
        waiting: dict[tuple[int, int], list[Message]] = {}
        for run in runs:
            waiting.setdefault((run.stands, run.level), []).append(Message.of(run))
        sending = []
        for (lane, level), messages in waiting.items():
            queue = self.names.runs(lane, level)
            await self._declare(queue)
            step = max(1, size.get(lane, 1))
            for start in range(0, len(messages), step):
                body = Bundle(lane, level, messages[start : start + step]).encode()
                sending.append(self._publish(queue, body))
        await asyncio.gather(*sending)
        return len(sending)

    async def _publish(self, queue: str, body: bytes) -> None:
        try:
            await self.link.confirmed(queue, body)
        except PublishError:  # deleted since, as unused
            self._declared.discard(queue)
            await self._declare(queue)
            await self.link.confirmed(queue, body)

    async def ready(self, lane: int, level: int) -> int:
        """Messages in that queue that wait for a worker."""
        queue = self.names.runs(lane, level)
        if self._connection is None:
            raise NotConnected("RabbitMQ is not connected")
        with own_cancels():
            channel = await self._connection.channel(publisher_confirms=False)
        try:
            with own_cancels():
                async with asyncio.timeout(PATIENCE):
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
            if self._channel is None:
                raise NotConnected("RabbitMQ is not connected")
            with own_cancels():
                async with asyncio.timeout(PATIENCE):  # the channel is closed then, and the link made anew
                    await self.topology.runs(self._channel, queue)
            self._declared.add(queue)

    async def _set_up(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(self._channel)

    def _tear_down(self) -> None:
        self._connection = self._channel = None
        self._declared.clear()
