"""Runs on their way through a message broker: dispatched, started once, taken back, published again."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert

from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import HIGH, LOW, NORMAL, Dispatched
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import RunStatus
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.runs import RunFilter
from fusee.errors import LeaseLost
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def dispatch(world: World, ahead: int = 100) -> list[Dispatched]:
    return await world.store.dispatches.dispatch(dict.fromkeys(await world.lane_ids(), ahead))


def tokens(sent: list[Dispatched]) -> list[tuple[int, int]]:
    return [(run.id, run.attempt) for run in sent]


async def statuses(world: World, *runs: int) -> list[RunStatus]:
    return [(await world.store.runs.run(run)).status for run in runs]


async def test_a_dispatched_run_starts_at_one_session_and_ends_like_any_other(world: World) -> None:
    (run,) = await world.enqueue(payload={"a": 1})
    session = await world.session()
    (sent,) = await dispatch(world)
    assert (sent.id, sent.attempt, sent.payload, sent.level) == (run, 1, '{"a":1}', NORMAL)
    assert await statuses(world, run) == ["dispatched"]
    assert await world.claim(session) == [], "what the broker has, nobody else claims"
    assert await world.store.starts.start(session, 7, tokens([sent])) == [(run, 1, False)]
    assert await statuses(world, run) == ["running"]
    assert await world.store.runs.owned(session) == [(run, 1)]


async def test_each_attempt_starts_once_however_often_its_message_arrives(world: World) -> None:
    await world.enqueue()
    one, other = await world.session("one"), await world.session("other")
    (sent,) = await dispatch(world)
    assert await world.store.starts.start(one, 1, tokens([sent])) == [(sent.id, 1, False)]
    assert await world.store.starts.start(other, 1, tokens([sent])) == []
    assert await world.store.starts.start(one, 2, tokens([sent])) == [], "the same session, another order"


async def test_a_repeated_order_is_answered_as_before(world: World) -> None:
    await world.enqueue(2)
    session = await world.session()
    sent = await dispatch(world)
    first = await world.store.starts.start(session, 5, tokens(sent))
    assert sorted(first) == sorted(await world.store.starts.start(session, 5, tokens(sent)))
    both = await asyncio.gather(*(world.store.starts.start(session, 5, tokens(sent)) for _ in range(4)))
    assert all(sorted(answer) == sorted(first) for answer in both)


async def test_an_order_repeated_at_once_by_several_is_answered_alike(world: World) -> None:
    await world.enqueue(20)
    session = await world.session()
    sent = await dispatch(world)
    others = [await world.another() for _ in range(3)]
    answers = await asyncio.gather(*(store.starts.start(session, 5, tokens(sent)) for store in others))
    assert [len(answer) for answer in answers] == [20, 20, 20]


async def test_a_session_that_is_over_starts_nothing(world: World) -> None:
    await world.enqueue()
    session = await world.session()
    sent = await dispatch(world)
    await world.store.sessions.drain_session(session)
    assert await world.store.starts.start(session, 1, tokens(sent)) == []
    assert await statuses(world, sent[0].id) == ["pending"], "back in line, for others"
    again = await dispatch(world)
    await world.store.sessions.end_session(session)
    with pytest.raises(LeaseLost):
        await world.store.starts.start(session, 1, tokens(again))
    assert await statuses(world, sent[0].id) == ["dispatched"]


async def test_a_canceled_run_does_not_start(world: World) -> None:
    (run,) = await world.enqueue()
    session = await world.session()
    sent = await dispatch(world)
    assert await world.store.runs.cancel(run, "not wanted") == RunStatus.CANCELED
    assert await world.store.starts.start(session, 1, tokens(sent)) == []
    assert await statuses(world, run) == ["canceled"]


async def test_a_recalled_run_is_claimed_by_others_and_its_old_message_starts_nothing(world: World) -> None:
    (run,) = await world.enqueue(priority=3)
    session = await world.session()
    sent = await dispatch(world)
    assert await world.store.dispatches.recall([(run, 9)]) == 0, "another attempt"
    assert await world.store.dispatches.recall(tokens(sent)) == 1
    assert await world.store.dispatches.recall(tokens(sent)) == 0
    (again,) = await dispatch(world)
    assert again.attempt == 2
    assert await world.store.starts.start(session, 1, tokens(sent)) == []
    assert await world.store.starts.start(session, 2, tokens([again])) == [(run, 2, False)]


async def test_only_so_many_stand_ahead_and_the_higher_go_first(world: World) -> None:
    low = await world.enqueue(5, priority=-1)
    normal = await world.enqueue(5)
    assert [run.id for run in await dispatch(world, 3)] == normal[:3]
    assert await dispatch(world, 3) == [], "the lower ones do not overtake"
    high = await world.enqueue(2, priority=10)
    sent = await dispatch(world, 3)
    assert [(run.id, run.level) for run in sent] == [(run, HIGH) for run in high]
    session = await world.session()
    await world.store.starts.start(session, 1, [(run, 1) for run in normal[:3]])
    sent = await dispatch(world, 3)
    assert [run.id for run in sent] == [*normal[3:], *low[:3]]
    assert {run.level for run in sent[2:]} == {LOW}
    assert await dispatch(world, 3) == []


async def test_two_dispatchers_never_send_the_same_run(world: World) -> None:
    await world.enqueue(50)
    lanes = dict.fromkeys(await world.lane_ids(), 50)
    stores = [await world.another() for _ in range(3)]
    parts = await asyncio.gather(*(store.dispatches.dispatch(lanes) for store in stores))
    sent = [run.id for part in parts for run in part]
    assert len(sent) == len(set(sent))
    assert len(sent) + len(await dispatch(world)) == 50


async def test_limits_hold_when_runs_start(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(concurrency=2))
    runs = await world.enqueue(5)
    session = await world.session()
    sent = await dispatch(world)
    assert [run.id for run in sent] == runs[:2], "no more than may start"
    granted = await world.store.starts.start(session, 1, tokens(sent))
    assert granted == [(runs[0], 1, True), (runs[1], 1, True)]
    assert await dispatch(world) == []
    await world.store.queues.set_limits("default", QueueLimits(concurrency=3))
    third = await dispatch(world)
    await world.store.queues.set_limits("default", QueueLimits(concurrency=2))
    assert await world.store.starts.start(session, 2, tokens(third)) == [], "the limit went down meanwhile"
    assert await statuses(world, third[0].id) == ["pending"]


async def test_a_rate_holds_when_runs_start(world: World) -> None:
    await world.store.queues.set_limits("default", QueueLimits(rate=2, burst=2))
    await world.enqueue(5)
    session = await world.session()
    sent = await dispatch(world)
    assert len(sent) == 2
    assert len(await world.store.starts.start(session, 1, tokens(sent))) == 2
    assert await dispatch(world) == []
    await world.clock.tick(0.5)
    assert len(await dispatch(world)) == 1


async def test_a_paused_queue_is_not_dispatched_and_what_was_goes_back(world: World) -> None:
    (run,) = await world.enqueue()
    session = await world.session()
    sent = await dispatch(world)
    await world.store.queues.set_limits("default", QueueLimits(paused=True))
    assert await world.store.starts.start(session, 1, tokens(sent)) == []
    assert await statuses(world, run) == ["pending"]
    assert await dispatch(world) == []


async def test_what_never_started_is_published_again_under_the_same_attempt(world: World) -> None:
    runs = await world.enqueue(3)
    await dispatch(world)
    (lane,) = await world.lane_ids()
    assert await world.store.dispatches.overdue(10) == []
    await world.clock.tick(11)
    (overdue,) = await world.store.dispatches.overdue(10)
    assert (overdue.lane_id, overdue.level, overdue.standing, overdue.late) == (lane, NORMAL, 3, 3)
    again = await world.store.dispatches.republish(lane, NORMAL, 10, 2)
    assert tokens(again) == [(runs[0], 1), (runs[1], 1)]
    assert tokens(await world.store.dispatches.republish(lane, NORMAL, 10, 9)) == [(runs[2], 1)]
    assert await world.store.dispatches.overdue(10) == []


async def test_lanes_that_no_worker_serves_any_more_go_back_in_line(world: World) -> None:
    (run,) = await world.enqueue()
    await dispatch(world)
    (lane,) = await world.lane_ids()
    await world.clock.tick(11)
    assert await world.store.dispatches.recall_unserved([lane], 10) == 0
    assert await world.store.dispatches.recall_unserved([], 60) == 0
    assert await world.store.dispatches.recall_unserved([], 10) == 1
    assert await statuses(world, run) == ["pending"]


async def test_a_session_that_died_with_started_runs_loses_nothing(world: World) -> None:
    (run,) = await world.enqueue()
    session = await world.session(ttl=5)
    sent = await dispatch(world)
    await world.store.starts.start(session, 1, tokens(sent))
    await world.clock.tick(6)
    recovered = await world.store.recovery.recover()
    assert (recovered.requeued, recovered.failed) == (1, 0)
    assert await statuses(world, run) == ["pending"]


async def test_asking_for_a_session_twice_opens_one(world: World) -> None:
    info = WorkerInfo(
        name="w", host="h", pid=1, version="1", capacity=1, executors=(), handlers=(), queues=("*",)
    )
    one = await world.store.starts.open_session_once("abc", info, 30)
    assert await world.store.starts.open_session_once("abc", info, 30) == one
    many = await asyncio.gather(*(world.store.starts.open_session_once("def", info, 30) for _ in range(5)))
    assert len(set(many)) == 1 and one not in many


async def test_dispatched_runs_are_counted_and_listed(world: World) -> None:
    await world.enqueue(3)
    sent = await dispatch(world, 2)
    (counts,) = (await world.store.queues.counts()).values()
    assert {status: many for status, (many, _) in counts.items()} == {"pending": 1, "dispatched": 2}
    listed = await world.store.runs.runs(RunFilter(status=[RunStatus.DISPATCHED]))
    assert sorted(run.id for run in listed) == [run.id for run in sent]


# --- dead letters -----------------------------------------------------------------------------------


async def test_a_dead_letter_is_kept_once_and_its_runs_are_sent_again_so_often_at_most(
    world: World,
) -> None:
    (run,) = await world.enqueue()
    (lane,) = await world.lane_ids()
    await dispatch(world)
    await world.clock.tick(1)
    for death in range(3):
        assert await world.store.dead_letters.keep("q", "delivery_limit", b"{}", [(run, 1)], str(death))
        assert not await world.store.dead_letters.keep("q", "delivery_limit", b"{}", [(run, 1)], str(death))
        again = await world.store.dispatches.republish(lane, NORMAL, 1, 10)
        assert len(again) == (1 if death < 2 else 0)
    letters = await world.store.dead_letters.list()
    assert [letter.run_ids for letter in letters] == [(run,)] * 3
    assert await world.store.dead_letters.requeue(letters[0].id) == 1
    assert len(await world.store.dispatches.republish(lane, NORMAL, 1, 10)) == 1


async def test_a_rejected_message_holds_its_run_until_someone_drops_it(world: World) -> None:
    (run,) = await world.enqueue()
    await dispatch(world)
    await world.store.dead_letters.keep("q", "rejected", b"\xff\x00", [(run, 1)], "x")
    (letter,) = await world.store.dead_letters.list()
    assert (letter.binary, letter.body) == (True, "/wA=")
    assert await world.store.dispatches.overdue(0) == []
    assert await world.store.dead_letters.drop(letter.id, "its message was dropped") == 1
    assert await statuses(world, run) == ["canceled"]
    assert await world.store.dead_letters.count() == 0


async def test_a_place_of_a_run_that_is_not_dispatched_grants_nothing(world: World) -> None:
    """Its cancel took the place away and something put it back: the run itself says that it may not start."""
    canceled, good = await world.enqueue(2)
    session = await world.session()
    sent = await dispatch(world)
    (place,) = [row._asdict() for row in await world.rows(dispatched) if row.run_id == canceled]
    await world.store.runs.cancel(canceled, "changed my mind")
    await world.store.database.write(lambda connection: connection.execute(insert(dispatched), [place]))
    before = await world.run(canceled)
    assert await world.store.starts.start(session, 1, tokens(sent)) == [(good, 1, False)]
    assert await world.run(canceled) == before
    assert await world.store.runs.owned(session) == [(good, 1)]


async def test_an_attempt_that_is_not_the_dispatched_one_is_not_granted(world: World) -> None:
    """The message of an attempt that is over, and a place that agrees with it."""
    (run,) = await world.enqueue()
    session = await world.session()
    (sent,) = await dispatch(world)
    assert await world.store.dispatches.recall(tokens([sent])) == 1
    (again,) = await dispatch(world)
    assert (again.id, again.attempt) == (run, 2)
    assert await world.store.starts.start(session, 1, tokens([sent])) == []
    await world.sql("UPDATE fusee_dispatched SET attempt = 1")
    assert await world.store.starts.start(session, 2, tokens([sent])) == []
    assert await world.store.runs.owned(session) == []
    # Put right again, it is found by the next look for what never started.
    assert await statuses(world, run) == ["dispatched"]
    await world.store.runs.cancel(run, "the end of the test")
