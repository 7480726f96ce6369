"""Slow requests must not keep a worker from renewing its lease."""

from __future__ import annotations

import asyncio
from typing import Any

from fusee.broker.rabbitmq.rpc_server import PREFETCH
from fusee.broker.store_rpc import StoreRpc
from fusee.errors import Invalid
from tests.broker.cluster import Cluster
from tests.chaos.inside import until


async def test_a_lease_is_renewed_while_very_many_jobs_wait_to_be_created(rabbit: Cluster) -> None:
    (dispatcher,) = rabbit.dispatchers
    assert dispatcher.gateway is not None
    rpc_server, let_go, begun = dispatcher.gateway.rpc_server, asyncio.Event(), 0
    real = rpc_server.store_rpc_of

    class Slow:
        """Creates a job only when `let_go` is set, as if no worker responded to a check."""

        def __init__(self, namespace: str) -> None:
            self.store_rpc = real(namespace)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store_rpc, name)

        async def create_bulk_job(self, **_: Any) -> None:
            nonlocal begun
            begun += 1
            await let_go.wait()
            raise Invalid("no such business")

    rpc_server.store_rpc_of = Slow  # type: ignore[assignment]
    async with rabbit.start_worker("steady", lease_ttl=600.0, heartbeat_interval_seconds=200.0) as node:
        work_source: Any = node.worker.work_source
        job = ({}, None, True, None, None, "me")
        creates = [
            asyncio.create_task(work_source.rpc.call(StoreRpc.create_bulk_job, *job))
            for _ in range(2 * PREFETCH)
        ]
        try:
            await until(lambda: begun >= 1)
            # All of them are in the queue before this one.
            await asyncio.wait_for(work_source.renew(node.worker.session, 600.0, 0), 20)
            assert not any(create.done() for create in creates)
        finally:
            let_go.set()
            ended = await asyncio.gather(*creates, return_exceptions=True)
    assert {str(one) for one in ended} == {"no such business"}, "each of them was answered"
