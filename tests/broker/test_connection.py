"""A lost connection blocks no sender, no acknowledgement and no queue."""

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
from fusee.engine.model.run import NORMAL
from fusee.events import Bus
from tests.chaos.inside import until

MANY = 40
"""More than the driver buffers for a busy writer."""


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
        """Publish a message with one run to the queue of lane 7."""
        run = RunMessage(
            id=run_id, attempt=1, spent=0, lane=7, payload="{}", options=None, kind=None, owner_id=None
        )
        await self.robust.publish_confirmed(self.queue, Bundle(7, NORMAL, [run]).encode())

    def lose_the_writer(self) -> None:
        """As if the server was killed: the writer has ended, and senders do not know it yet."""
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
        raise AssertionError("no message waits long enough here")

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
    """A consumer of the queues of lane 7."""
    consumer = make_consumer()
    await until(lambda: connected.queue in consumer.queues.consuming, 20, "a consumer")
    return consumer


async def test_a_sender_on_a_connection_without_a_writer_gets_an_error(connected: Connected) -> None:
    connected.lose_the_writer()
    sending = [connected.robust.publish(connected.topology.rpc_queue, b"{}") for _ in range(MANY)]
    ends = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 20)
    assert NotConnected in {type(end) for end in ends}
    await until(
        lambda: connected.times == 2 and connected.robust.connected.is_set(), 20, "the next connection"
    )
    await connected.robust.publish(connected.topology.rpc_queue, b"{}")


async def test_a_worker_that_acknowledges_on_a_connection_without_a_writer_continues(
    connected: Connected, consumer: Consumer
) -> None:
    """Otherwise the runs that it was just granted would never start, while its lease is renewed for ever."""
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
            with contextlib.suppress(DeliveryError):  # returned, or refused while the queue is deleted
                await connected.put(run_id)
                return True
            return False

        await until(is_there_again, 20, "the queue's return")
        assert [held.run.id for held in await _took(consumer, 1)] == [n + 10]


async def test_a_queue_that_does_not_respond_is_deleted_and_declared_again(
    connected: Connected, make_consumer: Callable[[], Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one that has lost its leader for good: it responds only to declare and delete."""
    monkeypatch.setattr(queue_consumers, "TIMEOUT", 0.3)
    monkeypatch.setattr(queue_consumers, "RETRY_AFTER", 0.1)
    deleted: list[str] = []

    class Leaderless(aiormq.Channel):
        async def basic_consume(self, queue: str, *args: Any, **rest: Any) -> Any:
            if queue == connected.queue and queue not in deleted:
                await asyncio.get_running_loop().create_future()  # never responds
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
    # The first was deleted with the queue, or it would come first. A dispatcher would publish it again.
    assert [held.run.id for held in await _took(consumer, 1)] == [2]


async def _took(consumer: Consumer, many: int) -> list[BufferedRun]:
    taken: list[BufferedRun] = []

    def all_here() -> bool:
        taken.extend(consumer.buffer.take(many - len(taken)))
        return len(taken) == many

    await until(all_here, 20, f"{many} messages")
    return taken
