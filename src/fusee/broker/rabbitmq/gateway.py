"""RabbitMQ for a process that has the store: publishes runs, serves workers, collects dead letters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Bundle, Malformed
from fusee.broker.rabbitmq.connection import RobustConnection, acknowledge, open_channel, tag_of, write_frame
from fusee.broker.rabbitmq.publisher import Publisher
from fusee.broker.rabbitmq.rpc_server import RpcServer
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import StoreRpc
from fusee.engine.store.dead_letters import DeadLetters
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.wakes import CANCEL, DRAIN
from fusee.events import Bus, MessageDeadLettered

__all__ = ["DeadLetterConsumer", "RabbitGateway"]

HINT_INTERVAL = 0.05
"""Seconds between two hints at least: one of each kind covers everything that happened in that time."""
DEAD_LETTER_PREFETCH = 8
RETRY_AFTER = 1.0
"""Seconds before a dead letter that the store could not keep is tried again."""


class RabbitGateway:
    """Implements `BrokerGateway`. Open inside `async with gateway:`; its parts share one connection."""

    def __init__(
        self,
        connection: RobustConnection,
        topology: Topology,
        store: EngineStore,
        store_rpc_of: Callable[[str], StoreRpc],
        bus: Bus,
    ) -> None:
        self.connection = connection
        self.wakes = store.wakes
        self.worker_broker = topology.worker_broker
        self.on_granted: Callable[[], None] = lambda: None
        publisher = Publisher(connection, topology)
        self.publish, self.count_ready = publisher.publish, publisher.count_ready
        self.rpc_server = RpcServer(connection, topology, store_rpc_of, bus, lambda: self.on_granted())
        self.dead_letters = DeadLetterConsumer(connection, topology, store.dead_letters, bus)
        self._hinted = asyncio.Event()
        self._hints: set[str] = set()
        self._hinting: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], object] = lambda: None

    @property
    def connected(self) -> bool:
        return self.connection.connected.is_set()

    async def __aenter__(self) -> Self:
        undo = [self.wakes.on(kind, partial(self._hint, kind)) for kind in (CANCEL, DRAIN)]
        self._unsubscribe = lambda: [one() for one in undo]
        self._hinting = asyncio.get_running_loop().create_task(self._send_hints(), name="fusee-hints")
        self.connection.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        if self._hinting is not None:
            self._hinting.cancel()
            await asyncio.gather(self._hinting, return_exceptions=True)
        await self.connection.close()

    def _hint(self, kind: str) -> None:
        self._hints.add(kind)
        self._hinted.set()

    async def _send_hints(self) -> None:
        while True:
            await self._hinted.wait()
            self._hinted.clear()
            hints, self._hints = self._hints, set()
            for kind in hints:
                await self.rpc_server.send_hint(kind)
            await asyncio.sleep(HINT_INTERVAL)


class DeadLetterConsumer:
    """Moves the messages that RabbitMQ gave up into the store, where people find them."""

    def __init__(
        self, connection: RobustConnection, topology: Topology, store: DeadLetters, bus: Bus
    ) -> None:
        self.topology = topology
        self.store = store
        self.bus = bus
        connection.on_connect(self._set_up)

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await open_channel(connection)
        await self.topology.declare_dead_letters(channel)
        await channel.basic_qos(prefetch_count=DEAD_LETTER_PREFETCH)
        await channel.basic_consume(self.topology.dead_letters, partial(self._on_message, channel))

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        tag, death = tag_of(message), _death(message)
        queue, reason = str(death.get("queue", "")), str(death.get("reason", "rejected"))
        try:
            runs = [(run.id, run.attempt) for run in Bundle.decode(message.body).runs]
        except Malformed:
            runs = []
        token = f"{message.header.properties.message_id}:{death.get('time')}"
        try:
            if await self.store.keep(queue, reason, message.body, runs, token):
                self.bus.emit(MessageDeadLettered(queue=queue, reason=reason))
        except Exception:
            # The store does not respond. This queue has no delivery limit, so waiting loses nothing.
            await asyncio.sleep(RETRY_AFTER)
            with contextlib.suppress(Exception):
                await write_frame(channel.basic_nack(tag, requeue=True))
            return
        await acknowledge(channel, tag)


def _death(message: DeliveredMessage) -> dict[str, Any]:
    headers: Any = message.header.properties.headers or {}
    deaths = headers.get("x-death") or [{}]
    return dict(deaths[0])
