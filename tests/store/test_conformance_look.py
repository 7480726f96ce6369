"""Looking: counts, lists, namespaces, sessions, keys; and that namespaces never see each other."""

from __future__ import annotations

import asyncio

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.runs import RunFilter
from fusee.errors import NotFound
from fusee.stores import Store
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _one_of_each(world: World) -> dict[str, int]:
    """status → a run of handler `work` that is so."""
    session = await world.session(ttl=1e6)
    await world.enqueue(8)
    running, succeeded, failed, timed_out, canceled, skipped, retried, released = await world.claim(session)
    await world.finish(session, succeeded)
    await world.settle(session, failed, end=End.ABANDONED)
    await world.settle(session, timed_out, end=End.TIMED_OUT, final=True)
    await world.settle(session, canceled, end=End.CANCELED)
    await world.settle(session, skipped, end=End.SKIPPED)
    await world.settle(session, retried, end=End.FAILED)
    await world.settle(session, released, end=End.RETURNED)
    made = {
        "running": running,
        "succeeded": succeeded,
        "failed": failed,
        "timed_out": timed_out,
        "canceled": canceled,
        "skipped": skipped,
        "delayed": retried,
        "pending": released,
    }
    return {status: run.id for status, run in made.items()}


# --- lists --------------------------------------------------------------------------------------------


async def test_runs_are_listed_by_status(world: World) -> None:
    made = await _one_of_each(world)
    for status, run_id in made.items():
        (run,) = await world.store.runs.runs(RunFilter(status=[RunStatus(status)]))
        assert (run.id, run.status) == (run_id, status)
    several = [RunStatus.RUNNING, RunStatus.FAILED, RunStatus.SUCCEEDED]
    listed = await world.store.runs.runs(RunFilter(status=several))
    assert {run.id for run in listed} == {made[status] for status in several}
    rare = await world.store.runs.runs(RunFilter(status=[RunStatus.FAILED, RunStatus.TIMED_OUT]))
    assert {run.id for run in rare} == {made["failed"], made["timed_out"]}
    assert len(await world.store.runs.runs(RunFilter())) == len(made)
    assert await world.store.runs.runs(RunFilter(status=[RunStatus.MISSED])) == []


async def test_runs_are_listed_by_handler_and_queue(world: World) -> None:
    a = await world.enqueue_one(handler="a")
    b = await world.enqueue_one(handler="b", queue="mail")
    c = await world.enqueue_one(handler="a", queue="mail")

    async def ids(**wanted: str) -> list[int]:
        return [run.id for run in await world.store.runs.runs(RunFilter(**wanted))]  # type: ignore[arg-type]

    assert await ids(handler="a") == [c, a]
    assert await ids(queue="mail") == [c, b]
    assert await ids(handler="a", queue="mail") == [c]
    assert await ids(handler="none") == []


async def test_runs_are_listed_newest_first_by_pages(world: World) -> None:
    ids = await world.enqueue(7)
    pages, before = [], None
    while page := await world.store.runs.runs(RunFilter(before=before, limit=3, status=[RunStatus.PENDING])):
        pages.append([run.id for run in page])
        before = page[-1].id
    assert pages == [ids[:3:-1], ids[3:0:-1], ids[:1]]


async def test_a_list_leaves_out_what_can_be_large(world: World) -> None:
    session = await world.session()
    await world.enqueue(payload={"large": "x" * 1000}, timeout=7)
    claimed = await world.claim_one(session)
    await world.settle(session, claimed, end=End.SUCCEEDED, result='"large"', output="large")
    (listed,) = await world.store.runs.runs(RunFilter())
    shown = await world.run(claimed.id)
    assert (listed.payload, listed.result, listed.output) == ({}, None, None)
    assert (shown.payload, shown.result, shown.output) == ({"large": "x" * 1000}, "large", "large")
    assert (listed.id, listed.status, listed.timeout) == (shown.id, shown.status, shown.timeout)


async def test_listing_running_runs_stands_many_in_flight(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.sql(
        "INSERT INTO fusee_receipts (session_id, number, run_ids) VALUES (:session, 999999, :ids)",
        session=session,
        ids=",".join(map(str, range(10**9, 10**9 + 40_000))),
    )
    (run,) = await world.store.runs.runs(RunFilter(status=[RunStatus.RUNNING]))
    assert run.id == claimed.id
    counts = await world.store.queues.counts()
    assert [lane["running"][0] for lane in counts.values()] == [1]


async def test_what_has_ended_is_told_apart(world: World) -> None:
    made = await _one_of_each(world)
    ended = await world.store.runs.ended([*made.values(), 10**12])
    still = {"running", "delayed", "pending"}
    assert ended == {run_id: status for status, run_id in made.items() if status not in still}


async def test_a_run_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="no run 987654321 in namespace 'default'"):
        await store.runs.run(987654321)
    assert await store.runs.attempts(987654321) == []


# --- counts -------------------------------------------------------------------------------------------


async def test_counts_are_by_lane_and_status(world: World) -> None:
    session = await world.session()
    await world.enqueue(3, handler="a")
    await world.clock.tick(1)
    await world.enqueue(2, handler="b", queue="mail")
    await world.enqueue(4, handler="b", queue="mail", delay=60)
    await world.enqueue(1, store=world.store.for_namespace("tenant"))
    (lane,) = await world.lane_ids(handler="a")
    await world.claim(session, 1, lanes=[lane])
    assert await world.store.queues.counts() == {
        Lane("default", "default", "python", "a"): {"pending": (2, START), "running": (1, START)},
        Lane("default", "mail", "python", "b"): {
            "pending": (2, START + 1_000_000),
            "delayed": (4, START + 61_000_000),
        },
    }


