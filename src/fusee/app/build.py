"""The parts that work: workers, dispatchers, servers."""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING, Any

from fusee.access.authenticator import Authenticator
from fusee.access.service import KeyOperations
from fusee.app.declare import Declares
from fusee.app.dispatcher import Dispatcher
from fusee.batches.service.batches import BatchOperations
from fusee.broker import rabbitmq_of
from fusee.broker.remote import ENVIRONMENT, StatusStore
from fusee.bulk.business import Businesses
from fusee.config import ApiConfig
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.session import WorkerInfo
from fusee.engine.worker.callbacks import CallbackTokens, OpenCallback
from fusee.engine.worker.database_source import DatabaseSource
from fusee.engine.worker.executor import Executor
from fusee.engine.worker.plan import Planner
from fusee.engine.worker.settings import WorkerSettings
from fusee.engine.worker.work_source import WorkSource
from fusee.engine.worker.worker import Worker
from fusee.errors import ConfigError
from fusee.executors.python.executor import PythonExecutor
from fusee.executors.registry import configured_executors
from fusee.runs.service.callbacks import CallbackOperations
from fusee.runs.service.queues import QueueOperations
from fusee.runs.service.runs import RunOperations
from fusee.runs.service.workers import WorkerOperations
from fusee.stores import RUN_KINDS
from fusee.version import __version__
from fusee.workflows.service import WorkflowOperations

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fusee.surfaces.grpc.server import GrpcServer
    from fusee.surfaces.rest.services import Services

__all__ = ["Builds"]


