"""How an app meets its message broker: what it needs of the configuration, and who starts what for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fusee.config import BrokerConfig
from fusee.errors import ConfigError, StoreUnavailable
from fusee.operations import BatchOperations, BulkOperations
from fusee.store import Waiter

if TYPE_CHECKING:
    from fusee.broker.rabbitmq.depot import RabbitDepot
    from fusee.broker.rabbitmq.parts import RabbitMQ

__all__ = ["LocalStarters", "NoStore", "RemoteBatches", "rabbitmq_of"]


def rabbitmq_of(config: BrokerConfig) -> RabbitMQ | None:
    """The message broker that the configuration names; none when workers claim from the store."""
    if config.type != "rabbitmq":
        return None
    try:
        from fusee.broker.rabbitmq.parts import RabbitMQ
    except ModuleNotFoundError as error:
        raise ConfigError(f"broker.type rabbitmq needs {error.name}: pip install 'fusee[rabbitmq]'") from None
    return RabbitMQ(
        url=config.url,
        prefix=config.prefix,
        prefetch=config.prefetch,
        delivery_limit=config.delivery_limit,
    )


class LocalStarters:
    """Starts batches and bulk jobs for runs of workers that have no database."""

    def __init__(
        self, batches: Callable[[str], BatchOperations], bulk_jobs: Callable[[str], BulkOperations]
    ) -> None:
        self.batches = batches
        self.bulk_jobs = bulk_jobs

    async def start_batch(
        self, namespace: str, fields: dict[str, Any], targets: list[Any], waiter: Waiter
    ) -> None:
        await self.batches(namespace).create(fields, targets, apply=True, waiter=waiter)

    async def start_bulk_job(self, namespace: str, job: dict[str, Any], data: Any, waiter: int) -> None:
        create = self.bulk_jobs(namespace).create
        await create(job, data=data, start=True, waiter=waiter, who=f"run {waiter}")


class RemoteBatches:
    """What the built-in handlers of such a worker call instead."""

    def __init__(self, depot: RabbitDepot) -> None:
        self.depot = depot

    async def create(
        self, fields: dict[str, Any], targets: Sequence[Any], *, apply: bool, waiter: Waiter
    ) -> None:
        await self.depot.start_batch(fields, targets, waiter)

    async def create_bulk_job(
        self, job: dict[str, Any], *, data: Any, start: bool, waiter: int, who: str
    ) -> None:
        await self.depot.start_bulk_job(job, data, waiter)


class NoStore:
    """What health, metrics and keys of a process without a database stand on."""

    def __init__(self, depots: Sequence[RabbitDepot]) -> None:
        self.depots = depots

    def for_namespace(self, namespace: str) -> NoStore:
        return self

    async def ping(self) -> None:
        """Ready is who is connected to the broker."""
        for depot in self.depots:
            if not depot.link.up.is_set():
                raise StoreUnavailable("RabbitMQ is not connected")

    async def revision(self) -> tuple[str, str]:
        return "", ""

    async def known_handlers(self) -> frozenset[str]:
        return frozenset()

    async def count_keys(self) -> int:
        """Only the keys in the configuration open anything."""
        return 0

    async def key_by_digest(self, digest: str) -> None:
        return None