async def test_counting_nothing_is_nothing(world: World) -> None:
    assert await world.store.queues.counts() == {}
    session = await world.session()
    await world.finish(session, await world.enqueue_and_claim(session))
    assert await world.store.queues.counts() == {}


async def test_many_running_are_each_counted_once(world: World) -> None:
    session = await world.session()
    await world.enqueue(600)
    first = await world.claim(session, 600)
    await world.settle(session, *first[:300], end=End.RETURNED)
    await world.claim(session, 300)
    await world.clock.tick(1)
    await world.enqueue(300)
    await world.claim(session, 300)
    ((counts),) = (await world.store.queues.counts()).values()
    assert counts == {"running": (900, START)}


# --- namespaces ---------------------------------------------------------------------------------------


async def test_namespaces_do_not_see_each_other(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    mine, theirs = await world.enqueue_one(), await world.enqueue_one(store=tenant)
    assert [run.id for run in await world.store.runs.runs(RunFilter())] == [mine]
    assert [run.id for run in await tenant.runs.runs(RunFilter())] == [theirs]
    assert (await tenant.runs.run(theirs)).namespace == "tenant"
    for status in ([RunStatus.PENDING], [RunStatus.RUNNING, RunStatus.PENDING]):
        assert [run.id for run in await tenant.runs.runs(RunFilter(status=status))] == [theirs]


async def test_a_foreign_id_is_not_found(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    session = await world.session()
    await world.enqueue(2)
    running = await world.claim_one(session)
    await world.settle(session, running, end=End.FAILED, after=0)
    await world.store.ready_queue.promote()
    await world.claim(session)
    for run_id in [run.id for run in await world.store.runs.runs(RunFilter())]:
        before = await world.run(run_id)
        with pytest.raises(NotFound):
            await tenant.runs.run(run_id)
        with pytest.raises(NotFound):
            await tenant.runs.cancel(run_id, "mine?")
        assert await tenant.runs.attempts(run_id) == []
        assert await tenant.runs.ended([run_id]) == {}
        assert await tenant.runs.claimed_ago(run_id) is None
        assert await world.run(run_id) == before


async def test_claims_never_cross_namespaces(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    here, there = await world.session(), await world.session(store=tenant)
    mine = await world.enqueue(3)
    theirs = await world.enqueue(2, store=tenant)
    await tenant.lanes.read_new_lanes()
    await world.store.lanes.read_new_lanes()
    assert not set(tenant.lane_map.lanes) & set(world.store.lane_map.lanes)
    assert [run.id for run in await world.claim(there, store=tenant)] == theirs
    assert [run.id for run in await world.claim(here)] == mine


async def test_namespaces_have_their_own_workers(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    here = await world.session("here", handlers=("a",))
    there = await world.session("there", store=tenant, handlers=("b",))
    assert [session.id for session in await world.store.sessions.sessions()] == [here]
    assert [session.id for session in await tenant.sessions.sessions()] == [there]
    assert await world.store.sessions.known_handlers() == {"a"}
    assert await tenant.sessions.known_handlers() == {"b"}


# --- sessions -----------------------------------------------------------------------------------------


async def test_a_session_is_shown_as_its_worker_registered(world: World) -> None:
    policy = RetryPolicy(max_attempts=9)
    session_id = await world.session("worker-9", ttl=30, policies={"work": policy}, handlers=("work", "else"))
    (session,) = await world.store.sessions.sessions()
    info = session.info
    assert (session.id, session.namespace, session.state) == (session_id, "default", "alive")
    assert (info.name, info.host, info.pid, info.version, info.capacity) == (
        "worker-9",
        "here",
        4711,
        "1.0",
        10,
    )
    assert (info.executors, info.handlers, info.queues) == (("python",), ("work", "else"), ("default",))
    assert (info.labels, info.policies, info.region) == ({"disk": "fast"}, {"work": policy}, "")
    assert (session.started_at, session.seen_at, session.expires_at) == (START, START, START + 30_000_000)
    assert (session.running, session.ended_at) == (0, None)


async def test_a_session_lives_drains_and_ends(world: World) -> None:
    first, second = await world.session("a"), await world.session("b")
    await world.clock.tick(1)
    await world.store.sessions.renew(first, 30, running=4)
    await world.store.sessions.drain_session(first)
    await world.store.sessions.drain_session(first)
    newest, oldest = await world.store.sessions.sessions()
    assert (newest.id, newest.state) == (second, "alive")
    assert (oldest.id, oldest.state, oldest.running) == (first, "draining", 4)
    await world.store.sessions.end_session(first)
    assert [session.id for session in await world.store.sessions.sessions()] == [second]
    _, ended = await world.store.sessions.sessions(all_states=True)
    assert (ended.state, ended.running, ended.ended_at) == ("ended", 0, START + 1_000_000)


# --- the connection -----------------------------------------------------------------------------------


async def test_the_store_answers_and_knows_its_schema(store: Store) -> None:
    await store.ping()
    have, want = await store.revision()
    assert have == want


async def test_another_process_hears_of_new_work_where_the_database_can_tell(world: World) -> None:
    if not world.store.database.capabilities.notify:
        return
    other = await world.another()
    heard = asyncio.Event()
    other.wakes.on("delayed", heard.set)
    await asyncio.wait_for(heard.wait(), 10)  # the listener stands
    for spec, kind in ((RunSpec(handler="work"), "pending"), (RunSpec(handler="work", delay=9), "delayed")):
        heard.clear()
        other.wakes.on(kind, heard.set)
        await world.store.run_writer.enqueue([spec])
        await asyncio.wait_for(heard.wait(), 10)
