"""A connection to RabbitMQ that reconnects after every kind of failure.

The driver's own reconnection can hang half-way. Here a lost connection is thrown away as a whole and a new
one is set up, and a periodic check notices a connection that is open but dead.
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
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Basic
from yarl import URL

from fusee.engine.ending import end
from fusee.engine.sockets import keep_alive
from fusee.errors import FuseeError
from fusee.events import BrokerConnection, Bus

__all__ = [
    "TIMEOUT",
    "NotConnected",
    "RobustConnection",
    "acknowledge",
    "driver_call",
    "open_channel",
    "tag_of",
    "write_frame",
]

TIMEOUT = 5.0
"""Seconds for a connection to be made, and for the server to respond to a call."""
WRITE_TIMEOUT = 1.0
"""Seconds for the driver to accept a frame: more than it ever needs while its writer lives."""
CHECK_EVERY = 3.0
"""Seconds between two checks that the server still responds."""
LONGEST_BACKOFF = 1.0
"""Seconds; a worker relies on being connected again soon after the broker is back."""
HEARTBEAT = 10
"""Seconds. After about two missed heartbeats the server requeues what a dead connection held."""

SetUp = Callable[[AbstractConnection], Awaitable[None]]


class NotConnected(FuseeError):
    """RabbitMQ is not connected at the moment."""


@contextmanager
def driver_call() -> Iterator[None]:
    """Raise `NotConnected` when the driver cancels the caller.

    The driver cancels every task that waits for a connection which is lost. A loop that took this for a
    cancel of its own would end."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise NotConnected("the connection was closed") from None


async def write_frame(writing: Awaitable[Any]) -> None:
    """Pass a frame to the driver, or raise `NotConnected` when it does not accept it in time.

    The driver's writer may have died with a full queue, and nothing reports that to the tasks that wait for
    room in it. Without a timeout they would wait for ever."""
    with driver_call():
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await writing
        except TimeoutError:
            raise NotConnected("the connection accepts no more frames") from None


async def open_channel(connection: AbstractConnection) -> AbstractChannel:
    """A channel whose publishes are not confirmed."""
    return await connection.channel(publisher_confirms=False)


def tag_of(message: DeliveredMessage) -> int:
    assert message.delivery_tag is not None
    return message.delivery_tag


async def acknowledge(channel: AbstractChannel, tag: int) -> None:
    """Acknowledge a message. If that fails, RabbitMQ delivers it again, and every receiver expects copies."""
    with contextlib.suppress(Exception):
        await write_frame(channel.basic_ack(tag, wait=False))


