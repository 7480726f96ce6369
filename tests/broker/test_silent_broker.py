"""RabbitMQ does not respond for a while and then continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.events import SessionExpired, SessionLost
from tests.broker.cluster import Cluster
from tests.chaos.inside import Seen, until
from tests.chaos.proxy import through_proxy

LEASE = {"lease_ttl": 12.0, "heartbeat_interval_seconds": 4.0}
SILENCE = 10.0
"""Of 10.8 s: the lease, less the tenth of it by which a worker stops early."""


@pytest.mark.parametrize("who", ["everybody", "the worker"])
async def test_a_silence_shorter_than_the_lease_less_its_margin_costs_nothing(
    postgres_url: str, rabbitmq: dict[str, Any], who: str
) -> None:
    """The silence begins at the worst moment: just before the lease would have been renewed."""
    async with through_proxy(rabbitmq["url"]) as (proxy, url):
        silent = {**rabbitmq, "url": url}
        cluster = Cluster("rabbitmq", postgres_url, silent if who == "everybody" else rabbitmq)
        async with cluster.dispatching():
            cluster.broker_settings = silent
            lost = Seen(cluster.app.bus, SessionLost)
            async with cluster.start_worker("steady", **LEASE) as node:
                expired = Seen(node.app.bus, SessionExpired)
                session = node.worker.session
                once = RunSpec(handler="hang", retry=RetryPolicy(max_attempts=1))
                handles = await cluster.app.enqueue_many([once] * 4)
                await until(lambda: len(cluster.journal.starts()) == 4)
                real = node.worker.work_source.renew
                begun = asyncio.Event()

                async def renew(*arguments: Any) -> None:
                    if not begun.is_set():
                        begun.set()
                        proxy.hold()
                    await real(*arguments)

                node.worker.work_source.renew = renew  # type: ignore[method-assign]
                await asyncio.wait_for(begun.wait(), 20)
                await asyncio.sleep(SILENCE)  # the thing under test: time without a word
                proxy.release()
                cluster.let_go.set()
                runs = await cluster.ended(*handles)
                assert not expired.events and not lost.events
                assert node.worker.session == session
    assert {(run.status, run.attempt) for run in runs} == {(RunStatus.SUCCEEDED, 1)}
