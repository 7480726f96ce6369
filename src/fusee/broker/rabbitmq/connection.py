"""A connection to RabbitMQ that is made again, whatever happens to it.

The driver's own reconnection can hang half-way; here each connection is thrown away whole and set up anew,
and a pulse notices one that is open and dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Basic
from yarl import URL

from fusee.engine.ending import end
from fusee.engine.sockets import keep_alive
from fusee.errors import FuseeError
from fusee.events import BrokerConnection, Bus

__all__ = ["NotConnected", "RobustConnection", "own_cancels", "taken"]

PATIENCE = 5.0
"""Seconds for a connection to be made, and for the server to answer a pulse."""
TAKEN_WITHIN = 1.0
"""Seconds for the driver to take a frame: more than it ever needs while its writer lives."""
PULSE_EVERY = 3.0
LONGEST_BACKOFF = 1.0
"""Seconds; a worker counts on being connected again soon after the broker is back."""
HEARTBEAT = 10
"""Seconds; the server takes what a dead connection held and gives it to others after about two of them."""

SetUp = Callable[[AbstractConnection], Awaitable[None]]


class NotConnected(FuseeError):
    """RabbitMQ is not connected just now."""


@contextmanager
def own_cancels() -> Iterator[None]:
    """A driver that loses its connection cancels whoever waits for it; taken for a cancel of ours, that would
    end the loop that waits."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise NotConnected("the connection was closed") from None


async def taken(sending: Awaitable[Any]) -> None:
    """Hand a frame to the driver. Its writer may have died with a full queue, which nothing reports to those
    who wait for room in it: they would wait for ever, and with them whatever they were about to do next."""
    with own_cancels():
        try:
            async with asyncio.timeout(TAKEN_WITHIN):
                await sending
        except TimeoutError:
            raise NotConnected("the connection takes nothing any more") from None


class RobustConnection:
    """`link.start()`, then whatever was given to `on_up` is done after each connect; `await link.close()`."""

    def __init__(self, url: str, bus: Bus, *, name: str = "fusee") -> None:
        self.url = _with_heartbeat(url)
        self.bus = bus
        self.name = name
        self.up = asyncio.Event()
        self._set_ups: list[SetUp] = []
        self._tear_downs: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._was_up = False
        # Any: the driver's type of a channel does not know that a publish need not wait for the socket.
        self._sure: Any = None
        self._fast: Any = None

    def on_up(self, set_up: SetUp, tear_down: Callable[[], None] = lambda: None) -> None:
        """Call `set_up` with each new connection, and `tear_down` when it is lost."""
        self._set_ups.append(set_up)
        self._tear_downs.append(tear_down)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="fusee-rabbitmq")

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])
            self._task = None

    # -- sending

    async def confirmed(self, key: str, body: bytes) -> None:
        """Publish to a queue so that it is there for sure, on disk; an error when it may not be."""
        if self._sure is None:
            raise NotConnected("RabbitMQ is not connected")
        properties = Basic.Properties(delivery_mode=2, content_type="application/json")
        with own_cancels():
            await self._sure.basic_publish(
                body, routing_key=key, properties=properties, mandatory=True, timeout=PATIENCE * 2, wait=False
            )

    async def send(
        self,
        key: str,
        body: bytes,
        *,
        exchange: str = "",
        correlation_id: str | None = None,
        reply_to: str | None = None,
    ) -> None:
        """Publish and forget: what matters is repeated by its sender until it is answered."""
        if self._fast is None:
            raise NotConnected("RabbitMQ is not connected")
        properties = Basic.Properties(delivery_mode=1, correlation_id=correlation_id, reply_to=reply_to)
        await taken(
            self._fast.basic_publish(
                body, exchange=exchange, routing_key=key, properties=properties, wait=False
            )
        )

    # -- the connection

    async def _keep(self) -> None:
        failures = 0
        while True:
            error: BaseException | None = None
            try:
                with own_cancels():
                    await self._connect_and_stay()
            except Exception as problem:
                error = problem
            failures = 0 if self._was_up else failures + 1
            self._was_up = False
            self.bus.emit(BrokerConnection(up=False, error=error))
            pause = min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 6))
            await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _connect_and_stay(self) -> None:
        async with asyncio.timeout(PATIENCE):
            connection = await aiormq.connect(
                self.url, client_properties={"connection_name": self.name}, transport_factory=_Watched()
            )
        try:
            async with asyncio.timeout(PATIENCE * 2):
                await self._set_up(connection)
            self.up.set()
            self._was_up = True
            self.bus.emit(BrokerConnection(up=True, error=None))
            await self._until_lost(connection)
        finally:
            self._tear_down()
            await _drop(connection)

    async def _set_up(self, connection: AbstractConnection) -> None:
        self._sure = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._fast = await connection.channel(publisher_confirms=False)
        for set_up in self._set_ups:
            await set_up(connection)

    def _tear_down(self) -> None:
        self.up.clear()
        self._sure = self._fast = None
        for tear_down in self._tear_downs:
            tear_down()

    async def _until_lost(self, connection: AbstractConnection) -> None:
        """Until it closes, one of its channels does, or the server no longer answers."""
        pulse = await connection.channel(publisher_confirms=False)
        parts = [connection, *(channel for channel in connection.channels.values() if channel)]
        watched = {asyncio.ensure_future(_gone(part)) for part in parts}
        try:
            while True:
                done, _ = await asyncio.wait(
                    watched, timeout=PULSE_EVERY, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    raise NotConnected("the connection was closed")
                async with asyncio.timeout(PATIENCE):
                    await pulse.basic_qos(prefetch_count=1)
        finally:
            for future in watched:
                future.cancel()
            await asyncio.gather(*watched, return_exceptions=True)


class _Watched(TransportFactory):
    """Connects as the driver does, and has the kernel watch the peer."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        usual = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await usual.create(url, **kwargs)
        keep_alive(writer.transport)
        return reader, writer


async def _gone(part: Any) -> None:
    """Returns when the connection or channel is closed."""
    closed = asyncio.Event()
    part.closing.add_done_callback(lambda _: closed.set())
    await closed.wait()


async def _drop(connection: AbstractConnection) -> None:
    """Close it, but never wait for a server that does not answer."""
    with contextlib.suppress(Exception), own_cancels():
        async with asyncio.timeout(1):
            await connection.close()


def _with_heartbeat(url: str) -> str:
    parts = urlsplit(url)
    if "heartbeat=" in parts.query:
        return url
    query = f"{parts.query}&heartbeat={HEARTBEAT}" if parts.query else f"heartbeat={HEARTBEAT}"
    return urlunsplit(parts._replace(query=query))
