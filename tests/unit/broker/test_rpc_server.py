"""The RPC server: what it answers, when it acknowledges, and what it never carries out twice."""

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
    """Writes down what was acknowledged."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.rejected: list[int] = []

    async def basic_ack(self, tag: int, wait: bool = True) -> None:
        self.acked.append(tag)

    async def basic_reject(self, tag: int, requeue: bool) -> None:
        self.rejected.append(tag)


class Connection:
    """Writes down what was sent, and to whom."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str | None, RpcReply]] = []

    def on_connect(self, *_: Any) -> None: ...

    async def publish(self, to: str, body: bytes, *, correlation_id: str | None = None) -> None:
        self.sent.append((to, correlation_id, RpcReply.decode(body)))


class StoreRpc:
    """Answers nothing until it is let go, but a slow request and a quick one are let go separately."""

    def __init__(self) -> None:
        self.slow, self.quick = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []
        self.at_once = self.most = 0

    async def create_bulk_job(self, *_: Any) -> None:
        self.calls.append("create_bulk_job")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.slow.wait()
        self.at_once -= 1

    async def renew(self, *_: Any) -> None:
        self.calls.append("renew")
        await self.quick.wait()


class Office:
    """An RPC server, and messages that come to it as the driver brings them: each in a task of its own."""

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
    office = Office()
    office.deliver(1, QUICK, "k", "old queue")
    await until(lambda: office.store_rpc.calls)
    await asyncio.wait_for(office.deliver(2, QUICK, "k", "new queue"), 10)
    assert office.channel.acked == [2], "the first is given to another server if this one dies"
    assert office.connection.sent == []
    await office.end()
    assert office.channel.acked == [2, 1]
    assert office.store_rpc.calls == ["renew"]
    assert [(to, key) for to, key, _ in office.connection.sent] == [("new queue", "k")]
    await office.deliver(3, QUICK, "k", "new queue")
    assert office.store_rpc.calls == ["renew"], "the answer is kept for a while"
    assert (len(office.connection.sent), office.channel.acked) == (2, [2, 1, 3])


async def test_a_request_in_progress_is_known_however_many_come_after_it() -> None:
    office = Office()
    office.deliver(1, SLOW, "slow")
    await until(lambda: office.store_rpc.calls)
    office.store_rpc.quick.set()
    for nr in range(module.REPLIES_KEPT + 10):
        await office.deliver(nr + 2, QUICK, f"k{nr}")
    await asyncio.wait_for(office.deliver(9999, SLOW, "slow"), 10)
    assert office.store_rpc.calls.count("create_bulk_job") == 1
    assert len(office.rpc_server._replies) == module.REPLIES_KEPT
    await office.end()
    assert [key for _, key, _ in office.connection.sent].count("slow") == 1


async def test_requests_that_wait_for_others_hold_no_place_among_the_unacknowledged() -> None:
    office = Office()
    for nr in range(module.MAX_SLOW_RUNNING + 5):
        office.deliver(nr, SLOW, f"slow {nr}")
    await until(lambda: len(office.channel.acked) == module.MAX_SLOW_RUNNING + 5)
    await until(lambda: office.store_rpc.at_once == module.MAX_SLOW_RUNNING)
    await office.end()
    assert office.store_rpc.most == module.MAX_SLOW_RUNNING
    assert len(office.connection.sent) == module.MAX_SLOW_RUNNING + 5


async def test_what_is_too_much_to_be_kept_is_left_to_its_repeat() -> None:
    office = Office()
    for nr in range(module.MAX_SLOW):
        office.deliver(nr, SLOW, f"slow {nr}")
    await until(lambda: office.store_rpc.at_once == module.MAX_SLOW_RUNNING)
    await asyncio.wait_for(office.deliver(1000, SLOW, "one more"), 10)
    assert 1000 in office.channel.acked and office.connection.sent == []
    await office.end()
    assert len(office.store_rpc.calls) == len(office.connection.sent) == module.MAX_SLOW
    await office.deliver(1001, SLOW, "one more")
    assert office.connection.sent[-1][1] == "one more"


async def test_a_request_that_cannot_be_read_is_refused_and_not_acknowledged() -> None:
    office = Office()
    await office.deliver(1, RpcRequest("default", "create_bulk_job", ["too few"]), "k")
    assert (office.channel.rejected, office.channel.acked) == ([1], [])
    ((_, _, reply),) = office.connection.sent
    assert reply.error == "Invalid"
