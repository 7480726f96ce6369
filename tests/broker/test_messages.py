"""Promise 11: messages may be lost, repeated or reordered; that changes latency and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import aiormq
import pytest

from fusee import broker
from fusee.broker.messages import Bundle, RunMessage
from fusee.broker.rabbitmq import RabbitMQ
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.topology import Topology
from fusee.config import BrokerConfig
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import NORMAL
from fusee.engine.model.states import RunStatus
from fusee.events import BrokerConnection, RunsGranted, RunsPublished
from tests.broker.cluster import Cluster
from tests.chaos.inside import Seen, until
from tools import servers

ClusterWith = Callable[[type[RobustConnection]], Cluster]


@pytest.fixture
def cluster_with(database_url: str, rabbitmq: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> ClusterWith:
    """Makes a cluster whose connections are of the given class."""

    def with_connection(kind: type[RobustConnection]) -> Cluster:
        def rabbitmq_of(config: BrokerConfig) -> RabbitMQ | None:
            made = broker.rabbitmq_of(config)
            return None if made is None else replace(made, connection=kind)

        monkeypatch.setattr("fusee.app.build.rabbitmq_of", rabbitmq_of)
        return Cluster("rabbitmq", database_url, rabbitmq)

    return with_connection


class Thrice(RobustConnection):
    """Sends every message three times, with a random delay for each copy."""

    dice = random.Random(11)
    tasks: set[asyncio.Task[None]]

    async def publish_confirmed(self, queue: str, body: bytes) -> None:
        await super().publish_confirmed(queue, body)
        for _ in range(2):
            self._later(partial(super().publish_confirmed, queue, body))

    async def publish(self, queue: str, body: bytes, **rest: Any) -> None:
        for _ in range(3):
            self._later(partial(super().publish, queue, body, **rest))

    def _later(self, sending: Callable[[], Awaitable[None]]) -> None:
        async def wait_and_send() -> None:
            await asyncio.sleep(self.dice.uniform(0, 0.15))
            try:
                await sending()
            except Exception:
                pass  # the connection was closed meanwhile: the message is lost

        self.tasks = getattr(self, "tasks", set())
        task = asyncio.create_task(wait_and_send())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        for task in list(getattr(self, "tasks", ())):
            task.cancel()
        await asyncio.gather(*getattr(self, "tasks", ()), return_exceptions=True)
        await super().close()


class Lossy(RobustConnection):
    """Loses every tenth message of any kind."""

    dice = random.Random(7)

    async def publish_confirmed(self, queue: str, body: bytes) -> None:
        if self.dice.random() > 0.1:
            await super().publish_confirmed(queue, body)

    async def publish(self, queue: str, body: bytes, **rest: Any) -> None:
        if self.dice.random() > 0.1:
            await super().publish(queue, body, **rest)


@pytest.mark.parametrize("kind", [Thrice, Lossy])
async def test_messages_lost_repeated_or_reordered_change_nothing(
    cluster_with: ClusterWith, kind: type[RobustConnection]
) -> None:
    # Two of them, so that a copy of a request reaches one that has not seen the request.
    async with cluster_with(kind).dispatching(dispatchers=2) as cluster:
        await cluster.app.store.queues.set_limits("default", QueueLimits(concurrency=7))
        granted = Seen(cluster.app.bus, RunsGranted)
        patient = {"max_concurrent_tasks": 5, "lease_ttl": 30}
        async with cluster.start_worker("one", **patient), cluster.start_worker("two", **patient):
            payloads = [{"value": n, "seconds": 0.01 * (n % 3)} for n in range(60)]
            handles = await cluster.app.enqueue_each("work", payloads)
            flaky = await cluster.app.enqueue_each("flaky", [{"failures": 0}] * 5)
            waiting = await cluster.app.enqueue("work", delay=60)
            await waiting.cancel()
            runs = await cluster.ended(*handles, *flaky, seconds=60)
        journal = cluster.journal
    assert [run.result for run in runs[:60]] == list(range(60))
    assert {(run.status, run.spent) for run in runs} == {("succeeded", 0)}
    assert not journal.started_twice
    assert journal.most_at_once() <= 7 + 5, "seven of the queue; the flaky ones note no end"
    assert not journal.started(waiting)
    if kind is Thrice:
        assert sum(event.refused for event in granted.of(RunsGranted)) > 0, "copies did arrive"


async def test_a_dispatched_run_that_never_started_is_published_again(
    rabbit: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = rabbit.dispatchers[0].gateway
    assert gateway is not None
    publish, lost = gateway.publish, []

    async def die_before_publishing(runs: Any, size: Any) -> int:
        if lost:
            return await publish(runs, size)
        lost.extend(runs)
        raise RuntimeError("the dispatcher died between marking and publishing")

    async with rabbit.start_worker():
        await rabbit.ended(await rabbit.app.enqueue("work"))
        published = Seen(rabbit.app.bus, RunsPublished)
        monkeypatch.setattr(gateway, "publish", die_before_publishing)
        handle = await rabbit.app.enqueue("work")
        (run,) = await rabbit.ended(handle, seconds=20)
    assert [sent.id for sent in lost] == [handle.id]
    assert (run.status, run.attempt) == ("succeeded", 1)
    assert len(rabbit.journal.starts(handle.id)) == 1
    assert [event.again for event in published.of(RunsPublished)] == [True]


async def test_runs_of_workers_that_have_gone_return_to_the_ready_queue(rabbit: Cluster) -> None:
    async with rabbit.start_worker("gone", max_concurrent_tasks=1) as gone:
        hanging = await rabbit.app.enqueue("hang")
        await until(lambda: rabbit.journal.started(hanging))
        handles = await rabbit.app.enqueue_each("work", [{}] * 5)
        gone.kill()
        await gone.app.close()

    async def all_pending() -> bool:
        runs = [await rabbit.app.store.runs.run(handle.id) for handle in (hanging, *handles)]
        return {run.status for run in runs} == {RunStatus.PENDING}

    await until(all_pending, 20)


async def test_a_message_that_cannot_be_read_is_dead_lettered_at_once(
    rabbit: Cluster, rabbitmq: dict[str, Any]
) -> None:
    store = rabbit.app.store
    async with rabbit.start_worker():
        await rabbit.ended(await rabbit.app.enqueue("work"))
        (lane,) = await store.lanes.all_lanes()
        queue = Topology(rabbitmq["prefix"]).run_queue(lane, NORMAL)
        async with raw_channel(rabbitmq["url"]) as channel:
            await channel.basic_publish(b"not json", routing_key=queue)
            await channel.basic_publish(b"{}", routing_key=Topology(rabbitmq["prefix"]).rpc_queue)
        await until(lambda: _count(rabbit, 2), 10, "two dead letters")
        await rabbit.ended(await rabbit.app.enqueue("work"))  # the dead letters block no other run
    letters = {letter.body: letter for letter in await store.dead_letters.list()}
    assert {(letter.queue, letter.reason) for letter in letters.values()} == {
        (queue, "rejected"),
        (Topology(rabbitmq["prefix"]).rpc_queue, "rejected"),
    }


async def test_a_message_that_kills_its_workers_is_dead_lettered(
    rabbit: Cluster, rabbitmq: dict[str, Any]
) -> None:
    """It is delivered again and again to consumers that die."""
    store = rabbit.app.store
    async with rabbit.start_worker() as node:
        await rabbit.ended(await rabbit.app.enqueue("work"))
        (lane,) = await store.lanes.all_lanes()
        node.worker.stop()
        await node.task
        publish = rabbit.dispatchers[0].publish
        assert publish is not None
        await until(lambda: not publish.fed, 10, "the dispatcher's look at who is there")
        handle = await rabbit.app.enqueue("work")
        (run,) = await store.dispatches.dispatch({lane: 10})
        queue = Topology(rabbitmq["prefix"]).run_queue(lane, NORMAL)
        async with raw_channel(rabbitmq["url"]) as channel:
            await channel.basic_publish(
                Bundle(lane, NORMAL, [RunMessage.of(run)]).encode(), routing_key=queue
            )
        for _ in range(rabbitmq["delivery_limit"] + 1):
            async with raw_channel(rabbitmq["url"]) as channel:
                await _get(channel, queue)
        await until(lambda: _count(rabbit, 1), 10, "a dead letter")
    (letter,) = await store.dead_letters.list()
    assert (letter.reason, letter.run_ids) == ("delivery_limit", (handle.id,))
    await store.dead_letters.requeue(letter.id)
    async with rabbit.start_worker("brave"):
        assert await handle.result(20) is None


async def test_the_broker_is_restarted_under_load(rabbit: Cluster, rabbitmq_server: servers.Server) -> None:
    connections = Seen(rabbit.app.bus, BrokerConnection)
    async with (
        rabbit.start_worker("one", lease_ttl=30, heartbeat_interval_seconds=1),
        rabbit.start_worker("two", lease_ttl=30),
    ):
        handles = await rabbit.app.enqueue_each("work", [{"value": n, "seconds": 0.02} for n in range(600)])
        await until(lambda: len(rabbit.journal.starts()) > 50)
        try:
            await asyncio.to_thread(rabbitmq_server.restart, kill=True)
        except servers.Unavailable as reason:
            pytest.skip(str(reason))
        runs = await rabbit.ended(*handles, seconds=60)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert [run.result for run in runs] == list(range(600))
    assert not rabbit.journal.started_twice
    assert any(not event.up for event in connections.of(BrokerConnection))


# --- a client of the test's own -----------------------------------------------------------------------


class raw_channel:
    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Any:
        self.connection = await aiormq.connect(self.url)
        return await self.connection.channel()

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


async def _get(channel: Any, queue: str) -> None:
    """Take a message, and do not acknowledge it."""

    async def got() -> bool:
        return bool((await channel.basic_get(queue)).body)

    await until(got, 10, "a message")


async def _count(cluster: Cluster, many: int) -> bool:
    return await cluster.app.store.dead_letters.count() == many
