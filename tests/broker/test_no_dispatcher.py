"""A worker on RabbitMQ while no dispatcher serves it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.broker.messages import RpcReply, RpcRequest
from tests.broker.cluster import NOWHERE, Cluster
from tests.chaos.inside import until


@pytest.mark.parametrize("waits_for", ["lanes", "open_session"])
async def test_a_worker_that_waits_for_its_first_reply_can_be_stopped(
    rabbitmq: dict[str, Any], waits_for: str
) -> None:
    cluster = Cluster("rabbitmq", NOWHERE, rabbitmq)
    app = cluster.app
    await app.open(store=False)
    worker = app.worker()
    asked: list[str] = []
    real = worker.work_source.rpc.send

    async def send(request: RpcRequest, timeout: float | None) -> RpcReply:
        asked.append(request.call)
        if request.call != waits_for and request.call in ("lanes", "strategies"):
            return RpcReply(None if request.call == "lanes" else {})  # a dispatcher that vanishes in between
        return await real(request, timeout)

    worker.work_source.rpc.send = send
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: waits_for in asked and worker.work_source.connection.connected.is_set(), 30)
        assert not running.done() and not worker.started.is_set()
        worker.stop()
        done, _ = await asyncio.wait({running}, timeout=30)
        assert done, "it ignored being told to stop"
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await app.close()