class RobustConnection:
    """Call `start()`; the callbacks given to `on_connect` run after each connect; `await close()`."""

    def __init__(self, url: str, bus: Bus, *, name: str = "fusee") -> None:
        self.url = _with_heartbeat(url)
        self.bus = bus
        self.name = name
        self.connected = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which it was started."""
        self._set_ups: list[SetUp] = []
        self._tear_downs: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._was_connected = False
        # Any: the driver's type of a channel does not know that a publish need not wait for the socket.
        self._confirming: Any = None
        self._unconfirmed: Any = None

    def on_connect(self, set_up: SetUp, tear_down: Callable[[], None] = lambda: None) -> None:
        """Call `set_up` with each new connection of the driver, and `tear_down` when it is lost."""
        self._set_ups.append(set_up)
        self._tear_downs.append(tear_down)

    def start(self) -> None:
        """Connect and stay connected, in the background. A second call changes nothing."""
        if self._task is None:
            self.loop = asyncio.get_running_loop()
            self._task = self.loop.create_task(self._stay_connected(), name="fusee-rabbitmq")

    async def close(self) -> None:
        if self._task is not None:
            await end([self._task])
            self._task = None

    # -- publishing

    async def publish_confirmed(self, queue: str, body: bytes) -> None:
        """Publish a durable message and return when RabbitMQ has confirmed it; raises when it may be lost."""
        if self._confirming is None:
            raise NotConnected("RabbitMQ is not connected")
        properties = Basic.Properties(delivery_mode=2, content_type="application/json")
        with driver_call():
            await self._confirming.basic_publish(
                body,
                routing_key=queue,
                properties=properties,
                mandatory=True,
                timeout=TIMEOUT * 2,
                wait=False,
            )

    async def publish(
        self,
        queue: str,
        body: bytes,
        *,
        exchange: str = "",
        correlation_id: str | None = None,
        reply_to: str | None = None,
    ) -> None:
        """Publish without a confirm: a sender to whom the message matters repeats it until it is answered."""
        if self._unconfirmed is None:
            raise NotConnected("RabbitMQ is not connected")
        properties = Basic.Properties(delivery_mode=1, correlation_id=correlation_id, reply_to=reply_to)
        await write_frame(
            self._unconfirmed.basic_publish(
                body, exchange=exchange, routing_key=queue, properties=properties, wait=False
            )
        )

    # -- the connection

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            error: BaseException | None = None
            try:
                with driver_call():
                    await self._connect_and_wait()
            except Exception as problem:
                error = problem
            failures = 0 if self._was_connected else failures + 1
            self._was_connected = False
            self.bus.emit(BrokerConnection(up=False, error=error))
            pause = min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 6))
            await asyncio.sleep(pause * random.uniform(0.5, 1))

    async def _connect_and_wait(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            connection = await aiormq.connect(
                self.url, client_properties={"connection_name": self.name}, transport_factory=_KeepAlive()
            )
        try:
            async with asyncio.timeout(TIMEOUT * 2):
                await self._set_up(connection)
            self.connected.set()
            self._was_connected = True
            self.bus.emit(BrokerConnection(up=True, error=None))
            await self._wait_until_lost(connection)
        finally:
            self._tear_down()
            await _drop(connection)

    async def _set_up(self, connection: AbstractConnection) -> None:
        self._confirming = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._unconfirmed = await open_channel(connection)
        for set_up in self._set_ups:
            await set_up(connection)

    def _tear_down(self) -> None:
        self.connected.clear()
        self._confirming = self._unconfirmed = None
        for tear_down in self._tear_downs:
            tear_down()

    async def _wait_until_lost(self, connection: AbstractConnection) -> None:
        """Raise when the connection or one of its channels closes, or the server no longer responds."""
        probe = await open_channel(connection)
        channels = [channel for channel in connection.channels.values() if channel]
        closing = [connection.closing, *(channel.closing for channel in channels)]
        watched = {asyncio.ensure_future(_closed(part)) for part in closing}
        try:
            while True:
                done, _ = await asyncio.wait(
                    watched, timeout=CHECK_EVERY, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    raise NotConnected("the connection was closed")
                async with asyncio.timeout(TIMEOUT):
                    await probe.basic_qos(prefetch_count=1)
        finally:
            for future in watched:
                future.cancel()
            await asyncio.gather(*watched, return_exceptions=True)


class _KeepAlive(TransportFactory):
    """Connects as the driver does, and has the kernel check that the peer is alive."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        usual = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await usual.create(url, **kwargs)
        keep_alive(writer.transport)
        return reader, writer


async def _closed(closing: asyncio.Future[Any]) -> None:
    """Return when the connection or channel whose future this is has closed."""
    closed = asyncio.Event()
    closing.add_done_callback(lambda _: closed.set())
    await closed.wait()


async def _drop(connection: AbstractConnection) -> None:
    """Close it, and wait at most a second for a server that does not respond."""
    with contextlib.suppress(Exception), driver_call():
        async with asyncio.timeout(1):
            await connection.close()


def _with_heartbeat(url: str) -> str:
    parts = urlsplit(url)
    if "heartbeat=" in parts.query:
        return url
    query = f"{parts.query}&heartbeat={HEARTBEAT}" if parts.query else f"heartbeat={HEARTBEAT}"
    return urlunsplit(parts._replace(query=query))
