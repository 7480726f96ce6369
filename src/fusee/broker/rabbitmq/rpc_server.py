"""The RPC server: answers what workers ask of the store. Any number may listen; one gets a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Malformed, Reply, Request, arguments_of
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection, taken
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import HandedIn, StoreRpc
from fusee.errors import FuseeError, Invalid, StoreUnavailable
from fusee.events import Bus, RunsGranted

__all__ = ["RpcServer"]

log = logging.getLogger("fusee.broker")

AT_ONCE = 64
"""Requests that are delivered and not yet acknowledged."""
SLOW = frozenset(("create_batch", "create_bulk_job"))
"""Calls that wait for a worker or for a service. They are acknowledged before they are carried out: otherwise
they would fill the places of the renewals, and of the very answers that they wait for."""
SLOW_AT_ONCE = 16
"""Slow calls that are carried out at the same time."""
MOST_SLOW = 64
"""Slow calls that are kept, those that wait for their turn included."""
REMEMBERED = 1000
"""Answers kept for those who ask again."""


@dataclass(slots=True)
class _Open:
    """A request in progress."""

    reply_to: str | None
    """Where its last repeat wants the reply: who asks has another queue after a reconnect."""
    ending: asyncio.Task[None] | None = None


class RpcServer:
    """Nothing that it remembers matters: an answer that is lost is asked for again, of any server."""

    def __init__(
        self,
        link: RobustConnection,
        names: Names,
        topology: Topology,
        store_rpc_of: Callable[[str], StoreRpc],
        bus: Bus,
        on_granted: Callable[[], None],
    ) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self.store_rpc_of = store_rpc_of
        self.bus = bus
        self.on_granted = on_granted
        self._open: dict[str, _Open] = {}
        self._answers: dict[str, Reply] = {}
        self._slow = asyncio.Semaphore(SLOW_AT_ONCE)
        self._slow_kept = 0
        link.on_up(self._set_up)

    async def hint(self, kind: str) -> None:
        """Tell all workers to look; a hint that is lost costs them one poll."""
        with contextlib.suppress(Exception):
            await self.link.send("", kind.encode(), exchange=self.names.hints)

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(channel)
        await self.topology.status(channel)
        await self.topology.hints(channel)
        await channel.basic_qos(prefetch_count=AT_ONCE)
        await channel.basic_consume(self.names.status, lambda message: self._on_message(channel, message))

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        """A request that is repeated while it is answered, or soon after, is not carried out again: when the
        store is slow, workers that ask again must not make it slower. Who has forgotten answers the same."""
        tag, properties = message.delivery_tag, message.header.properties
        assert tag is not None
        key, reply_to = properties.correlation_id, properties.reply_to
        if key and (known := self._open.get(key)) is not None:
            known.reply_to = reply_to
            await self._ack(channel, tag)
            return
        if key and (answer := self._answers.get(key)) is not None:
            await self._reply(reply_to, key, answer)
            await self._ack(channel, tag)
            return
        try:
            request = Request.decode(message.body)
            arguments = arguments_of(request)
        except Malformed as problem:
            await self._reply(reply_to, key, Reply.of_error(Invalid(f"malformed request: {problem}")))
            await taken(channel.basic_reject(tag, requeue=False))
            return
        slow = request.call in SLOW
        if slow and self._slow_kept >= MOST_SLOW:
            await self._ack(channel, tag)  # who asked asks again: here, or where there is more room
            return
        asked = _Open(reply_to)
        if key:
            self._open[key] = asked
        self._slow_kept += slow
        # A task of its own: the driver cancels this one when it loses the connection.
        asked.ending = asyncio.ensure_future(self._carry_out(key, asked, request, arguments, slow))
        if slow:
            await self._ack(channel, tag)
        await asyncio.shield(asked.ending)
        if not slow:
            await self._ack(channel, tag)

    async def _carry_out(
        self, key: str | None, asked: _Open, request: Request, arguments: list[Any], slow: bool
    ) -> None:
        try:
            async with self._slow if slow else contextlib.nullcontext():
                answer = await self._answer(request, arguments)
        finally:
            self._slow_kept -= slow
            if key:
                del self._open[key]
        if key:
            self._answers[key] = answer
            if len(self._answers) > REMEMBERED:
                del self._answers[next(iter(self._answers))]
        await self._reply(asked.reply_to, key, answer)

    async def _ack(self, channel: AbstractChannel, tag: int) -> None:
        with contextlib.suppress(Exception):  # delivered again, it is answered again
            await taken(channel.basic_ack(tag, wait=False))

    async def _answer(self, request: Request, arguments: list[Any]) -> Reply:
        try:
            answer = await getattr(self.store_rpc_of(request.namespace), request.call)(*arguments)
        except FuseeError as error:
            return Reply.of_error(error)
        except Exception as error:
            # Told as something that may pass: whoever asks decides how often to ask again.
            log.exception("could not answer %s", request.call)
            return Reply.of_error(StoreUnavailable(f"{request.call}: {type(error).__name__}: {error}"))
        if isinstance(answer, HandedIn) and arguments[3]:
            granted = len(answer.granted)
            self.bus.emit(RunsGranted(granted=granted, refused=len(arguments[3]) - granted))
            self.on_granted()
        return Reply(answer)

    async def _reply(self, reply_to: str | None, key: str | None, reply: Reply) -> None:
        if reply_to:
            with contextlib.suppress(Exception):
                await self.link.send(reply_to, reply.encode(), correlation_id=key)
