"""The registry of workers: what each says of itself, and how one is asked to leave."""

from __future__ import annotations

import pytest

from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import SessionState
from fusee.errors import Invalid, NotFound
from fusee.runs.service.workers import WorkerFilter, WorkerOperations
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")


def info(name: str, **fields: object) -> WorkerInfo:
    known = {
        "name": name,
        "host": "here",
        "pid": 4711,
        "version": "1.0",
        "capacity": 10,
        "executors": ("python",),
        "handlers": ("work",),
        "queues": ("default",),
    }
    return WorkerInfo(**{**known, **fields})  # type: ignore[arg-type]


async def test_a_worker_is_registered_with_all_that_it_says_of_itself(world: World) -> None:
    said = info(
        "w",
        address="10.0.0.7",
        cpu=3.5,
        memory=8 * 2**30,
        region="eu",
        labels={"gpu": "yes"},
        version="2.1",
        executors=("http", "python"),
        handlers=("one", "two"),
        queues=("*",),
    )
    session = await world.store.sessions.open_session(said, 30)
    (found,) = await world.store.sessions.sessions()
    assert (found.id, found.info, found.state) == (session, said, SessionState.ALIVE)
    assert (found.cpu_free, found.memory_free, found.load, found.assigned) == (3.5, 8 * 2**30, 0.0, 0)
    await world.store.sessions.renew(session, 30, running=4)
    (found,) = await world.store.sessions.sessions()
    assert (found.running, found.load) == (4, 0.4)


async def test_what_is_not_declared_is_not_known(world: World) -> None:
    await world.store.sessions.open_session(info("w"), 30)
    (found,) = await world.store.sessions.sessions()
    assert (found.info.cpu, found.cpu_free, found.info.memory, found.memory_free) == (None,) * 4
    assert found.info.address == ""


async def test_the_registry_is_looked_through_by_what_workers_have(world: World) -> None:
    for worker in (
        info("a", queues=("*",), region="eu", labels={"gpu": "yes", "disk": "fast"}, version="1.0"),
        info("b", queues=("mail",), handlers=("send",), labels={"gpu": "no"}, version="1.1"),
        info("c", queues=("default",), region="us"),
    ):
        await world.store.sessions.open_session(worker, 30)
    lost = await world.store.sessions.open_session(info("d"), 30)
    await world.store.sessions.end_session(lost)
    workers = WorkerOperations(world.store)

    async def names(all_states: bool = False, **wanted: object) -> str:
        found = await workers.list(WorkerFilter(**wanted), all_states=all_states)  # type: ignore[arg-type]
        return "".join(sorted(session.info.name for session in found))

    assert await names() == "abc"
    assert await names(all_states=True) == "abcd"
    assert await names(state="down") == await names(state="ended") == "d"
    assert await names(state="alive") == "abc"
    assert await names(queue="mail") == "ab"
    assert await names(handler="work") == "ac"
    assert (await names(region="eu"), await names(region="")) == ("a", "b")
    assert await names(version="1.1") == "b"
    assert await names(labels={"gpu": "yes"}) == "a"
    assert await names(labels={"gpu": "yes", "disk": "slow"}) == ""
    assert (await workers.get("d")).state is SessionState.ENDED
    with pytest.raises(NotFound, match="no worker 'e'"):
        await workers.get("e")
    with pytest.raises(Invalid, match="alive, draining, ended, lost, down"):
        WorkerFilter(state="dead")


async def test_a_worker_that_is_asked_to_leave_claims_nothing_from_that_moment(world: World) -> None:
    leaving, staying = await world.session("leaving"), await world.session("staying")
    held = await world.enqueue_and_claim(leaving)
    await world.enqueue(3)
    assert not await world.store.sessions.drain_asked([leaving])
    (asked,) = await world.store.sessions.ask_to_drain("leaving")
    assert (asked.id, asked.state, asked.drain_asked_at) == (leaving, SessionState.DRAINING, START)
    assert await world.store.sessions.drain_asked([leaving, 10**9])
    assert not await world.store.sessions.drain_asked([staying])
    assert await world.claim(leaving) == []
    await world.store.queues.set_limits("default", QueueLimits(concurrency=100))
    assert await world.claim_limited(leaving) == []
    assert len(await world.claim_limited(staying)) == 3
    assert await world.finish(leaving, held) == [], "what it holds is still its own"
    await world.store.sessions.renew(leaving, 30, running=0)
    await world.store.sessions.end_session(leaving)


async def test_asked_twice_it_was_asked_at_the_first_time(world: World) -> None:
    await world.session("w")
    await world.store.sessions.ask_to_drain("w")
    await world.clock.tick(5)
    (again,) = await world.store.sessions.ask_to_drain("w")
    assert again.drain_asked_at == START


async def test_all_processes_of_a_name_are_asked(world: World) -> None:
    both = {await world.session("w"), await world.session("w")}
    assert {session.id for session in await world.store.sessions.ask_to_drain("w")} == both


async def test_only_a_live_worker_of_this_namespace_can_be_asked(world: World) -> None:
    gone = await world.session("gone")
    await world.store.sessions.end_session(gone)
    elsewhere = await world.another("other")
    await world.session("theirs", store=elsewhere)
    for name in ("gone", "theirs", "never"):
        with pytest.raises(NotFound, match="fusee workers"):
            await world.store.sessions.ask_to_drain(name)
    (theirs,) = await elsewhere.sessions.sessions()
    assert theirs.state is SessionState.ALIVE


async def test_a_worker_that_dies_while_it_drains_is_recovered_like_any_other(world: World) -> None:
    session = await world.session("w", ttl=30)
    held = await world.enqueue_and_claim(session)
    await world.store.sessions.ask_to_drain("w")
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).requeued == 1
    assert await world.store.sessions.drain_asked([session]), "its next session heeds it"
    assert (await world.run(held.id)).status == "pending"
