"""How the parts of an app are built from its settings: workers, dispatchers, servers."""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING, Any

from fusee.access.authenticator import Authenticator
from fusee.access.service import KeyOperations
from fusee.app.core import Core
from fusee.app.dispatcher import Dispatcher
from fusee.app.services import SERVED, AppServices
from fusee.broker import rabbitmq_of
from fusee.broker.remote import ENVIRONMENT, StatusStore
from fusee.broker.store_rpc import StoreRpc
from fusee.config import ApiConfig
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.session import WorkerInfo
from fusee.engine.worker.callbacks import CallbackTokens, OpenCallback
from fusee.engine.worker.executor import Executor
from fusee.engine.worker.plan import Planner
from fusee.engine.worker.settings import WorkerSettings
from fusee.engine.worker.work_source import DatabaseSource, WorkSource
from fusee.engine.worker.worker import Worker
from fusee.errors import ConfigError
from fusee.executors.python.executor import PythonExecutor
from fusee.executors.registry import configured_executors
from fusee.stores import RUN_KINDS
from fusee.version import __version__

if TYPE_CHECKING:
    from fusee.surfaces.grpc.server import GrpcServer
    from fusee.surfaces.rest.services import Services

__all__ = ["build_dispatcher", "build_executors", "build_grpc", "build_services", "build_worker"]


def build_executors(core: Core, open_callback: OpenCallback | None = None) -> dict[str, Executor]:
    """What this process can execute, by the configuration; calls in async mode need `open_callback`."""
    size = core.config.worker.max_concurrent_tasks
    python = PythonExecutor(
        core.handlers,
        # A thread for each slot: a run that waits for one could start after its cancel was acknowledged.
        threads=max(size, core.config.worker.threads),
        processes=size,
        environment={ENVIRONMENT: "1"} if core.storeless else {},
    )
    others = configured_executors(core.config.executors, core.config.namespace, open_callback)
    return {"python": python, **others}


def build_worker(core: Core) -> Worker:
    """A worker with this app's handlers; not running yet."""
    settings = core.config.worker
    rabbitmq = rabbitmq_of(core.config.broker)
    work_source: WorkSource
    if rabbitmq is not None:
        core.work_sources.append(rabbitmq.work_source(core.config.namespace, core.bus))
        work_source = core.work_sources[-1]
    else:
        work_source = DatabaseSource(core.store)
    tokens = CallbackTokens(work_source, core.config.callback_url, lambda: worker.session)
    executors = build_executors(core, tokens.open)
    info = WorkerInfo(
        name=settings.worker_id or f"{socket.gethostname()}-{os.getpid()}",
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        capacity=settings.max_concurrent_tasks,
        executors=tuple(sorted(executors)),
        handlers=core.handlers.served(),
        queues=tuple(settings.queues),
        region=settings.region,
        labels=dict(settings.labels),
        address=settings.address or "",
        cpu=settings.cpu,
        memory=settings.memory,
        policies={h.name: h.retry for h in core.handlers.all() if h.retry != RetryPolicy()},
        defaults={one.name: dict(one.defaults) for one in core.businesses if one.defaults},
        checks=tuple(one.name for one in core.businesses if one.on_create is not None),
        broker="database" if rabbitmq is None else rabbitmq.topology.worker_broker,
    )
    worker = Worker(
        work_source,
        Planner(
            core.handlers,
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
        core.bus,
    )
    return worker


def build_dispatcher(core: Core) -> Dispatcher:
    """A dispatcher; not running yet."""
    settings = core.config.dispatcher
    rabbitmq = rabbitmq_of(core.config.broker)
    gateway = None
    if rabbitmq is not None:
        store = core.store

        def store_rpc(namespace: str) -> StoreRpc:
            own = namespace == store.namespace
            its = store if own else store.for_namespace(namespace)
            return AppServices(core, its, own=own, businesses=core.businesses).rpc()

        gateway = rabbitmq.gateway(core.store, functools.cache(store_rpc), core.bus)
    return Dispatcher(
        core.store,
        core.bus,
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
        redispatch_after=core.config.broker.redispatch_after,
    )


def build_services(core: Core, config: ApiConfig) -> Services:
    """What the REST API needs. From now on the metrics listen, if they are enabled."""
    from fusee.observe import Health, Metrics
    from fusee.surfaces.rest.services import NamespaceServices, Services

    base: Any = StatusStore(lambda: _broker_connected(core)) if core.storeless else core.store

    @functools.cache
    def services_of(namespace: str) -> AppServices:
        own = namespace == core.config.namespace
        return AppServices(core, base if own else base.for_namespace(namespace), own=own)

    @functools.cache
    def by_class(namespace: str) -> NamespaceServices:
        its = services_of(namespace)
        return NamespaceServices(callbacks=its.callbacks, **{noun: getattr(its, noun) for noun in SERVED})

    unreadable = tuple if core.storeless else core.store.context.set_aside.rows

    @functools.cache
    def metrics(namespace: str) -> Metrics:
        its, stored = services_of(namespace), not core.storeless
        return Metrics(
            core.bus if namespace == core.config.namespace else None,
            version=__version__,
            namespace=namespace,
            queues=its.queues.list if stored else None,
            workers=its.workers.list if stored else None,
            bulk=its.bulk_jobs.loads,
            batches=its.store.batches.queries.batch_loads if stored else None,
            totals=its.store.totals.totals if stored else None,
            unreadable=unreadable,
            now_us=core.clock.now_us,
        )

    async def render(namespace: str) -> bytes:
        return await metrics(namespace).render()

    if core.config.metrics.enabled:
        metrics(core.config.namespace)
    health = Health(core.bus, ping=base.ping, revision=base.revision, unreadable=unreadable)
    return Services(
        config=config,
        namespace=core.config.namespace,
        of=by_class,
        authenticator=_authenticator(core, services_of(core.config.namespace).keys),
        tls=core.config.tls,
        health=health.reasons,
        warnings=health.warnings,
        metrics=render if core.config.metrics.enabled else None,
        version=__version__,
    )


def build_grpc(core: Core) -> GrpcServer:
    try:
        from fusee.surfaces.grpc.server import GrpcServer
    except ModuleNotFoundError as error:
        raise ConfigError(f"gRPC needs {error.name}: pip install 'fusee[grpc]'") from None
    store = core.store

    @functools.cache
    def services_of(namespace: str) -> AppServices:
        own = namespace == store.namespace
        return AppServices(core, store if own else store.for_namespace(namespace), own=own)

    return GrpcServer(
        core.config.grpc,
        core.config.tls,
        lambda namespace: services_of(namespace).batches,
        _authenticator(core, services_of(store.namespace).keys),
    )


def _broker_connected(core: Core) -> bool:
    return all(one.connection.connected.is_set() for one in core.work_sources)


def _authenticator(core: Core, keys: KeyOperations) -> Authenticator:
    """The one authenticator of this process: all its surfaces count wrong keys together."""
    if core.shared_authenticator is None or core.shared_authenticator.keys.store is not keys.store:
        auth, tokens = core.config.auth, None
        if auth.jwt.keys is not None:
            from fusee.access.tokens import TokenVerifier

            tokens = TokenVerifier(auth.jwt, core.config.namespace)
        core.shared_authenticator = Authenticator(keys, core.config.namespace, auth.local, tokens)
    return core.shared_authenticator
