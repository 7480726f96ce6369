"""Accepting runs: one, many, in bulk, once a key, inside the caller's transaction."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.store.postgres import COPY_FROM
from fusee.engine.store.tables import runs
from fusee.errors import Conflict, Invalid
from fusee.stores import Store
from fusee.values.names import MOST_PAYLOAD
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYED = RunSpec(handler="work", payload={"n": 1}, idempotency_key="order-17")


async def test_an_accepted_run_is_kept_as_it_was_asked_for(world: World) -> None:
    policy = RetryPolicy(max_attempts=7, backoff="linear", base=3, on=("failed",))
    run_id = await world.enqueue_one(
        payload={"text": "zürich 漢字 \u0000 \\ \" '", "deep": [1, 2.5, None, {"a": True}]},
        queue="mail",
        region="eu",
        priority=-7,
        timeout=12.5,
        retry=policy,
        origin_id=99,
    )
    run = await world.run(run_id)
    assert run.payload == {"text": "zürich 漢字 \u0000 \\ \" '", "deep": [1, 2.5, None, {"a": True}]}
    assert (run.queue, run.region, run.executor, run.handler) == ("mail", "eu", "python", "work")
    assert (run.priority, run.timeout, run.retry, run.origin_id) == (-7, 12.5, policy, 99)
    assert (run.status, run.attempt, run.spent) == ("pending", 0, 0)
    assert (run.created_at, run.due_at) == (START, START)
    assert run.started_at is run.finished_at is run.cancel_requested_at is None
    assert run.namespace == "default"


async def test_nothing_to_enqueue_is_nothing(store: Store) -> None:
    assert await store.run_writer.enqueue([]) == []


async def test_many_are_answered_in_the_order_asked(world: World) -> None:
    specs = [RunSpec(handler=f"work-{n % 3}", payload={"n": n}, priority=n) for n in range(30)]
    added = await world.store.run_writer.enqueue(specs)
    assert [(await world.run(run.id)).payload["n"] for run in added] == list(range(30))
    assert [(await world.run(run.id)).handler for run in added[:3]] == ["work-0", "work-1", "work-2"]
    assert all(run.created for run in added)


@pytest.mark.parametrize("count", [COPY_FROM - 1, COPY_FROM, 2 * COPY_FROM + 1])
async def test_bulk_is_the_same_as_one_by_one(world: World, count: int) -> None:
    specs = [RunSpec(handler=f"work-{n % 2}", payload={"n": n}, priority=n % 5) for n in range(count)]
    ids = [run.id for run in await world.store.run_writer.enqueue(specs)]
    assert len(set(ids)) == count
    query = select(runs.c.id, runs.c.payload, runs.c.priority).where(runs.c.id.in_(ids))
    rows = {row.id: row for row in await world.store.database.read(lambda c: c.execute(query).all())}
    assert [rows[run_id].payload for run_id in ids] == [f'{{"n":{n}}}' for n in range(count)]
    assert [rows[run_id].priority for run_id in ids] == [n % 5 for n in range(count)]
    assert await world.tally() == {"pending": count}


async def test_bulk_with_a_delayed_one_among_them(world: World) -> None:
    specs = [RunSpec(handler="work", delay=60 if n == 7 else 0) for n in range(COPY_FROM + 5)]
    ids = [run.id for run in await world.store.run_writer.enqueue(specs)]
    assert await world.tally() == {"pending": COPY_FROM + 4, "delayed": 1}
    assert (await world.run(ids[7])).status == "delayed"


@pytest.mark.parametrize("count", [1, COPY_FROM, 2 * COPY_FROM + 1])
async def test_each_payload_is_a_run_as_if_it_had_been_enqueued_alone(world: World, count: int) -> None:
    policy = RetryPolicy(max_attempts=7, backoff="linear", base=3)
    options: dict[str, Any] = {
        "queue": "mail", "region": "eu", "priority": -7, "timeout": 12.5, "retry": policy
    }  # fmt: skip
    payloads = [{"n": n, "text": f"zürich 漢字 \n \u0000 \\ {n}"} for n in range(count)]
    added = await world.store.run_writer.enqueue_each(RunSpec(handler="work", **options), payloads)
    ids = [run.id for run in added]
    alone = await world.run(await world.enqueue_one(payload=payloads[0], **options))
    found = [await world.run(run_id) for run_id in (ids[0], ids[-1])]
    assert [run.payload for run in found] == [payloads[0], payloads[-1]]
    assert {replace(run, id=0, payload=None) for run in found} == {replace(alone, id=0, payload=None)}
    kept = {row.id: row.payload for row in await world.rows(runs)}
    assert [json.loads(kept[run_id]) for run_id in ids] == payloads, "answered in the order asked"
    session = await world.session()
    assert [run.id for run in await world.claim(session)] == [*ids, alone.id]


async def test_each_without_a_payload_is_a_run_without_arguments(world: World) -> None:
    added = await world.store.run_writer.enqueue_each(RunSpec(handler="work"), [None, {"n": 1}, {}])
    assert [(await world.run(run.id)).payload for run in added] == [{}, {"n": 1}, {}]
    rows = {row.id: row.payload for row in await world.rows(runs)}
    assert [rows[run.id] for run in added] == [None, '{"n":1}', None], "nothing is stored for nothing"
    assert all(run.created for run in added)


async def test_each_of_nothing_is_nothing(world: World) -> None:
    assert await world.store.run_writer.enqueue_each(RunSpec(handler="work"), []) == []
    assert await world.tally() == {}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"n": object()}, "payload 17 cannot be written as JSON"),
        ({"text": "x" * (MOST_PAYLOAD + 1)}, f"payload 17 is {MOST_PAYLOAD + 12} bytes; at most"),
        ({"text": "漢" * (MOST_PAYLOAD // 3 + 1)}, "payload 17 is .* bytes; at most"),
    ],
    ids=["not-json", "too-long", "too-long-in-bytes"],
)
async def test_each_says_which_payload_is_wrong_and_accepts_none(
    world: World, wrong: dict[str, Any], complaint: str
) -> None:
    payloads: list[dict[str, Any]] = [{"n": n} for n in range(2 * COPY_FROM)]
    payloads[17] = wrong
    with pytest.raises(Invalid, match=complaint) as caught:
        await world.store.run_writer.enqueue_each(RunSpec(handler="work"), payloads)
    assert caught.value.field == "payload"
    assert await world.tally() == {}


async def test_each_wakes_workers(world: World) -> None:
    heard: list[str] = []
    world.store.wakes.on("pending", lambda: heard.append("pending"))
    await world.store.run_writer.enqueue_each(RunSpec(handler="work"), [{"n": 1}])
    assert heard


async def test_callers_at_once_get_ids_of_their_own(world: World) -> None:
    """Some by rows, some by COPY, all drawing numbers at the same time."""
    other = await world.another()
    template, sizes = RunSpec(handler="work"), (1, COPY_FROM - 1, COPY_FROM, 2 * COPY_FROM)

    async def caller(nr: int, store: Store, size: int) -> list[tuple[int, str]]:
        payloads = [{"caller": nr, "n": n} for n in range(size)]
        added = await store.run_writer.enqueue_each(template, payloads)
        return [(run.id, f'{{"caller":{nr},"n":{n}}}') for n, run in enumerate(added)]

    callers = [(store, size) for store in (world.store, other) for size in sizes]
    answers = await asyncio.gather(*(caller(nr, *one) for nr, one in enumerate(callers)))
    told = dict(pair for answer in answers for pair in answer)
    assert len(told) == 2 * sum(sizes)
    assert {row.id: row.payload for row in await world.rows(runs)} == told


async def test_what_is_due_later_is_delayed_by_the_databases_clock(world: World) -> None:
    by_delay = await world.run(await world.enqueue_one(delay=1.5))
    by_time = await world.run(await world.enqueue_one(due_at=START + 10))
    past = await world.run(await world.enqueue_one(due_at=START - 10, delay=99))
    assert (by_delay.status, by_delay.due_at) == ("delayed", START + 1_500_000)
    assert (by_time.status, by_time.due_at) == ("delayed", START + 10)
    assert (past.status, past.due_at) == ("pending", START - 10)


async def test_accepting_wakes_whom_it_concerns(world: World) -> None:
    heard: list[str] = []
    for kind in ("pending", "delayed"):
        world.store.wakes.on(kind, lambda kind=kind: heard.append(kind))
    heard.clear()
    await world.enqueue(delay=5)
    assert "delayed" in heard
    heard.clear()
    await world.enqueue()
    assert "pending" in heard
    heard.clear()
    await world.enqueue(due_at=START - 1)
    assert "pending" in heard, "due already: a worker should hear of it, not only a dispatcher"


# --- keys -------------------------------------------------------------------------------------------


async def test_a_key_used_again_is_harmless(world: World) -> None:
    (first,) = await world.store.run_writer.enqueue([KEYED])
    (again,) = await world.store.run_writer.enqueue([KEYED])
    assert (first.created, again.created) == (True, False)
    assert first.id == again.id
    assert (await world.run(first.id)).idempotency_key == "order-17"
    assert await world.tally() == {"pending": 1}


async def test_a_key_stays_used_after_the_run_has_ended(world: World) -> None:
    session = await world.session()
    (first,) = await world.store.run_writer.enqueue([KEYED])
    await world.finish(session, await world.claim_one(session))
    (again,) = await world.store.run_writer.enqueue([KEYED])
    assert (again.id, again.created) == (first.id, False)


@pytest.mark.parametrize(
    "other",
    [
        RunSpec(handler="work", payload={"n": 2}, idempotency_key="order-17"),
        RunSpec(handler="else", payload={"n": 1}, idempotency_key="order-17"),
        RunSpec(handler="work", payload={"n": 1}, queue="mail", idempotency_key="order-17"),
        RunSpec(handler="work", payload={"n": 1}, timeout=5, idempotency_key="order-17"),
    ],
    ids=["payload", "handler", "queue", "options"],
)
async def test_a_key_used_for_another_request_is_a_conflict(world: World, other: RunSpec) -> None:
    await world.store.run_writer.enqueue([KEYED])
    plain = RunSpec(handler="work")
    with pytest.raises(Conflict, match="'order-17' was used for another request"):
        await world.store.run_writer.enqueue([plain, other])
    assert await world.tally() == {"pending": 1}, "all or none"


async def test_a_key_twice_in_one_call_makes_one_run(world: World) -> None:
    other = RunSpec(handler="work", idempotency_key="order-18")
    first, second, third, plain = await world.store.run_writer.enqueue(
        [KEYED, KEYED, other, RunSpec(handler="work")]
    )
    assert first.id == second.id
    assert (first.created, second.created, third.created, plain.created) == (True, False, True, True)
    assert await world.tally() == {"pending": 3}


async def test_a_keyed_run_may_be_delayed(world: World) -> None:
    spec = RunSpec(handler="work", delay=60, idempotency_key="later")
    (first,) = await world.store.run_writer.enqueue([spec])
    await world.clock.tick(10)
    (again,) = await world.store.run_writer.enqueue([spec])
    assert first.id == again.id
    assert (await world.run(first.id)).due_at == START + 60_000_000


async def test_keys_differ_by_case_and_accent(world: World) -> None:
    specs = [RunSpec(handler="work", idempotency_key=key) for key in ("a", "A", "ä", "a b")]
    assert len({run.id for run in await world.store.run_writer.enqueue(specs)}) == len(specs)


async def test_a_key_belongs_to_its_namespace(world: World) -> None:
    (here,) = await world.store.run_writer.enqueue([KEYED])
    (there,) = await world.store.for_namespace("tenant").run_writer.enqueue([KEYED])
    assert here.id != there.id
    assert there.created


async def test_callers_racing_with_one_key_get_one_run(world: World) -> None:
    other = await world.another()
    keys = [f"key-{n}" for n in range(4)]
    specs = [RunSpec(handler="work", payload={"key": key}, idempotency_key=key) for key in keys]
    answers = await asyncio.gather(
        *(
            store.run_writer.enqueue([spec])
            for spec in specs
            for store in (world.store, other)
            for _ in range(3)
        )
    )
    added = [run for (run,) in answers]
    assert len({run.id for run in added}) == len(keys)
    assert sum(run.created for run in added) == len(keys)
    assert await world.tally() == {"pending": len(keys)}


async def test_callers_racing_to_make_one_lane_make_one_lane(world: World) -> None:
    other = await world.another()
    await asyncio.gather(
        *(world.enqueue(store=store, handler="new") for store in (world.store, other) for _ in range(4))
    )
    assert len(await world.lane_ids(handler="new")) == 1
    assert await world.tally() == {"pending": 8}


@pytest.mark.parametrize("none", [{}, ""], ids=["object", "text"])
async def test_a_run_that_asks_for_no_labels_is_taken_by_any_worker(
    world: World, none: dict[str, str] | str
) -> None:
    """Also when its handler's name has been checked before, so that little of the spec is looked at."""
    ids = [
        run.id
        for _ in range(2)
        for run in await world.store.run_writer.enqueue([RunSpec(handler="any", requires=none)])
    ]
    each = await world.store.run_writer.enqueue_each(RunSpec(handler="any", requires=none), [{}])
    session = await world.session()
    assert {run.id for run in await world.claim(session)} == {*ids, each[0].id}
    assert [(await world.run(run_id)).requires for run_id in ids] == [{}, {}]


