"""A connection that dies takes nobody with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fusee.broker.messages import Bundle, Message
from fusee.broker.names import Names
from fusee.broker.rabbitmq.feed import Feed
from fusee.broker.rabbitmq.inbox import Held
from fusee.broker.rabbitmq.link import Link, LinkDown
from fusee.broker.rabbitmq.topology import Topology
from fusee.events import Bus
from fusee.model.dispatch import NORMAL
from tests.chaos.inside import until

MANY = 40
"""More than the driver holds for a writer that is busy."""


class Connected:
    """A link to RabbitMQ, and whatever connection it has just now."""

    def __init__(self, rabbitmq: dict[str, Any]) -> None:
        self.names = Names(rabbitmq["prefix"])
        self.topology = Topology(self.names, delivery_limit=4)
        self.link = Link(rabbitmq["url"], Bus())
        self.times = 0
        self.link.on_up(self._remember)

    async def _remember(self, connection: Any) -> None:
        self.connection = connection
        self.times += 1

    def lose_the_writer(self) -> None:
        """As when the server is killed: what writes has ended, and those who send do not know yet."""
        self.connection._writer_task.cancel()


@pytest.fixture
async def connected(rabbitmq: dict[str, Any]) -> AsyncIterator[Connected]:
    made = Connected(rabbitmq)
    made.link.start()
    await asyncio.wait_for(made.link.up.wait(), 20)
    yield made
    await made.link.close()


async def test_who_sends_on_a_connection_without_a_writer_is_told_and_not_held(connected: Connected) -> None:
    connected.lose_the_writer()
    sending = [connected.link.send(connected.names.status, b"{}") for _ in range(MANY)]
    ends = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 20)
    assert LinkDown in {type(end) for end in ends}
    await until(lambda: connected.times == 2 and connected.link.up.is_set(), 20, "the next connection")
    await connected.link.send(connected.names.status, b"{}")


async def test_a_worker_that_acknowledges_on_a_connection_without_a_writer_goes_on(
    connected: Connected,
) -> None:
    """Else the runs that it was just granted would never start, while its lease is renewed for ever."""
    names, link = connected.names, connected.link

    async def hand_back(held: list[Held]) -> None: ...

    feed = Feed(link, names, connected.topology, prefetch=MANY, arrived=lambda: None, hand_back=hand_back)
    await feed._set_up(connected.connection)
    feed.want([7])
    feed.start()
    try:
        await until(lambda: all(table.tag for table in feed._tables.values()) and bool(feed._tables), 20)
        for n in range(MANY):
            run = Message(
                id=n + 1, attempt=1, spent=0, lane=7, payload="{}", options=None, kind=None, owner_id=None
            )
            await link.confirmed(names.runs(7, NORMAL), Bundle(7, NORMAL, [run]).encode())
        held: list[Held] = []

        async def all_here() -> bool:
            held.extend(feed.inbox.take(MANY))
            return len(held) == MANY

        await until(all_here, 20, "the messages")
        connected.lose_the_writer()
        await asyncio.wait_for(feed.inbox.answered(held), 20)
    finally:
        await feed.close()
