"""The RPC server: makes the calls that workers send to the store.

Any number of processes may serve; RabbitMQ delivers each request to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from fusee.broker.messages import Malformed, RpcReply, RpcRequest, arguments_of
from fusee.broker.rabbitmq.connection import RobustConnection, acknowledge, open_channel, tag_of, write_frame
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import SLOW_CALLS, HandedIn, StoreRpc
from fusee.errors import FuseeError, Invalid, StoreUnavailable
from fusee.events import Bus, RunsGranted

__all__ = ["RpcServer"]

log = logging.getLogger("fusee.broker")

PREFETCH = 64
"""Requests that are delivered and not yet acknowledged."""
MAX_SLOW_RUNNING = 16
"""Slow calls that are made at the same time."""
MAX_SLOW = 64
"""Slow calls that are kept, including those that wait for their turn."""
REPLIES_KEPT = 1000
"""Replies that are kept for requests that are repeated."""


@dataclass(slots=True)
class _InProgress:
    """A request that is being served."""

    reply_to: str | None
    """The queue that its last repeat named: after a reconnect, a client has another one."""
    task: asyncio.Task[None] | None = None


class RpcServer:
    """Keeps nothing that matters: a client that gets no reply repeats its request, to any server."""

    def __init__(
        self,
        connection: RobustConnection,
        topology: Topology,
        store_rpc_of: Callable[[str], StoreRpc],
        bus: Bus,
        on_granted: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.topology = topology
        self.store_rpc_of = store_rpc_of
        """Returns the calls of one namespace."""
        self.bus = bus
        self.on_granted = on_granted
        self._in_progress: dict[str, _InProgress] = {}
        self._replies: dict[str, RpcReply] = {}
        self._slow_running = asyncio.Semaphore(MAX_SLOW_RUNNING)
        self._slow = 0
        connection.on_connect(self._set_up)

    async def send_hint(self, kind: str) -> None:
        """Tell all workers to look. A worker that misses a hint looks at its next poll."""
        with contextlib.suppress(Exception):
            await self.connection.publish("", kind.encode(), exchange=self.topology.hint_exchange)

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await open_channel(connection)
        await self.topology.declare_rpc(channel)
        await channel.basic_qos(prefetch_count=PREFETCH)
        await channel.basic_consume(self.topology.rpc_queue, partial(self._on_message, channel))

    async def _on_message(self, channel: AbstractChannel, message: DeliveredMessage) -> None:
        """Serve a request once, even if it is repeated meanwhile or soon after: when the store is slow, the
        repeats must not make it slower. A server that has forgotten the request returns the same result."""
        tag, properties = tag_of(message), message.header.properties
        key, reply_to = properties.correlation_id, properties.reply_to
        if key and (known := self._in_progress.get(key)) is not None:
            known.reply_to = reply_to
            await acknowledge(channel, tag)
            return
        if key and (kept := self._replies.get(key)) is not None:
            await self._send_reply(reply_to, key, kept)
            await acknowledge(channel, tag)
            return
        try:
            request = RpcRequest.decode(message.body)
            arguments = arguments_of(request)
        except Malformed as problem:
            await self._send_reply(reply_to, key, RpcReply.of_error(Invalid(f"malformed request: {problem}")))
            await write_frame(channel.basic_reject(tag, requeue=False))
            return
        slow = request.call in SLOW_CALLS
        if slow and self._slow >= MAX_SLOW:
            await acknowledge(channel, tag)  # the client repeats it: here, or where there is more room
            return
        serving = _InProgress(reply_to)
        if key:
            self._in_progress[key] = serving
        self._slow += slow
        # A task of its own: the driver cancels this one when it loses the connection.
        serving.task = asyncio.ensure_future(self._serve(key, serving, request, arguments, slow))
        if slow:
            await acknowledge(channel, tag)
        await asyncio.shield(serving.task)
        if not slow:
            await acknowledge(channel, tag)

    async def _serve(
        self,
        key: str | None,
        serving: _InProgress,
        request: RpcRequest,
        arguments: dict[str, Any],
        slow: bool,
    ) -> None:
        try:
            async with self._slow_running if slow else contextlib.nullcontext():
                reply = await self._call(request, arguments)
        finally:
            self._slow -= slow
            if key:
                del self._in_progress[key]
        if key:
            self._replies[key] = reply
            if len(self._replies) > REPLIES_KEPT:
                del self._replies[next(iter(self._replies))]
        await self._send_reply(serving.reply_to, key, reply)

    async def _call(self, request: RpcRequest, arguments: dict[str, Any]) -> RpcReply:
        try:
            answer = await getattr(self.store_rpc_of(request.namespace), request.call)(**arguments)
        except FuseeError as error:
            return RpcReply.of_error(error)
        except Exception as error:
            # Reported as an outage, which may pass: the client decides how often to try again.
            log.exception("the call %s failed", request.call)
            return RpcReply.of_error(StoreUnavailable(f"{request.call}: {type(error).__name__}: {error}"))
        if isinstance(answer, HandedIn) and (accepted := arguments["accepted"]):
            granted = len(answer.granted)
            self.bus.emit(RunsGranted(granted=granted, refused=len(accepted) - granted))
            self.on_granted()
        return RpcReply(answer)

    async def _send_reply(self, reply_to: str | None, key: str | None, reply: RpcReply) -> None:
        if reply_to:
            with contextlib.suppress(Exception):
                await self.connection.publish(reply_to, reply.encode(), correlation_id=key)
