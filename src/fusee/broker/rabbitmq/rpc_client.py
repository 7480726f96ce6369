"""RpcClient the store by message, repeated until it is answered: a lost message costs time, nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiormq.abc import AbstractConnection, DeliveredMessage

from fusee.broker.messages import Reply, Request, answer_of
from fusee.broker.names import Names
from fusee.broker.rabbitmq.connection import RobustConnection
from fusee.broker.rabbitmq.topology import Topology
from fusee.errors import StoreUnavailable

__all__ = ["RpcClient"]

REPEAT_AFTER = 0.5
REPEAT_AT_MOST = 5.0


@dataclass(slots=True)
class _Asked:
    body: bytes
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RpcClient:
    """One for each worker: it has a queue that replies and hints come to."""

    def __init__(
        self,
        link: RobustConnection,
        names: Names,
        topology: Topology,
        namespace: str,
        hear: Callable[[str], None],
    ) -> None:
        self.link = link
        self.names = names
        self.topology = topology
        self.namespace = namespace
        self.hear = hear
        self._replies: str | None = None
        self._open: dict[str, _Asked] = {}
        link.on_up(self._set_up, self._tear_down)

    async def ask(self, call: str, *args: Any, within: float | None = None) -> Any:
        """What the store answers, or raises; waits as long as that takes, or at most `within` seconds."""
        key = secrets.token_hex(12)
        asked = _Asked(Request(self.namespace, call, list(args)).encode())
        self._open[key] = asked
        try:
            async with asyncio.timeout(within):
                pause = REPEAT_AFTER
                while True:
                    await self._send(key, asked)
                    with contextlib.suppress(TimeoutError):
                        reply = await asyncio.wait_for(asyncio.shield(asked.reply), pause)
                        return answer_of(call, reply)
                    pause = min(REPEAT_AT_MOST, pause * 2)
        except TimeoutError:
            raise StoreUnavailable(f"{call}: no dispatcher answered within {within:g} s") from None
        finally:
            del self._open[key]

    async def _send(self, key: str, asked: _Asked) -> None:
        if self._replies is not None:
            with contextlib.suppress(Exception):  # it is sent again when the link is up again
                await self.link.send(
                    self.names.status, asked.body, correlation_id=key, reply_to=self._replies
                )

    async def _set_up(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        await self.topology.dead(channel)
        await self.topology.status(channel)
        await self.topology.hints(channel)
        declared = await channel.queue_declare("", exclusive=True, auto_delete=True)
        assert declared.queue is not None
        await channel.queue_bind(declared.queue, self.names.hints)
        await channel.basic_consume(declared.queue, self._on_message, no_ack=True)
        self._replies = declared.queue
        for key, asked in list(self._open.items()):
            if not asked.reply.done():
                await self._send(key, asked)

    def _tear_down(self) -> None:
        self._replies = None

    async def _on_message(self, message: DeliveredMessage) -> None:
        key = message.header.properties.correlation_id
        if key is None:
            self.hear(message.body.decode(errors="replace"))
            return
        asked = self._open.get(key)
        if asked is not None and not asked.reply.done():
            asked.reply.set_result(Reply.decode(message.body))
