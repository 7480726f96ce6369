"""How an app meets its message broker: what it needs of the configuration, and who does what for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusee.batches.model.batch import Batch
from fusee.batches.service.batches import BatchOperations
from fusee.batches.store.intake import TakenOver
from fusee.bulk.model.job import BulkJob
from fusee.bulk.service.jobs import BulkOperations
from fusee.config import BrokerConfig
from fusee.engine.model.run import RunSpec
from fusee.engine.store.contract import Enqueued
from fusee.engine.store.parent import Waiter
from fusee.errors import ConfigError, StoreUnavailable
from fusee.runs.service.runs import RunOperations
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.triggers import Triggered
from fusee.workflows.service import WorkflowOperations
from fusee.workflows.store.start import StartedWorkflow

if TYPE_CHECKING:
    from fusee.broker.rabbitmq.parts import RabbitMQ
    from fusee.broker.rabbitmq.work_source import RabbitWorkSource

__all__ = ["Commands", "NoStore", "rabbitmq_of"]


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


@dataclass(frozen=True, slots=True)
class Commands:
    """What workers without a database ask for by message, carried out by a process that has the store.

    Nothing that comes by message is trusted: who sent it is not known to be the platform's own code."""

    runs: Callable[[str], RunOperations]
    batches: Callable[[str], BatchOperations]
    bulk_jobs: Callable[[str], BulkOperations]
    workflows: Callable[[str], WorkflowOperations]
    tasks: Callable[[str], TaskOperations]

    async def submit(self, namespace: str, specs: Sequence[RunSpec], allow_unknown: bool) -> list[Enqueued]:
        return list(await self.runs(namespace).submit(specs, allow_unknown=allow_unknown))

    async def create_batch(
        self,
        namespace: str,
        fields: dict[str, Any],
        targets: list[Any],
        apply: bool,
        key: str | None,
        waiter: Waiter | None,
    ) -> tuple[Batch, bool]:
        """Several dispatchers may have copies of one request: the one that another took the upload from waits
        for that other, and returns the same batch. It would have to refuse what is being done."""
        batches = self.batches(namespace)
        while True:
            try:
                return await batches.create(fields, targets, apply=apply, idempotency_key=key, waiter=waiter)
            except TakenOver:
                if key is None and waiter is None:  # nobody else can have its place
                    raise
                await batches.upload_ended(key, waiter)

    async def create_bulk_job(
        self,
        namespace: str,
        job: dict[str, Any],
        data: Any,
        start: bool,
        key: str | None,
        waiter: int | None,
        who: str,
    ) -> tuple[BulkJob, bool]:
        create = self.bulk_jobs(namespace).create
        return await create(job, data=data, start=start, idempotency_key=key, waiter=waiter, who=who)

    async def log_bulk_data(self, namespace: str, job_id: int, text: str, who: str, key: str) -> int:
        return await self.bulk_jobs(namespace).log(job_id, text, who=who, idempotency_key=key)

    async def start_workflow(
        self, namespace: str, name: str, params: dict[str, Any], key: str
    ) -> StartedWorkflow:
        return await self.workflows(namespace).start(name, params, idempotency_key=key)

    async def trigger(
        self, namespace: str, ref: str | int, payload: dict[str, Any] | None, key: str, reason: str
    ) -> Triggered:
        trigger = self.tasks(namespace).trigger
        return await trigger(ref, payload=payload, idempotency_key=key, reason=reason)


class NoStore:
    """What health, metrics and keys of a process without a database stand on."""

    def __init__(self, work_sources: Sequence[RabbitWorkSource]) -> None:
        self.work_sources = work_sources

    def for_namespace(self, namespace: str) -> NoStore:
        return self

    async def ping(self) -> None:
        """Ready is who is connected to the broker."""
        for work_source in self.work_sources:
            if not work_source.link.up.is_set():
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
