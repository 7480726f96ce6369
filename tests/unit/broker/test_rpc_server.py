"""The RPC server: what it replies, when it acknowledges, and which calls it never makes twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from fusee.broker.messages import RpcReply, RpcRequest
from fusee.broker.rabbitmq import rpc_server as module
from fusee.broker.rabbitmq.rpc_server import RpcServer
from fusee.broker.rabbitmq.topology import Topology
from fusee.events import Bus
from tests.chaos.inside import until

SLOW = RpcRequest("default", "create_bulk_job", [{}, None, True, None, None, "me"])
QUICK = RpcRequest("default", "renew", [1, 30.0, 0])


class Channel:
    """Records what was acknowledged."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.rejected: list[int] = []

    async def basic_ack(self, tag: int, wait: bool = True) -> None:
        self.acked.append(tag)

    async def basic_reject(self, tag: int, requeue: bool) -> None:
        self.rejected.append(tag)


class Connection:
    """Records what was sent, and to which queue."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str | None, RpcReply]] = []

    def on_connect(self, *_: Any) -> None: ...

    async def publish(self, to: str, body: bytes, *, correlation_id: str | None = None) -> None:
        self.sent.append((to, correlation_id, RpcReply.decode(body)))


class StoreRpc:
    """Its calls return when the events `slow` and `quick` are set."""

    def __init__(self) -> None:
        self.slow, self.quick = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []
        self.at_once = self.most = 0

    async def create_bulk_job(self, **_: Any) -> None:
        self.calls.append("create_bulk_job")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.slow.wait()
        self.at_once -= 1

    async def renew(self, **_: Any) -> None:
        self.calls.append("renew")
        await self.quick.wait()


class Served:
    """An RPC server with messages that are delivered as the driver does: each in a task of its own."""

    def __init__(self) -> None:
        self.connection, self.channel, self.store_rpc = Connection(), Channel(), StoreRpc()
        connection: Any = self.connection
        store_rpc: Any = self.store_rpc
        self.rpc_server = RpcServer(connection, Topology("t"), lambda _: store_rpc, Bus(), lambda: None)
        self.tasks: list[asyncio.Task[None]] = []

    def deliver(self, tag: int, request: RpcRequest, key: str, reply_to: str = "asker") -> asyncio.Task[None]:
        properties = SimpleNamespace(correlation_id=key, reply_to=reply_to)
        header = SimpleNamespace(properties=properties)
        message: Any = SimpleNamespace(delivery_tag=tag, header=header, body=request.encode())
        channel: Any = self.channel
        task = asyncio.create_task(self.rpc_server._on_message(channel, message))
        self.tasks.append(task)
        return task

    async def end(self) -> None:
        self.store_rpc.slow.set()
        self.store_rpc.quick.set()
        await asyncio.gather(*self.tasks)


async def test_a_repeat_of_a_request_in_progress_is_acknowledged_at_once() -> None:
    served = Served()
    served.deliver(1, QUICK, "k", "old queue")
    await until(lambda: served.store_rpc.calls)
    await asyncio.wait_for(served.deliver(2, QUICK, "k", "new queue"), 10)
    assert served.channel.acked == [2], "the first one is delivered to another server if this one dies"
    assert served.connection.sent == []
    await served.end()
    assert served.channel.acked == [2, 1]
    assert served.store_rpc.calls == ["renew"]
    assert [(to, key) for to, key, _ in served.connection.sent] == [("new queue", "k")]
    await served.deliver(3, QUICK, "k", "new queue")
    assert served.store_rpc.calls == ["renew"], "the reply is kept for a while"
    assert (len(served.connection.sent), served.channel.acked) == (2, [2, 1, 3])


async def test_a_request_in_progress_is_known_however_many_come_after_it() -> None:
    served = Served()
    served.deliver(1, SLOW, "slow")
    await until(lambda: served.store_rpc.calls)
    served.store_rpc.quick.set()
    for nr in range(module.REPLIES_KEPT + 10):
        await served.deliver(nr + 2, QUICK, f"k{nr}")
    await asyncio.wait_for(served.deliver(9999, SLOW, "slow"), 10)
    assert served.store_rpc.calls.count("create_bulk_job") == 1
    assert len(served.rpc_server._replies) == module.REPLIES_KEPT
    await served.end()
    assert [key for _, key, _ in served.connection.sent].count("slow") == 1


async def test_slow_requests_are_acknowledged_before_they_are_served() -> None:
    served = Served()
    for nr in range(module.MAX_SLOW_RUNNING + 5):
        served.deliver(nr, SLOW, f"slow {nr}")
    await until(lambda: len(served.channel.acked) == module.MAX_SLOW_RUNNING + 5)
    await until(lambda: served.store_rpc.at_once == module.MAX_SLOW_RUNNING)
    await served.end()
    assert served.store_rpc.most == module.MAX_SLOW_RUNNING
    assert len(served.connection.sent) == module.MAX_SLOW_RUNNING + 5


async def test_a_slow_request_beyond_the_limit_is_left_to_its_repeat() -> None:
    served = Served()
    for nr in range(module.MAX_SLOW):
        served.deliver(nr, SLOW, f"slow {nr}")
    await until(lambda: served.store_rpc.at_once == module.MAX_SLOW_RUNNING)
    await asyncio.wait_for(served.deliver(1000, SLOW, "one more"), 10)
    assert 1000 in served.channel.acked and served.connection.sent == []
    await served.end()
    assert len(served.store_rpc.calls) == len(served.connection.sent) == module.MAX_SLOW
    await served.deliver(1001, SLOW, "one more")
    assert served.connection.sent[-1][1] == "one more"


async def test_a_request_that_cannot_be_read_is_refused_and_not_acknowledged() -> None:
    served = Served()
    await served.deliver(1, RpcRequest("default", "create_bulk_job", ["too few"]), "k")
    assert (served.channel.rejected, served.channel.acked) == ([1], [])
    ((_, _, reply),) = served.connection.sent
    assert reply.error == "Invalid"