class Builds(Declares):
    def executors(self, open_callback: OpenCallback | None = None) -> dict[str, Executor]:
        """What this process can execute, by the configuration; calls in async mode need `open_callback`."""
        size = self.config.worker.max_concurrent_tasks
        python = PythonExecutor(
            self.handlers,
            # A thread for each slot: a run that waits for one could start after its cancel was acknowledged.
            threads=max(size, self.config.worker.threads),
            processes=size,
            environment={ENVIRONMENT: "1"} if self._storeless else {},
        )
        others = configured_executors(self.config.executors, self.config.namespace, open_callback)
        return {"python": python, **others}

    def worker(self) -> Worker:
        """A worker with this app's handlers; not running yet."""
        settings = self.config.worker
        rabbitmq = rabbitmq_of(self.config.broker)
        work_source: WorkSource
        if rabbitmq is not None:
            self._work_sources.append(rabbitmq.work_source(self.config.namespace, self.bus))
            work_source = self._work_sources[-1]
        else:
            work_source = DatabaseSource(self.store)
        tokens = CallbackTokens(work_source, self.config.api.base_url, lambda: worker.session)
        executors = self.executors(tokens.open)
        info = WorkerInfo(
            name=settings.worker_id or f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            capacity=settings.max_concurrent_tasks,
            executors=tuple(sorted(executors)),
            handlers=self.handlers.served(),
            queues=tuple(settings.queues),
            region=settings.region,
            labels=dict(settings.labels),
            address=settings.address or "",
            cpu=settings.cpu,
            memory=settings.memory,
            policies={h.name: h.retry for h in self.handlers.all() if h.retry != RetryPolicy()},
            defaults={one.name: dict(one.defaults) for one in self.businesses if one.defaults},
            checks=tuple(one.name for one in self.businesses if one.on_create is not None),
            broker="database" if rabbitmq is None else rabbitmq.topology.worker_broker,
        )
        worker = Worker(
            work_source,
            Planner(
                self.handlers,
                executors,
                queues=info.queues,
                region=info.region,
                labels=info.labels,
                kinds=RUN_KINDS,
            ),
            info,
            WorkerSettings(
                lease_ttl=settings.lease_ttl,
                heartbeat=settings.heartbeat_interval_seconds,
                poll_interval=settings.poll_interval,
                prefetch=settings.prefetch,
                drain_timeout=settings.drain_timeout,
                grace=settings.grace,
                max_memory=settings.max_memory,
            ),
            self.bus,
        )
        return worker

    def dispatcher(self) -> Dispatcher:
        """A dispatcher; not running yet."""
        settings = self.config.dispatcher
        rabbitmq = rabbitmq_of(self.config.broker)
        gateway = None
        if rabbitmq is not None:
            gateway = rabbitmq.gateway(self.store, functools.cache(self._store_rpc), self.bus)
        return Dispatcher(
            self.store,
            self.bus,
            interval=settings.schedule_interval_seconds,
            recover_interval=settings.recover_interval,
            retention=settings.retention,
            batch_retention=settings.batch_retention,
            prune_batch=settings.prune_batch,
            starvation_after=settings.starvation_after,
            stalled_after=settings.stalled_after,
            alert_webhook=settings.alert_webhook,
            region=settings.region,
            gateway=gateway,
            redispatch_after=self.config.broker.redispatch_after,
        )

    def api(self) -> FastAPI:
        """The REST API over this app's store, which must be open. Call it before `worker()`: a worker
        times its runs only when the metrics already listen."""
        # Here and not above: whoever only runs or enqueues work never loads a web framework.
        from fusee.app.rest import create_api

        return create_api(self._services(self.config.api))

    def status(self) -> FastAPI:
        """Health and metrics alone, for a process without the API; before `worker()`, as with `api()`."""
        from fusee.app.rest import create_status

        where = {"bind_address": self.config.status.bind_address}
        return create_status(self._services(self.config.api.model_copy(update=where)))

    def _services(self, config: ApiConfig) -> Services:
        from fusee.observe import Health, Metrics
        from fusee.surfaces.rest.services import Operations, Services

        base: Any = StatusStore(self._broker_connected) if self._storeless else self.store

        @functools.cache
        def operations(namespace: str) -> Operations:
            own = namespace == self.config.namespace
            store = base if own else base.for_namespace(namespace)
            # A worker of this process serves our own namespace only.
            runs = RunOperations(
                store, self.bus, handlers=self.handlers if own else (), check_payload=self._check_payload
            )
            return Operations(
                runs=runs,
                workers=WorkerOperations(store),
                queues=QueueOperations(store),
                keys=KeyOperations(store.api_keys, self.config.api.keys),
                tasks=self._tasks(store, runs),
                templates=self._templates(store),
                workflows=WorkflowOperations(store.workflows, runs.check),
                batches=BatchOperations(store.batches, self.operations, store.sessions.known_handlers),
                bulk_jobs=self._bulk_jobs(store, self.businesses if own else Businesses(), trusted=False),
                businesses=self._business_registry(store, self.businesses if own else Businesses()),
            )

        keys = KeyOperations(base.api_keys, self.config.api.keys)
        unreadable = tuple if self._storeless else self.store.context.set_aside.rows

        @functools.cache
        def metrics(namespace: str) -> Metrics:
            own, its = namespace == self.config.namespace, operations(namespace)
            store, stored = base if own else base.for_namespace(namespace), not self._storeless
            return Metrics(
                self.bus if own else None,
                version=__version__,
                namespace=namespace,
                queues=its.queues.list if stored else None,
                workers=its.workers.list if stored else None,
                bulk=its.bulk_jobs.loads,
                batches=store.batches.queries.batch_loads if stored else None,
                totals=store.totals.totals if stored else None,
                unreadable=unreadable,
                now_us=self.clock.now_us,
            )

        async def render(namespace: str) -> bytes:
            return await metrics(namespace).render()

        if self.config.metrics.enabled:
            metrics(self.config.namespace)  # it listens from now on
        health = Health(self.bus, ping=base.ping, revision=base.revision, unreadable=unreadable)
        return Services(
            config=config,
            namespace=self.config.namespace,
            operations=operations,
            authenticator=self._authenticate(keys),
            callbacks=CallbackOperations(base, self.bus),
            health=health.reasons,
            warnings=health.warnings,
            metrics=render if self.config.metrics.enabled else None,
            version=__version__,
        )

    def grpc(self) -> GrpcServer:
        """The gRPC server over this app's store, which must be open; needs the extra `grpc`."""
        try:
            from fusee.surfaces.grpc.server import GrpcServer
        except ModuleNotFoundError as error:
            raise ConfigError(f"gRPC needs {error.name}: pip install 'fusee[grpc]'") from None
        store = self.store

        @functools.cache
        def batches(namespace: str) -> BatchOperations:
            own = store if namespace == store.namespace else store.for_namespace(namespace)
            return BatchOperations(own.batches, self.operations, own.sessions.known_handlers)

        return GrpcServer(self.config.grpc, batches, self._authenticate(self.keys))

    def _authenticate(self, keys: KeyOperations) -> Authenticator:
        """The one authenticator of this process: all its surfaces count wrong keys together."""
        if self._authenticator is None or self._authenticator.keys.store is not keys.store:
            auth, tokens = self.config.auth, None
            if auth.jwt.keys is not None:
                from fusee.access.tokens import TokenVerifier

                tokens = TokenVerifier(auth.jwt, self.config.namespace)
            self._authenticator = Authenticator(keys, self.config.namespace, auth.local, tokens)
        return self._authenticator
