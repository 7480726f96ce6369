"""Messages between workers and the store arrive as they were sent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fusee.broker import remote
from fusee.broker.messages import (
    VERSION,
    Bundle,
    Malformed,
    RpcReply,
    RpcRequest,
    RunMessage,
    arguments_of,
    request_of,
    result_of,
    signatures,
)
from fusee.broker.rabbitmq import work_source
from fusee.broker.rabbitmq.consumer import PrefetchBuffer
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.store_rpc import HandedIn, LaneList, StoreRpc
from fusee.bulk.model.job import Quarantined
from fusee.bulk.model.segment import Found, SegmentProgress
from fusee.bulk.model.window import Checkpoint
from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import HIGH, LEVELS, LOW, NORMAL, Lane, level_of
from fusee.engine.model.session import WorkerInfo
from fusee.engine.store.contract import Finished, Settlement
from fusee.engine.store.parents import ParentRun
from fusee.errors import Conflict, FuseeError, LeaseLost, NotFound, StoreUnavailable
from fusee.stores import Store

INFO = WorkerInfo(
    name="w",
    host="h",
    pid=1,
    version="1",
    capacity=4,
    executors=("python",),
    handlers=("a",),
    queues=("*",),
    labels={"gpu": "yes"},
    policies={"a": RetryPolicy(max_attempts=3, on=("failed",))},
    broker="rabbitmq/2",
)
ENDED = Ended(End.FAILED, error="no luck", output="…", effect=Effect.NONE, after=1.5)
FINISHED = Finished([1, 2], [1, 4], [None, '{"a":1}'], [7, 7], [2])
BAD = Quarantined(index=3, error="x", attempts=2, item=None, at=0)
PROGRESS = SegmentProgress(checkpoint=Checkpoint(5, b"\x00\xff\x10"), reached=9, ended=4, new=[BAD])


WIRE = {
    "await_business": "run_id attempt job_id callbacks",
    "begin_workflow": "name params key",
    "bulk_job": "job_id",
    "bulk_quarantine": "job_id after limit",
    "business": "name",
    "cancel_requests": "session run_ids",
    "checkpoint": "run_id attempt job_id number progress",
    "conclude_check": "job_id refusal run_id attempt",
    "confirm_start": "session run_id attempt",
    "create_batch": "fields targets apply key parent",
    "create_bulk_job": "job data start key parent_run who",
    "done_ranges": "job_id",
    "drain_asked": "session_ids",
    "drain_session": "session",
    "end_session": "session",
    "give_up_session": "session",
    "hand_back": "accepted",
    "hand_back_segment": "run_id attempt job_id number held_by",
    "hand_in": "session finished receipt accepted used_up",
    "image_of": "run_id",
    "keep_image": "run_id attempt image",
    "lanes": "known",
    "launch_bulk_job": "run_id attempt job_id found callbacks",
    "log_bulk_data": "job_id text who key",
    "open_callback": "session run_id attempt digest timeout signed",
    "open_session": "request info ttl",
    "owned": "session",
    "quarantined_count": "job_id",
    "quarantined_indexes": "job_id offset limit",
    "record_stale": "late",
    "renew": "session ttl running",
    "settle": "session settlements",
    "start_workflow": "name params parent",
    "strategies": "",
    "submit": "specs allow_unknown",
    "take_segment": "run_id attempt job_id number resume_within",
    "trigger_task": "ref payload key reason",
}
"""The calls of version 2 with their arguments, which travel in this order."""


def sent(call: str, *args: Any) -> list[Any]:
    """The arguments of a request after it was encoded and decoded."""
    return list(arguments_of(RpcRequest.decode(RpcRequest("default", call, list(args)).encode())).values())


def answered(call: Callable[..., Any], answer: Any) -> Any:
    return result_of(call, RpcReply.decode(RpcReply(answer).encode()))


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("open_session", ["key", INFO, 30.0]),
        ("hand_in", [3, FINISHED, 9, [(1, 1), (2, 5)], [4]]),
        ("settle", [3, [Settlement(1, 2, ENDED, decide(ENDED, RetryPolicy(max_attempts=2), 0), 7, True)]]),
        ("checkpoint", [1, 2, 3, 4, PROGRESS]),
        ("start_workflow", ["w", {"a": [1, None]}, ParentRun(7, 2)]),
        ("keep_image", [1, 1, {"deep": [{"er": None}]}]),
        ("launch_bulk_job", [1, 2, 3, Found(0, 10, {"size": 3}), ["stop"]]),
    ],
)
def test_arguments_arrive_as_they_were_sent(call: str, arguments: list[Any]) -> None:
    assert sent(call, *arguments) == arguments


def test_answers_arrive_as_they_were_given() -> None:
    handed_in = HandedIn([(1, 2)], [(3, 1, True)])
    assert answered(StoreRpc.hand_in, handed_in) == handed_in
    lanes = LaneList([1], [Lane("default", "q", "python", "h", "eu", "round_robin")])
    assert answered(StoreRpc.lanes, lanes) == lanes
    assert answered(StoreRpc.lanes, None) is None
    assert answered(StoreRpc.renew, None) is None


@pytest.mark.parametrize("kind", [LeaseLost, NotFound, Conflict, StoreUnavailable])
def test_errors_are_raised_where_they_are_asked_for(kind: type[FuseeError]) -> None:
    with pytest.raises(kind, match="because"):
        result_of(StoreRpc.renew, RpcReply.decode(RpcReply.of_error(kind("because")).encode()))


@pytest.mark.parametrize(
    "request_",
    [
        RpcRequest("default", "no_such_call", []),
        RpcRequest("default", "__init__", [1, 2]),
        RpcRequest("default", "renew", [1]),
        RpcRequest("default", "renew", ["one", 2.0, 3]),
        RpcRequest("default", "settle", [1, [{"run_id": 1}]]),
    ],
    ids=lambda request: request.call,
)
def test_an_unknown_or_wrong_call_is_malformed(request_: RpcRequest) -> None:
    with pytest.raises(Malformed):
        arguments_of(request_)


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"lane":1}', b'{"lane":1,"level":0,"runs":[[1]]}']
)
def test_an_unreadable_bundle_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        Bundle.decode(body)


def test_a_field_of_a_later_version_does_no_harm() -> None:
    bundle = Bundle(1, 0, [RunMessage(1, 1, 0, 1, None, None, None, None)])
    richer = msgspec.json.decode(bundle.encode()) | {"added": True}
    assert Bundle.decode(msgspec.json.encode(richer)) == bundle


def test_the_wire_is_that_of_its_version() -> None:
    """Most calls are declared by the protocols of other packages. A call may be added; any other change would
    break workers of an earlier release, so it needs a new `VERSION`."""
    declared = {name: " ".join(one.name for one in call.parameters) for name, call in signatures().items()}
    assert (VERSION, declared) == (2, WIRE)


def test_every_call_that_is_served_is_made_by_a_client() -> None:
    """The opposite cannot happen: a client names a call by the method that serves it."""
    calls = set(signatures())
    clients = inspect.getsource(remote) + inspect.getsource(work_source)
    assert {call for call in calls if not re.search(rf"StoreRpc\.{call}\b", clients)} == set()


def test_arguments_travel_by_position_with_their_defaults() -> None:
    """So that a client may use names, and a server need not know the defaults of another version."""
    request = request_of("default", StoreRpc.take_segment, (1, 2, 3, 4), {})
    assert (request.call, request.args) == ("take_segment", [1, 2, 3, 4, 0.0])
    named = request_of("default", StoreRpc.bulk_quarantine, (7,), {"limit": 5, "after": 2})
    assert named.args == [7, 2, 5]


def test_no_two_parts_of_the_store_share_a_name() -> None:
    """They are one class in the end: the second would silently take the place of the first."""
    owners: dict[str, list[str]] = {}
    for part in Store.__mro__[1:-1]:
        for name, value in vars(part).items():
            if callable(value) and not name.startswith("__"):
                owners.setdefault(name, []).append(part.__name__)
    assert {name: parts for name, parts in owners.items() if len(parts) > 1} == {}


def test_names_of_queues_have_the_version_and_fit_into_255_bytes() -> None:
    topology = Topology("p" * 64)
    assert Topology().run_queue(7, HIGH) == "fusee.v2.runs.7.high"
    assert Topology().run_queue(-12, NORMAL) == "fusee.v2.runs.-12.normal"
    assert max(len(topology.run_queue(-(2**63), level)) for level in LEVELS) < 255


def test_levels() -> None:
    assert [level_of(priority) for priority in (-1000, -1, 0, 1, 1000)] == [LOW, LOW, NORMAL, HIGH, HIGH]


# --- the buffer --------------------------------------------------------------------------------------


async def test_the_buffer_returns_high_levels_first_and_acknowledges_what_was_decided() -> None:
    buffer, acknowledged = PrefetchBuffer(), []

    def message(run: int) -> RunMessage:
        return RunMessage(run, 1, 0, 1, None, None, None, None)

    def put(level: int, *runs: int) -> None:
        async def acknowledge() -> None:
            acknowledged.append(runs)

        buffer.put(Bundle(1, level, [message(run) for run in runs]), acknowledge)

    put(LOW, 1)
    put(NORMAL, 2, 3)
    put(HIGH, 4)
    put(NORMAL, 2)  # a copy
    assert len(buffer) == 4
    first = buffer.take(2)
    assert [held.run.id for held in first] == [4, 2]
    await buffer.decided(first)
    assert acknowledged == [(4,)], "the other message still has a run here"
    rest = buffer.take(10)
    assert [held.run.id for held in rest] == [3, 1]
    put(HIGH, 3)  # a copy of what is asked for just now
    assert len(buffer) == 0
    await buffer.decided(rest)
    assert acknowledged == [(4,), (2, 3), (1,)]
    put(NORMAL, 9)
    buffer.clear()
    put(NORMAL, 9)
    assert len(buffer) == 1, "delivered again by the next connection"
