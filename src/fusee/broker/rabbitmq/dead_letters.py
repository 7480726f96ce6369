"""Taking what the broker gave up into the store, where people find it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Bundle, Malformed
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection, taken
from fusee.broker.rabbitmq.topology import Topology
from fusee.events import Bus, MessageDeadLettered
from fusee.stores import Store

__all__ = ["DeadLetterConsumer"]

AT_ONCE = 8
AGAIN_AFTER = 1.0


class DeadLetterConsumer:
    def __init__(
        self, link: RobustConnection, names: Names, topology: Topology, store: Store, bus: Bus
    ) -> None:
        self.names = names
        self.topology = topology
        self.store = store
        self.bus = bus
        link.on_up(self._set_up)

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(channel)
        await channel.basic_qos(prefetch_count=AT_ONCE)
        await channel.basic_consume(self.names.dead, lambda message: self._on_message(channel, message))

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        assert tag is not None
        death = _death(message)
        queue, reason = str(death.get("queue", "")), str(death.get("reason", "rejected"))
        try:
            runs = [(run.id, run.attempt) for run in Bundle.decode(message.body).runs]
        except Malformed:
            runs = []
        token = f"{message.header.properties.message_id}:{death.get('time')}"
        try:
            if await self.store.bury(queue, reason, message.body, runs, token):
                self.bus.emit(MessageDeadLettered(queue=queue, reason=reason))
        except Exception:
            # The store does not answer; this queue counts no deliveries, so nothing is lost by waiting.
            await asyncio.sleep(AGAIN_AFTER)
            with contextlib.suppress(Exception):
                await taken(channel.basic_nack(tag, requeue=True))
            return
        with contextlib.suppress(Exception):
            await taken(channel.basic_ack(tag))


def _death(message: DeliveredMessage) -> dict[str, Any]:
    headers: Any = message.header.properties.headers or {}
    deaths = headers.get("x-death") or [{}]
    return dict(deaths[0])
