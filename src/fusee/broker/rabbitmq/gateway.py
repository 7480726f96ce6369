"""RabbitMQ as seen by a process that has the store: it publishes runs, answers workers, buries what died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import TracebackType
from typing import Self

from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.dead_letters import DeadLetterConsumer
from fusee.broker.rabbitmq.publisher import Publisher
from fusee.broker.rabbitmq.rpc_server import RpcServer
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import Commands, StoreRpc
from fusee.engine.model.dispatched import Dispatched
from fusee.engine.store.wakes import CANCEL, DRAIN
from fusee.events import Bus
from fusee.stores import Store

__all__ = ["RabbitGateway"]

HINTS_APART = 0.05
"""Seconds between two hints at least: one of a kind is enough for all that happened in that time."""


class RabbitGateway:
    """`async with gateway:` it is open; `publisher` and the RPC server share one connection."""

    def __init__(
        self,
        link: RobustConnection,
        names: Names,
        topology: Topology,
        store: Store,
        commands: Commands,
        bus: Bus,
    ) -> None:
        @cache
        def store_rpc_of(namespace: str) -> StoreRpc:
            own = namespace == store.namespace
            return StoreRpc(store if own else store.for_namespace(namespace), commands)

        self.link = link
        self.store = store
        self.worker = names.worker
        self.on_granted: Callable[[], None] = lambda: None
        self.publisher = Publisher(link, names, topology)
        self.rpc_server = RpcServer(link, names, topology, store_rpc_of, bus, lambda: self.on_granted())
        self.dead_letters = DeadLetterConsumer(link, names, topology, store, bus)
        self._told = asyncio.Event()
        self._heard: set[str] = set()
        self._hinting: asyncio.Task[None] | None = None
        self._forget: Callable[[], object] = lambda: None

    @property
    def up(self) -> bool:
        return self.publisher.up

    async def publish(self, runs: Iterable[Dispatched], size: Mapping[int, int]) -> int:
        return await self.publisher.publish(runs, size)

    async def ready(self, lane: int, level: int) -> int:
        return await self.publisher.ready(lane, level)

    async def __aenter__(self) -> Self:
        undo = [self.store.wakes.on(kind, partial(self._hear, kind)) for kind in (CANCEL, DRAIN)]
        self._forget = lambda: [one() for one in undo]
        self._hinting = asyncio.get_running_loop().create_task(self._hint(), name="fusee-hints")
        self.link.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        if self._hinting is not None:
            self._hinting.cancel()
            await asyncio.gather(self._hinting, return_exceptions=True)
        await self.link.close()

    def _hear(self, kind: str) -> None:
        self._heard.add(kind)
        self._told.set()

    async def _hint(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            heard, self._heard = self._heard, set()
            for kind in heard:
                await self.rpc_server.hint(kind)
            await asyncio.sleep(HINTS_APART)
