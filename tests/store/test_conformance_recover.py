"""Leases: only the database's clock ends one; then each run comes back once, or has failed."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Connection, event, text, update

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.recovery import Recovered
from fusee.engine.store.tables import receipts, runs, sessions
from fusee.errors import LeaseLost
from tests.chaos.inside import until
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_only_the_databases_clock_expires_a_lease(world: World) -> None:
    session = await world.session("doomed", ttl=30)
    claimed = await world.enqueue_and_claim(session)
    assert await world.store.recovery.recover() == Recovered()
    await world.clock.tick(30)
    assert await world.store.recovery.recover() == Recovered(), "it holds up to its last microsecond"
    assert (await world.run(claimed.id)).status == "running"
    await world.clock.tick(0.000001)
    assert await world.store.recovery.recover() == Recovered(((session, "doomed"),), requeued=1)
    run = await world.run(claimed.id)
    assert (run.status, run.attempt, run.spent, run.worker) == ("pending", 1, 1, None)
    assert (run.reason, run.effect, run.due_at) == ("its worker was lost", "unknown", START)
    (kept,) = await world.store.runs.attempts(claimed.id)
    assert (kept.attempt, kept.end, kept.worker, kept.effect) == (1, "lost", "doomed", "unknown")
    assert (kept.started_at, kept.finished_at) == (START, START + 30_000_001)
    assert await world.rows(receipts) == []


async def test_an_outcome_between_the_end_of_a_session_and_the_return_of_its_runs_is_kept(
    world: World,
) -> None:
    """Nobody else has the run at that moment, so its outcome is the only one: it is not tried again."""
    session = await world.session("late", ttl=30)
    first, second = [await world.enqueue_and_claim(session) for _ in range(2)]
    await world.clock.tick(31)
    assert await world.store.database.write(world.store.recovery._take_expired) == [(session, "late")]
    assert await world.finish(session, first) == [], "accepted"
    assert (await world.run(first.id)).status == "succeeded"
    recovered = await world.store.recovery.recover()
    assert (recovered.requeued, recovered.failed) == (1, 0)
    assert (await world.run(first.id)).status == "succeeded"
    assert await world.store.runs.attempts(first.id) == []
    # From the moment at which it was returned, nothing is accepted.
    assert await world.finish(session, second) == [(second.id, second.attempt)]
    assert (await world.run(second.id)).status == "pending"


async def test_a_renewal_in_time_keeps_the_lease(world: World) -> None:
    session = await world.session(ttl=30)
    claimed = await world.enqueue_and_claim(session)
    for _ in range(5):
        await world.clock.tick(25)
        await world.store.sessions.renew(session, 30, running=1)
        assert await world.store.recovery.recover() == Recovered()
    assert await world.finish(session, claimed) == []


async def test_a_renewal_counts_from_the_databases_clock(world: World) -> None:
    session = await world.session(ttl=30)
    await world.clock.tick(10)
    await world.store.sessions.renew(session, 5, running=3)
    await world.store.sessions.renew(session, 5, running=3)
    (row,) = await world.rows(sessions)
    assert (row.expires_at, row.seen_at, row.running) == (START + 15_000_000, START + 10_000_000, 3)


async def test_an_expired_session_may_renew_until_someone_took_it(world: World) -> None:
    """Nobody else has its runs yet, so nothing can go wrong."""
    session = await world.session(ttl=30)
    await world.clock.tick(60)
    await world.store.sessions.renew(session, 30, running=0)
    assert await world.store.recovery.recover() == Recovered()
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).sessions
    for call in (
        world.store.sessions.renew(session, 30, running=0),
        world.store.sessions.drain_session(session),
        world.store.sessions.end_session(session),
    ):
        with pytest.raises(LeaseLost, match=f"session {session} is over"):
            await call


async def test_a_draining_session_has_a_lease_too(world: World) -> None:
    session = await world.session(ttl=30)
    claimed = await world.enqueue_and_claim(session)
    await world.store.sessions.drain_session(session)
    await world.clock.tick(20)
    await world.store.sessions.renew(session, 30, running=1)
    await world.clock.tick(20)
    assert await world.store.recovery.recover() == Recovered()
    assert await world.settle(session, claimed, end=End.RETURNED, effect=Effect.NONE) == []
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).sessions == ((session, "worker-1"),)


async def test_what_an_ended_session_still_owned_comes_back(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.store.sessions.end_session(session)
    assert await world.store.recovery.recover() == Recovered(requeued=1)
    assert (await world.run(claimed.id)).status == "pending"
    assert await world.finish(session, claimed) == [(claimed.id, 1)]


async def test_a_lost_run_keeps_its_place_in_line(world: World) -> None:
    doomed, other = await world.session("doomed"), await world.session("other", ttl=3600)
    first, second = await world.enqueue(2)
    await world.claim(doomed, 1)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    assert [(run.id, run.attempt, run.spent) for run in await world.claim(other)] == [
        (first, 2, 1),
        (second, 1, 0),
    ]


async def test_a_run_without_attempts_left_has_failed(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session, retry=RetryPolicy(max_attempts=1))
    await world.clock.tick(31)
    assert await world.store.recovery.recover() == Recovered(((session, "worker-1"),), failed=1)
    run = await world.run(claimed.id)
    assert (run.status, run.spent, run.error) == ("failed", 1, "its worker's lease expired")
    assert run.reason == "its worker was lost; 1 of 1 attempts spent"
    assert run.finished_at == START + 31_000_000
    assert [kept.end for kept in await world.store.runs.attempts(claimed.id)] == ["lost"]


async def test_losses_are_counted_until_the_attempts_are_spent(world: World) -> None:
    run_id = await world.enqueue_one()
    seen = []
    for _ in range(3):
        session = await world.session()
        await world.claim_one(session)
        await world.clock.tick(31)
        await world.store.recovery.recover()
        run = await world.run(run_id)
        seen.append((str(run.status), run.attempt, run.spent))
    assert seen == [("pending", 1, 1), ("pending", 2, 2), ("failed", 3, 3)]


async def test_a_recovery_knows_the_policy_of_the_run_then_of_its_worker(world: World) -> None:
    session = await world.session(policies={"brief": RetryPolicy(max_attempts=1)}, handlers=("brief", "work"))
    by_default = await world.enqueue_one()
    by_worker = await world.enqueue_one(handler="brief")
    by_run = await world.enqueue_one(handler="brief", retry=RetryPolicy(max_attempts=5))
    not_lost = await world.enqueue_one(retry=RetryPolicy(on=("failed",)))
    assert len(await world.claim(session)) == 4
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    assert (recovered.requeued, recovered.failed) == (2, 2)
    statuses = await world.statuses([by_default, by_worker, by_run, not_lost])
    assert statuses == ["pending", "failed", "pending", "failed"]


async def test_finished_runs_on_a_receipt_are_left_alone(world: World) -> None:
    session = await world.session()
    await world.enqueue(4)
    done, retried, released, lost = await world.claim(session)
    await world.finish(session, done)
    await world.settle(session, retried, end=End.FAILED)
    await world.settle(session, released, end=End.RETURNED, effect=Effect.NONE)
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).requeued == 1
    ids = [run.id for run in (done, retried, released, lost)]
    assert await world.statuses(ids) == ["succeeded", "delayed", "pending", "pending"]
    assert [(await world.run(run_id)).spent for run_id in ids] == [0, 1, 0, 1]


async def test_a_run_that_moved_on_to_another_session_is_left_alone(world: World) -> None:
    doomed, other = await world.session("doomed"), await world.session("other", ttl=3600)
    claimed = await world.enqueue_and_claim(doomed)
    await world.settle(doomed, claimed, end=End.RETURNED, effect=Effect.NONE)
    again = await world.claim_one(other)
    await world.clock.tick(31)
    assert await world.store.recovery.recover() == Recovered(((doomed, "doomed"),))
    assert await world.finish(other, again) == []


async def test_racing_recoveries_return_each_run_once(world: World) -> None:
    others = [world.store, await world.another(), await world.another()]
    doomed = [await world.session(f"doomed-{n}") for n in range(6)]
    await world.enqueue(120)
    for _ in range(2):
        for session in doomed:
            assert len(await world.claim(session, 10)) == 10
    await world.clock.tick(31)
    answers: list[Recovered] = []
    while len(await world.rows(receipts)):
        answers += await asyncio.gather(*(store.recovery.recover(limit=2) for store in others))
    taken = Counter(session for answer in answers for session, _ in answer.sessions)
    assert taken == dict.fromkeys(doomed, 1)
    assert sum(answer.requeued for answer in answers) == 120
    assert await world.tally() == {"pending": 120}
    assert {(run.attempt, run.spent) for run in await world.claim(await world.session())} == {(2, 1)}


ON_SERVERS = pytest.mark.parametrize("engine", ["postgres", "mysql"])
"""SQLite has one writer: nothing can come between."""


@ON_SERVERS
async def test_a_session_that_someone_is_writing_is_passed_over(world: World) -> None:
    """A renewal under way wins; a worker stopped in the middle of one holds up nobody's recovery."""
    engine = world.store.database.engine  # type: ignore[attr-defined]
    renewing, dead = await world.session(), await world.session()
    await world.enqueue_and_claim(renewing)
    await world.clock.tick(31)
    renewed = (
        update(sessions)
        .where(sessions.c.id == renewing)
        .values(expires_at=await world.clock.now() + 30_000_000)
    )
    async with asyncio.timeout(10), engine.begin() as connection:
        await connection.execute(renewed)
        assert [session for session, _ in (await world.store.recovery.recover()).sessions] == [dead]
    assert (await world.store.recovery.recover()).sessions == ()
    assert {row.id: row.state for row in await world.rows(sessions)} == {renewing: "alive", dead: "lost"}


