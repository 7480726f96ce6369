"""Declaring queues and exchanges; whoever comes first makes them, all others find them as they are."""

from __future__ import annotations

from typing import Any

from aiormq.abc import AbstractChannel

from fusee.broker.names import Names

__all__ = ["Topology"]

UNUSED_FOR = 24 * 3600 * 1000
"""Milliseconds after which the queue of a lane that nobody serves or feeds is deleted."""


class Topology:
    def __init__(self, names: Names, *, delivery_limit: int) -> None:
        self.names = names
        self.delivery_limit = delivery_limit

    async def runs(self, channel: AbstractChannel, queue: str) -> None:
        """Replicated and on disk; a message delivered too often without an answer is given up."""
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": self.names.dead,
            "x-delivery-limit": self.delivery_limit,
            "x-expires": UNUSED_FOR,
        }
        await channel.queue_declare(queue, durable=True, arguments=arguments)

    async def status(self, channel: AbstractChannel) -> None:
        """Messages in it are not kept over a restart: whoever sent them repeats them."""
        arguments: dict[str, Any] = {"x-dead-letter-exchange": self.names.dead}
        await channel.queue_declare(self.names.status, durable=True, arguments=arguments)

    async def dead(self, channel: AbstractChannel) -> None:
        name = self.names.dead
        await channel.exchange_declare(name, exchange_type="fanout", durable=True)
        await channel.queue_declare(name, durable=True)
        await channel.queue_bind(name, name)

    async def hints(self, channel: AbstractChannel) -> None:
        await channel.exchange_declare(self.names.hints, exchange_type="fanout", durable=True)
