"""RabbitMQ is gone for a minute, under load: nothing is lost, and work goes on soon after its return."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

import pytest

from fusee.engine.model.states import RunStatus
from tests.broker.cluster import Cluster
from tests.chaos.inside import until
from tools import servers

pytestmark = pytest.mark.chaos

OUTAGE = 60.0
RESUMES_WITHIN = 5.0
"""The longest pause between two tries to connect is 2 s, then sessions are opened anew and lanes read."""


async def test_a_minute_without_the_broker(rabbitmq_server: servers.Server, tmp_path: Path) -> None:
    settings = {"url": rabbitmq_server.url, "prefix": f"t-{secrets.token_hex(4)}", "redispatch_after": 2.0}
    url = f"sqlite:///{tmp_path}/fusee.db"
    async with Cluster("rabbitmq", url, settings).dispatching() as cluster:
        async with cluster.start_worker("one"), cluster.start_worker("two"):
            handles = list(await cluster.app.enqueue_each("work", [{"seconds": 0.05}] * 1500))
            await until(lambda: len(cluster.journal.starts()) > 50)
            try:
                await asyncio.to_thread(rabbitmq_server.halt, kill=True)
            except servers.Unavailable as reason:
                pytest.skip(str(reason))
            handles += await cluster.app.enqueue_each("work", [{}] * 100)  # accepted all the same
            canceled = await cluster.app.enqueue("work")
            await canceled.cancel()
            await asyncio.sleep(OUTAGE)
            before = len(cluster.journal.starts())
            await asyncio.to_thread(rabbitmq_server.start)
            back = time.monotonic()
            await until(lambda: len(cluster.journal.starts()) > before, RESUMES_WITHIN, "the next start")
            print(f"resumed {time.monotonic() - back:.2f} s after the broker answered")
            runs = await cluster.ended(*handles, seconds=120)
        assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
        assert not cluster.journal.started_twice
        assert not cluster.journal.started(canceled)
