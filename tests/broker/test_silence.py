"""Connections to RabbitMQ that die without being closed, while new ones work at once."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fusee.broker.rabbitmq import connection as module
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.engine.model.states import RunStatus
from fusee.events import Bus, SessionExpired
from tests.broker.cluster import Cluster
from tests.chaos.inside import Seen, until
from tests.chaos.silence import proxied

BACK = 60.0
"""Seconds to wait for what takes less than 30 on an idle machine; the kernel alone takes 900."""


@pytest.mark.parametrize("whose", ["the worker's", "the dispatcher's"])
async def test_runs_go_on_when_a_connection_dies(
    postgres_url: str, rabbitmq: dict[str, Any], whose: str
) -> None:
    """With default settings; runs continue meanwhile, under the same session."""
    async with proxied(rabbitmq["url"]) as (proxy, url):
        through = {**rabbitmq, "url": url}
        ours, theirs = (through, rabbitmq) if whose == "the dispatcher's" else (rabbitmq, through)
        lease = {"lease_ttl": 30.0, "heartbeat_interval_seconds": 10.0}
        async with Cluster("rabbitmq", postgres_url, ours).dispatching() as cluster:
            cluster.broker_settings = theirs
            async with cluster.start_worker("steady", **lease) as node:
                seen = Seen(node.app.bus, SessionExpired)
                session = node.worker.session
                held = await cluster.app.enqueue("hang")
                await until(lambda: cluster.journal.started(held), BACK)
                assert proxy.go_silent() == 1
                await cluster.ended(await cluster.app.enqueue("work"), seconds=BACK)
                await until(lambda: not proxy.still_held, BACK, "the end of the dead connection")
                cluster.let_go.set()
                (run,) = await cluster.ended(held, seconds=BACK)
                assert (run.status, run.attempt, node.worker.session) == (RunStatus.SUCCEEDED, 1, session)
                assert not seen.events


async def test_the_kernel_watches_the_connection(
    rabbitmq: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    keep_alive = module.keep_alive

    def spied(transport: Any) -> None:
        keep_alive(transport)
        sock = transport.get_extra_info("socket")
        alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        found.append((alive, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)))

    monkeypatch.setattr(module, "keep_alive", spied)
    connection = RobustConnection(rabbitmq["url"], Bus())
    connection.start()
    await asyncio.wait_for(connection.connected.wait(), BACK)
    await connection.close()
    assert found == [(1, 15_000)]