# --- in the caller's transaction --------------------------------------------------------------------


async def test_within_the_callers_transaction_a_commit_accepts(world: World) -> None:
    def work(connection: Connection) -> list[int]:
        specs = [RunSpec(handler="within", payload={"n": 1}), RunSpec(handler="within", delay=60), KEYED]
        return [run.id for run in world.store.run_writer.enqueue_within(connection, specs)]

    ids = await world.store.database.write(work)
    assert await world.statuses(ids) == ["pending", "delayed", "pending"]
    session = await world.session()
    assert {run.id for run in await world.claim(session)} == {ids[0], ids[2]}


async def test_within_the_callers_transaction_a_rollback_accepts_nothing(world: World) -> None:
    class CallerFailed(Exception):
        pass

    def work(connection: Connection) -> None:
        world.store.run_writer.enqueue_within(connection, [RunSpec(handler="within"), KEYED])
        raise CallerFailed

    with pytest.raises(CallerFailed):
        await world.store.database.write(work)
    assert await world.tally() == {}
    # The lane went with the transaction: nothing may remember its number.
    run_id = await world.enqueue_one(handler="within")
    assert (await world.run(run_id)).handler == "within"


async def test_within_a_conflict_leaves_the_callers_transaction_usable(world: World) -> None:
    await world.store.run_writer.enqueue([KEYED])
    other = RunSpec(handler="work", payload={"n": 2}, idempotency_key="order-17")

    def work(connection: Connection) -> int:
        with pytest.raises(Conflict):
            world.store.run_writer.enqueue_within(connection, [RunSpec(handler="lost"), other])
        (run,) = world.store.run_writer.enqueue_within(connection, [RunSpec(handler="kept")])
        return run.id

    run_id = await world.store.database.write(work)
    assert (await world.run(run_id)).handler == "kept"
    assert await world.tally() == {"pending": 2}


# --- lanes ------------------------------------------------------------------------------------------


async def test_a_lane_that_another_process_made_is_found_whatever_its_number(world: World) -> None:
    """A smaller number may appear after a greater one: another process made it, or its commit came later."""
    other = await world.another()
    await world.enqueue(store=other, handler="theirs")
    await world.enqueue(handler="ours")
    assert await world.store.lanes.read_new_lanes()
    assert {lane.handler for lane in world.store.lane_map.lanes.values()} == {"ours", "theirs"}
    assert not await world.store.lanes.read_new_lanes()
