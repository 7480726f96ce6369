"""The RPC client: sends calls of the store as messages and repeats them until they are answered.

A message that is lost costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from aiormq.abc import AbstractConnection, DeliveredMessage

from fusee.broker.messages import RpcReply, RpcRequest, request_of, result_of
from fusee.broker.rabbitmq.connection import RobustConnection, open_channel
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import Call
from fusee.errors import StoreUnavailable

__all__ = ["RpcClient"]

REPEAT_AFTER = 0.5
REPEAT_AT_MOST = 5.0
"""Seconds between two repeats: the pause doubles from one to the other."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Pending:
    body: bytes
    reply: asyncio.Future[RpcReply] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class RpcClient:
    """Implements `Rpc`. Each worker has one; replies and hints come to a queue of its own."""

    def __init__(
        self,
        connection: RobustConnection,
        topology: Topology,
        namespace: str,
        on_hint: Callable[[str], None],
    ) -> None:
        self.connection = connection
        self.topology = topology
        self.namespace = namespace
        self.on_hint = on_hint
        self._reply_queue: str | None = None
        self._pending: dict[str, _Pending] = {}
        connection.on_connect(self._set_up, self._tear_down)

    async def call(self, call: Call[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call_within(None, call, *args, **kwargs)

    async def call_within(
        self, timeout: float | None, call: Call[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        request = request_of(self.namespace, call, args, kwargs)
        sending: Coroutine[Any, Any, RpcReply] = self.send(request, timeout)
        loop = self.connection.loop
        if loop is not None and loop is not asyncio.get_running_loop():
            # From a handler in a thread, which runs an event loop of its own.
            reply = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(sending, loop))
        else:
            reply = await sending
        return result_of(call, reply)

    async def send(self, request: RpcRequest, timeout: float | None) -> RpcReply:
        """Send a request until there is a reply to it."""
        key, pending = secrets.token_hex(12), _Pending(request.encode())
        self._pending[key] = pending
        try:
            async with asyncio.timeout(timeout):
                pause = REPEAT_AFTER
                while True:
                    await self._publish(key, pending)
                    with contextlib.suppress(TimeoutError):
                        return await asyncio.wait_for(asyncio.shield(pending.reply), pause)
                    pause = min(REPEAT_AT_MOST, pause * 2)
        except TimeoutError:
            raise StoreUnavailable(f"{request.call}: no dispatcher answered within {timeout:g} s") from None
        finally:
            del self._pending[key]

    async def _publish(self, key: str, pending: _Pending) -> None:
        if self._reply_queue is not None:
            with contextlib.suppress(Exception):  # it is sent again after the next connect
                await self.connection.publish(
                    self.topology.rpc_queue, pending.body, correlation_id=key, reply_to=self._reply_queue
                )

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await open_channel(connection)
        await self.topology.declare_rpc(channel)
        declared = await channel.queue_declare("", exclusive=True, auto_delete=True)
        assert declared.queue is not None
        await channel.queue_bind(declared.queue, self.topology.hint_exchange)
        await channel.basic_consume(declared.queue, self._on_message, no_ack=True)
        self._reply_queue = declared.queue
        for key, pending in list(self._pending.items()):
            if not pending.reply.done():
                await self._publish(key, pending)

    def _tear_down(self) -> None:
        self._reply_queue = None

    async def _on_message(self, message: DeliveredMessage) -> None:
        key = message.header.properties.correlation_id
        if key is None:
            self.on_hint(message.body.decode(errors="replace"))
            return
        pending = self._pending.get(key)
        if pending is not None and not pending.reply.done():
            pending.reply.set_result(RpcReply.decode(message.body))
