"""A connection that dies takes nobody with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiormq
import pytest
from aiormq.exceptions import DeliveryError

from fusee.broker.messages import Bundle, RunMessage
from fusee.broker.rabbitmq import queue_consumers
from fusee.broker.rabbitmq.connection import NotConnected, RobustConnection
from fusee.broker.rabbitmq.consumer import BufferedRun, Consumer
from fusee.broker.rabbitmq.topology import Topology
from fusee.engine.model.dispatched import NORMAL
from fusee.events import Bus
from tests.chaos.inside import until

MANY = 40
"""More than the driver holds for a writer that is busy."""


class Connected:
    """A robust connection, and the driver's connection that it has at the moment."""

    def __init__(self, rabbitmq: dict[str, Any]) -> None:
        self.topology = Topology(rabbitmq["prefix"], delivery_limit=4)
        self.robust = RobustConnection(rabbitmq["url"], Bus())
        self.times = 0
        self.robust.on_connect(self._remember)

    async def _remember(self, connection: Any) -> None:
        self.connection = connection
        self.times += 1

    @property
    def queue(self) -> str:
        return self.topology.run_queue(7, NORMAL)

    async def put(self, run_id: int) -> None:
        """A message about a run, into the queue of lane 7."""
        run = RunMessage(
            id=run_id, attempt=1, spent=0, lane=7, payload="{}", options=None, kind=None, owner_id=None
        )
        await self.robust.publish_confirmed(self.queue, Bundle(7, NORMAL, [run]).encode())

    def lose_the_writer(self) -> None:
        """As when the server is killed: what writes has ended, and those who send do not know yet."""
        self.connection._writer_task.cancel()


@pytest.fixture
async def connected(rabbitmq: dict[str, Any]) -> AsyncIterator[Connected]:
    made = Connected(rabbitmq)
    made.robust.start()
    await asyncio.wait_for(made.robust.connected.wait(), 20)
    yield made
    await made.robust.close()


@pytest.fixture
async def make_consumer(connected: Connected) -> AsyncIterator[Callable[[], Consumer]]:
    made: list[Consumer] = []

    async def hand_back(held: list[BufferedRun]) -> None:
        raise AssertionError("nothing waits for long here")

    def make() -> Consumer:
        consumer = Consumer(
            connected.robust,
            connected.topology,
            prefetch=MANY,
            arrived=lambda: None,
            hand_back=hand_back,
        )
        consumer.queues.connected(connected.connection)
        consumer.want([7])
        consumer.start()
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        await consumer.close()


@pytest.fixture
async def consumer(connected: Connected, make_consumer: Callable[[], Consumer]) -> Consumer:
    """A worker that sits at the queues of lane 7."""
    consumer = make_consumer()
    await until(lambda: connected.queue in consumer.queues.consuming, 20, "a consumer")
    return consumer


async def test_who_sends_on_a_connection_without_a_writer_is_told_and_not_held(connected: Connected) -> None:
    connected.lose_the_writer()
    sending = [connected.robust.publish(connected.topology.rpc_queue, b"{}") for _ in range(MANY)]
    ends = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 20)
    assert NotConnected in {type(end) for end in ends}
    await until(
        lambda: connected.times == 2 and connected.robust.connected.is_set(), 20, "the next connection"
    )
    await connected.robust.publish(connected.topology.rpc_queue, b"{}")


async def test_a_worker_that_acknowledges_on_a_connection_without_a_writer_goes_on(
    connected: Connected, consumer: Consumer
) -> None:
    """Else the runs that it was just granted would never start, while its lease is renewed for ever."""
    for n in range(MANY):
        await connected.put(n)
    held = await _took(consumer, MANY)
    connected.lose_the_writer()
    await asyncio.wait_for(consumer.buffer.decided(held), 20)


async def test_a_worker_comes_back_to_a_queue_that_someone_deleted(
    connected: Connected, consumer: Consumer
) -> None:
    for n in range(3):
        await connected.put(n)
        await consumer.buffer.decided(await _took(consumer, 1))
        channel = await connected.connection.channel()
        await channel.queue_delete(connected.queue)

        async def is_there_again(run_id: int = n + 10) -> bool:
            with contextlib.suppress(DeliveryError):  # returned, or refused by the queue that goes
                await connected.put(run_id)
                return True
            return False

        await until(is_there_again, 20, "the queue's return")
        assert [held.run.id for held in await _took(consumer, 1)] == [n + 10]


async def test_a_queue_that_stays_silent_is_made_anew(
    connected: Connected, make_consumer: Callable[[], Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that lost its leader for good: it can be declared and deleted, and answers nothing else."""
    monkeypatch.setattr(queue_consumers, "TIMEOUT", 0.3)
    monkeypatch.setattr(queue_consumers, "RETRY_AFTER", 0.1)
    deleted: list[str] = []

    class Leaderless(aiormq.Channel):
        async def basic_consume(self, queue: str, *args: Any, **rest: Any) -> Any:
            if queue == connected.queue and queue not in deleted:
                await asyncio.get_running_loop().create_future()  # no answer, ever
            return await super().basic_consume(queue, *args, **rest)

        async def queue_delete(self, queue: str = "", **rest: Any) -> Any:
            deleted.append(queue)
            return await super().queue_delete(queue, **rest)

    channel = await connected.connection.channel()
    await connected.topology.declare_run_queue(channel, connected.queue)
    await connected.put(1)
    monkeypatch.setattr("aiormq.connection.Channel", Leaderless)
    consumer = make_consumer()
    await until(lambda: connected.queue in consumer.queues.consuming, 20, "the queue's return")
    assert deleted == [connected.queue]
    await connected.put(2)
    # The first is gone with the queue, else it would come first: a dispatcher publishes it again.
    assert [held.run.id for held in await _took(consumer, 1)] == [2]


async def _took(consumer: Consumer, many: int) -> list[BufferedRun]:
    taken: list[BufferedRun] = []

    def all_here() -> bool:
        taken.extend(consumer.buffer.take(many - len(taken)))
        return len(taken) == many

    await until(all_here, 20, f"{many} messages")
    return taken
