"""RabbitMQ: runs in quorum queues, one for each lane and level of priority; calls of the store as RPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.gateway import RabbitGateway
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.rabbitmq.work_source import RabbitWorkSource
from fusee.broker.store_rpc import StoreRpc
from fusee.engine.store.engine_store import EngineStore
from fusee.events import Bus

__all__ = ["RabbitMQ"]


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """Makes both ends of a broker: a worker's work source and a dispatcher's gateway."""

    url: str
    topology: Topology
    prefetch: int = 16
    connection: type[RobustConnection] = RobustConnection

    def work_source(self, namespace: str, bus: Bus) -> RabbitWorkSource:
        """For a worker without a database."""
        connection = self.connection(self.url, bus, name="fusee worker")
        return RabbitWorkSource(connection, self.topology, namespace=namespace, prefetch=self.prefetch)

    def gateway(self, store: EngineStore, store_rpc_of: Callable[[str], StoreRpc], bus: Bus) -> RabbitGateway:
        """For a process that has the store."""
        connection = self.connection(self.url, bus, name="fusee dispatcher")
        return RabbitGateway(connection, self.topology, store, store_rpc_of, bus)