@pytest.mark.parametrize("engine", ["mysql"])
async def test_a_session_that_began_while_a_recovery_reads_is_not_taken_for_dead(world: World) -> None:
    """On MySQL a locking read sees rows that were committed after its own subquery's view of the sessions was
    made: here the receipt of a session that was born in between."""
    sync = world.store.database.engine.sync_engine  # type: ignore[attr-defined]
    other = await world.another()
    dead = await world.session("dead")
    await world.enqueue(3)
    await world.claim(dead, 1)
    await world.clock.tick(31)
    gate = f"fusee-recover-{uuid.uuid4().hex}"

    def stop_in_the_middle(_c: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> tuple[str, Any]:
        """Having looked for the first receipt's session, the statement waits for the test."""
        if "FROM fusee_receipts" in statement and "SKIP LOCKED" in statement:
            head, rest = statement.split("WHERE ", 1)
            condition, tail = rest.split("LIMIT", 1)
            statement = f"{head}WHERE IF({condition}, GET_LOCK('{gate}', 20) = 1, FALSE) LIMIT{tail}"
        return statement, given

    async def reading() -> bool:
        return bool(await other.database.read(lambda c: c.execute(waiting).all()))

    waiting = text("SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'")
    async with other.database.engine.connect() as keeper:  # type: ignore[attr-defined]
        await keeper.execute(text(f"SELECT GET_LOCK('{gate}', 0)"))
        event.listen(sync, "before_cursor_execute", stop_in_the_middle, retval=True)
        try:
            recovery = asyncio.create_task(world.store.recovery.recover())
            await until(reading, what="the recovery in the middle of its statement")
            born = await world.session("born", store=other)
            claimed = await world.claim(born, 2, store=other)
            await keeper.execute(text(f"SELECT RELEASE_LOCK('{gate}')"))
            recovered = await recovery
        finally:
            event.remove(sync, "before_cursor_execute", stop_in_the_middle)
    assert (recovered.sessions, recovered.requeued) == (((dead, "dead"),), 1)
    assert await world.statuses(run.id for run in claimed) == ["running", "running"]
    assert await world.finish(born, *claimed) == []


@ON_SERVERS
async def test_runs_that_are_locked_are_returned_by_a_later_recovery(world: World) -> None:
    """A worker stopped in the middle of a finish holds its runs' rows; the others are returned at once."""
    engine = world.store.database.engine  # type: ignore[attr-defined]
    session = await world.session()
    await world.enqueue(3)
    claimed = await world.claim(session, 3)
    await world.clock.tick(31)
    async with asyncio.timeout(10), engine.begin() as connection:
        await connection.execute(update(runs).where(runs.c.id == claimed[0].id).values(reason="half-way"))
        assert (await world.store.recovery.recover()).requeued == 2
    assert (await world.store.recovery.recover()).requeued == 1
    assert not await world.store.recovery.recover()


async def test_a_recovery_racing_with_the_last_finish_gives_each_run_one_fate(world: World) -> None:
    other = await world.another()
    doomed = await world.session()
    await world.enqueue(100)
    claimed = await world.claim(doomed, 100)
    await world.clock.tick(31)
    refused_each = await asyncio.gather(
        *(world.finish(doomed, *claimed[n : n + 10]) for n in range(0, 100, 10)),
        other.recovery.recover(),
        other.recovery.recover(),
    )
    refused = [pair for part in refused_each[:10] for pair in part]  # type: ignore[union-attr]
    requeued = sum(answer.requeued for answer in refused_each[10:])  # type: ignore[union-attr]
    assert len(refused) == requeued
    tally = await world.tally()
    assert (tally.get("pending", 0), tally.get("succeeded", 0)) == (requeued, 100 - requeued)


async def test_a_late_claim_of_a_lost_session_is_swept(world: World) -> None:
    """A claim under way while its session is taken may commit afterwards; written here as it would be."""
    doomed = await world.session()
    claimed = await world.enqueue_and_claim(doomed)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    await world.sql(
        "UPDATE fusee_runs SET status = 'running', attempt = 2, session_id = :session WHERE id = :id",
        session=doomed,
        id=claimed.id,
    )
    await world.sql("DELETE FROM fusee_ready WHERE run_id = :id", id=claimed.id)
    await world.sql(
        "INSERT INTO fusee_receipts (session_id, number, run_ids) VALUES (:session, 99, :ids)",
        session=doomed,
        ids=str(claimed.id),
    )
    assert await world.store.recovery.recover() == Recovered(requeued=1)
    run = await world.run(claimed.id)
    assert (run.status, run.attempt, run.spent) == ("pending", 2, 2)
    assert await world.rows(receipts) == []


async def test_a_receipt_of_a_session_that_was_pruned_is_swept(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.sql("DELETE FROM fusee_sessions WHERE id = :id", id=session)
    assert (await world.store.recovery.recover()).requeued == 1
    assert (await world.run(claimed.id)).status == "pending"


async def test_a_recovery_takes_no_more_than_its_limit_and_goes_on(world: World) -> None:
    session = await world.session()
    await world.enqueue(5)
    for _ in range(5):
        await world.claim(session, 1)
    await world.clock.tick(31)
    answers = [await world.store.recovery.recover(limit=2) for _ in range(4)]
    assert [answer.requeued for answer in answers] == [2, 2, 1, 0]
    assert [bool(answer) for answer in answers] == [True, True, True, False]


async def test_a_recovery_looks_at_every_namespace(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    session = await world.session(store=tenant)
    run_id = await world.enqueue_one(store=tenant)
    await world.claim(session, store=tenant)
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).requeued == 1
    assert (await tenant.runs.run(run_id)).status == "pending"


async def test_a_recovery_wakes_the_workers(world: World) -> None:
    session = await world.session()
    await world.enqueue_and_claim(session)
    heard: list[str] = []
    world.store.wakes.on("pending", lambda: heard.append("pending"))
    await world.clock.tick(31)
    await world.store.recovery.recover()
    assert heard


async def test_a_session_that_is_renewed_after_the_look_is_not_taken(world: World) -> None:
    """The statement that takes a session checks its expiry itself: what was read before it may be old."""
    session = await world.session("just in time", ttl=30)
    claimed = await world.enqueue_and_claim(session)
    await world.clock.tick(31)
    until_us = await world.clock.now() + 30_000_000
    renewed = update(sessions).where(sessions.c.id == session).values(expires_at=until_us)
    slipped_in: list[str] = []

    def look_then_take(connection: Connection) -> list[tuple[int, str]]:
        def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("UPDATE") and not slipped_in:
                slipped_in.append(statement)
                connection.execute(renewed)

        event.listen(connection, "before_cursor_execute", before)
        try:
            return world.store.recovery._take_expired(connection)
        finally:
            event.remove(connection, "before_cursor_execute", before)

    assert await world.store.database.write(look_then_take) == []
    assert slipped_in, "it had been read as expired"
    assert await world.store.recovery.recover() == Recovered()
    assert await world.finish(session, claimed) == []


async def test_giving_up_a_session_leaves_the_loss_of_others_to_be_told(world: World) -> None:
    """Whoever recovers tells of a lost session; whoever gives up his own tells of nothing."""
    dead = await world.session("dead", ttl=30)
    theirs = [await world.enqueue_and_claim(dead) for _ in range(2)]
    await world.clock.tick(31)
    given_up = await world.session("lives on", ttl=30)
    ours = [await world.enqueue_and_claim(given_up) for _ in range(3)]
    await world.store.recovery.give_up_session(given_up, limit=2)
    assert [(await world.run(claimed.id)).status for claimed in ours] == ["pending"] * 3
    assert [(await world.run(claimed.id)).status for claimed in theirs] == ["running"] * 2
    states = {row.id: row.state for row in await world.rows(sessions)}
    assert states == {dead: "alive", given_up: "ended"}
    recovered = await world.store.recovery.recover()
    assert recovered == Recovered(((dead, "dead"),), requeued=2)
    assert recovered.by_session == {dead: {"pending": 2}}
    assert await world.rows(receipts) == []


async def test_giving_up_a_session_leaves_the_runs_of_a_session_that_was_taken_before(world: World) -> None:
    """They are counted by the dispatcher that took it, which may need several passes."""
    dead = await world.session("dead", ttl=30)
    theirs = await world.enqueue_and_claim(dead)
    await world.clock.tick(31)
    assert await world.store.database.write(world.store.recovery._take_expired) == [(dead, "dead")]
    given_up = await world.session("lives on", ttl=30)
    ours = await world.enqueue_and_claim(given_up)
    await world.store.recovery.give_up_session(given_up)
    assert (await world.run(ours.id)).status == "pending"
    assert (await world.run(theirs.id)).status == "running"
    assert (await world.store.recovery.recover()).by_session == {dead: {"pending": 1}}
