"""The queues and exchanges on RabbitMQ: their names, and how they are declared.

Every process declares what it uses; the first one creates it. The version of the messages is in each name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiormq.abc import AbstractChannel

from fusee.broker.messages import VERSION
from fusee.engine.model.run import HIGH, LOW, NORMAL

__all__ = ["Topology"]

UNUSED_FOR = 24 * 3600 * 1000
"""Milliseconds after which RabbitMQ deletes the queue of a lane that nobody consumes or declares."""
LEVELS = {HIGH: "high", NORMAL: "normal", LOW: "low"}


@dataclass(frozen=True, slots=True)
class Topology:
    """Installations that share a virtual host, but not a database, need different prefixes."""

    prefix: str = "fusee"
    delivery_limit: int = 20

    def run_queue(self, lane_id: int, level: int) -> str:
        """The queue in which the runs of one lane and level of priority wait for a worker."""
        return f"{self._versioned}.runs.{lane_id}.{LEVELS[level]}"

    @property
    def rpc_queue(self) -> str:
        """The queue of requests to the store."""
        return f"{self._versioned}.status"

    @property
    def hint_exchange(self) -> str:
        """The exchange that tells all workers to look for cancels or drains."""
        return f"{self._versioned}.hints"

    @property
    def dead_letters(self) -> str:
        """The exchange and the queue of dead letters. All versions share it."""
        return f"{self.prefix}.dead"

    @property
    def worker_broker(self) -> str:
        """What the session of a worker that consumes these queues gives as its broker."""
        return f"rabbitmq/{VERSION}"

    @property
    def _versioned(self) -> str:
        return f"{self.prefix}.v{VERSION}"

    async def declare_run_queue(self, channel: AbstractChannel, queue: str) -> None:
        """Replicated and on disk; a message that is delivered too often without an ack is dead-lettered."""
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": self.dead_letters,
            "x-delivery-limit": self.delivery_limit,
            "x-expires": UNUSED_FOR,
        }
        await channel.queue_declare(queue, durable=True, arguments=arguments)

    async def declare_rpc(self, channel: AbstractChannel) -> None:
        """Requests do not survive a restart of RabbitMQ: their senders repeat them."""
        await self.declare_dead_letters(channel)
        arguments: dict[str, Any] = {"x-dead-letter-exchange": self.dead_letters}
        await channel.queue_declare(self.rpc_queue, durable=True, arguments=arguments)
        await channel.exchange_declare(self.hint_exchange, exchange_type="fanout", durable=True)

    async def declare_dead_letters(self, channel: AbstractChannel) -> None:
        name = self.dead_letters
        await channel.exchange_declare(name, exchange_type="fanout", durable=True)
        await channel.queue_declare(name, durable=True)
        await channel.queue_bind(name, name)
