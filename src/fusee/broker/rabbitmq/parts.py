"""Making the two ends of a RabbitMQ broker from its settings."""

from __future__ import annotations

from dataclasses import dataclass

from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.gateway import RabbitGateway
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.rabbitmq.work_source import RabbitWorkSource
from fusee.broker.store_rpc import Commands
from fusee.events import Bus
from fusee.stores import Store

__all__ = ["RabbitMQ"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQ:
    url: str
    prefix: str = "fusee"
    prefetch: int = 16
    delivery_limit: int = 20
    link: type[RobustConnection] = RobustConnection

    @property
    def names(self) -> Names:
        return Names(self.prefix)

    def _topology(self) -> Topology:
        return Topology(self.names, delivery_limit=self.delivery_limit)

    def work_source(self, namespace: str, bus: Bus, *, name: str = "fusee worker") -> RabbitWorkSource:
        """The end of a worker without a database."""
        link = self.link(self.url, bus, name=name)
        return RabbitWorkSource(
            link, self.names, self._topology(), namespace=namespace, prefetch=self.prefetch
        )

    def gateway(
        self, store: Store, commands: Commands, bus: Bus, *, name: str = "fusee dispatcher"
    ) -> RabbitGateway:
        """The end of a process that has the store."""
        link = self.link(self.url, bus, name=name)
        return RabbitGateway(link, self.names, self._topology(), store, commands, bus)
