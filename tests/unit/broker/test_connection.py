"""The connection to RabbitMQ reconnects after every failure, and closing it always ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.broker.rabbitmq import connection as module
from fusee.broker.rabbitmq.connection import NotConnected, RobustConnection
from fusee.events import BrokerConnection, Bus
from tests.chaos.inside import Seen, until

URL = "amqp://guest:guest@127.0.0.1:1/"


class Broken:
    """A connection on which nothing works, not even closing it."""

    def __init__(self) -> None:
        self.closing_began = asyncio.Event()
        self.channels: dict[int, Any] = {}

    async def channel(self, **_: Any) -> Any:
        raise ConnectionError("lost")

    async def close(self) -> None:
        self.closing_began.set()
        await asyncio.Event().wait()


async def test_it_closes_even_if_the_old_connection_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken()

    async def connect(*_: Any, **__: Any) -> Any:
        return broken

    monkeypatch.setattr(module.aiormq, "connect", connect)
    connection = RobustConnection(URL, Bus())
    connection.start()
    await broken.closing_began.wait()
    await asyncio.wait_for(connection.close(), 5)


async def test_a_cancel_by_the_driver_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def connect(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise asyncio.CancelledError

    monkeypatch.setattr(module.aiormq, "connect", connect)
    connection = RobustConnection(URL, Bus())
    connection.start()
    await until(lambda: tries >= 3, 10, "the third try")
    await asyncio.wait_for(connection.close(), 5)


async def test_an_address_without_a_server_is_tried_again() -> None:
    bus = Bus()
    seen = Seen(bus, BrokerConnection)
    connection = RobustConnection(URL, bus)
    connection.start()
    await until(lambda: len(seen.events) >= 3, 10, "the third try")
    assert not any(event.up for event in seen.of(BrokerConnection))
    with pytest.raises(NotConnected):
        await connection.publish_confirmed("queue", b"{}")
    await asyncio.wait_for(connection.close(), 5)
