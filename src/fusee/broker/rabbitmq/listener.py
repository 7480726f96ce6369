"""The state listener: answers what workers ask of the store. Any number may listen; one gets a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.desk import Desk, HandedIn
from fusee.broker.messages import Malformed, Reply, Request, arguments_of
from fusee.broker.names import Names
from fusee.broker.rabbitmq.link import Link, taken
from fusee.broker.rabbitmq.topology import Topology
from fusee.errors import FuseeError, Invalid, StoreUnavailable
from fusee.events import Bus, RunsGranted

__all__ = ["Listener"]

log = logging.getLogger("fusee.broker")

AT_ONCE = 64
"""Requests answered at the same time."""
REMEMBERED = 1000
"""Answers kept for those who ask again."""


class Listener:
    """Nothing that it remembers matters: an answer that is lost is asked for again, of any listener."""

    def __init__(
        self,
        link: Link,
        names: Names,
        topology: Topology,
        desk_of: Callable[[str], Desk],
        bus: Bus,
        on_granted: Callable[[], None],
    ) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self.desk_of = desk_of
        self.bus = bus
        self.on_granted = on_granted
        self._answers: dict[str, asyncio.Future[Reply]] = {}
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
        tag = message.delivery_tag
        assert tag is not None
        try:
            reply = await self._answer_once(message)
        except Malformed as problem:
            await self._reply(message, Reply.of_error(Invalid(f"malformed request: {problem}")))
            await taken(channel.basic_reject(tag, requeue=False))
            return
        await self._reply(message, reply)
        with contextlib.suppress(Exception):  # delivered again, it is answered again
            await taken(channel.basic_ack(tag, wait=False))

    async def _answer_once(self, message: DeliveredMessage) -> Reply:
        """A request that is repeated while it is answered, or soon after, is not carried out again: when the
        store is slow, workers that ask again must not make it slower. Who has forgotten answers the same."""
        key = message.header.properties.correlation_id
        known = self._answers.get(key) if key else None
        if known is not None:
            return await asyncio.shield(known)
        request = Request.decode(message.body)
        arguments = arguments_of(request)
        answering = asyncio.ensure_future(self._answer(request, arguments))
        if key:
            self._answers[key] = answering
            if len(self._answers) > REMEMBERED:
                del self._answers[next(iter(self._answers))]
        return await asyncio.shield(answering)

    async def _answer(self, request: Request, arguments: list[Any]) -> Reply:
        try:
            answer = await getattr(self.desk_of(request.namespace), request.call)(*arguments)
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

    async def _reply(self, message: DeliveredMessage, reply: Reply) -> None:
        properties = message.header.properties
        if properties.reply_to:
            with contextlib.suppress(Exception):
                await self.link.send(
                    properties.reply_to, reply.encode(), correlation_id=properties.correlation_id
                )
