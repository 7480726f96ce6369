"""The fence: only the session that owns an attempt writes about it; every other write changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from fusee.engine.model.outcome import Effect, End, Ended, Verdict
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order, Settlement
from fusee.engine.store.tables import attempts, tickets
from tests.store.harness import START, World, finished_of, settlement

pytestmark = pytest.mark.asyncio(loop_scope="session")

Write = Callable[[World, int, Claimed], Awaitable[list[tuple[int, int]]]]
"""What a session says about a run; answers what was refused."""

TWO = RetryPolicy(max_attempts=2, base=10, jitter=0)


def _settles(end: End, **fields: Any) -> Write:
    async def write(world: World, session: int, claimed: Claimed) -> list[tuple[int, int]]:
        return await world.settle(session, claimed, end=end, policy=TWO, **fields)

    return write


async def _finishes(world: World, session: int, claimed: Claimed) -> list[tuple[int, int]]:
    return await world.finish(session, claimed, result='"mine"')


async def _finishes_without_a_result(world: World, session: int, claimed: Claimed) -> list[tuple[int, int]]:
    return await world.finish(session, claimed)


async def _finishes_and_claims(world: World, session: int, claimed: Claimed) -> list[tuple[int, int]]:
    order = Order(5, await world.lane_ids(handler="else"), 4711)
    return (await world.store.claims.exchange(session, finished_of([claimed], '"mine"'), order)).refused


WRITES: dict[str, tuple[Write, str]] = {
    "finish": (_finishes, "succeeded"),
    "finish without a result": (_finishes_without_a_result, "succeeded"),
    "finish and claim": (_finishes_and_claims, "succeeded"),
    "succeed": (_settles(End.SUCCEEDED, result='"mine"', effect=Effect.APPLIED), "succeeded"),
    "retry": (_settles(End.FAILED, error="broken"), "delayed"),
    "fail": (_settles(End.ABANDONED, error="hopeless"), "failed"),
    "time_out": (_settles(End.TIMED_OUT, error="slow", final=True), "timed_out"),
    "cancel": (_settles(End.CANCELED), "canceled"),
    "skip": (_settles(End.SKIPPED, error="nothing to do", effect=Effect.NONE), "skipped"),
    "lose": (_settles(End.LOST), "pending"),
    "release": (_settles(End.RETURNED, effect=Effect.NONE), "pending"),
}

every_write = pytest.mark.parametrize(("write", "status"), WRITES.values(), ids=list(WRITES))


async def _everything(world: World, run_id: int) -> tuple[Any, ...]:
    return await world.run(run_id), await world.store.runs.attempts(run_id)


# --- the owner's write counts -------------------------------------------------------------------------


@every_write
async def test_the_owners_write_counts(world: World, write: Write, status: str) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    assert await write(world, session, claimed) == []
    assert (await world.run(claimed.id)).status == status


@every_write
async def test_a_write_repeated_is_accepted_and_changes_nothing(
    world: World, write: Write, status: str
) -> None:
    """Its first answer may have been lost on the way."""
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await write(world, session, claimed)
    before = await _everything(world, claimed.id)
    await world.clock.tick(1)
    refused = await write(world, session, claimed)
    if status != "pending" or before[0].worker is not None:
        assert refused == []
    assert await _everything(world, claimed.id) == before


# --- everyone else's changes nothing ------------------------------------------------------------------


@every_write
async def test_the_fence_refuses_another_session(world: World, write: Write, status: str) -> None:
    owner, stranger = await world.session("owner"), await world.session("stranger")
    claimed = await world.enqueue_and_claim(owner)
    before = await _everything(world, claimed.id)
    assert await write(world, stranger, claimed) == [(claimed.id, 1)]
    assert await _everything(world, claimed.id) == before


@every_write
@pytest.mark.parametrize("attempt", [1, 3], ids=["an earlier", "a later"])
async def test_the_fence_refuses_another_attempt(
    world: World, write: Write, status: str, attempt: int
) -> None:
    session = await world.session()
    first = await world.enqueue_and_claim(session)
    await world.settle(session, first, end=End.RETURNED, effect=Effect.NONE)
    second = await world.claim_one(session)
    assert second.attempt == 2
    before = await _everything(world, second.id)
    assert await write(world, session, replace(second, attempt=attempt)) == [(second.id, attempt)]
    assert await _everything(world, second.id) == before


@every_write
@pytest.mark.parametrize("taken", [False, True], ids=["waiting again", "running elsewhere"])
async def test_a_worker_that_lost_its_lease_changes_nothing(
    world: World, write: Write, status: str, taken: bool
) -> None:
    late, other = await world.session("late"), await world.session("other", ttl=3600)
    claimed = await world.enqueue_and_claim(late)
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).requeued == 1
    if taken:
        assert (await world.claim_one(other)).attempt == 2
    before = await _everything(world, claimed.id)
    assert await write(world, late, claimed) == [(claimed.id, 1)]
    assert await _everything(world, claimed.id) == before


@every_write
async def test_the_fence_refuses_a_run_that_does_not_exist(world: World, write: Write, status: str) -> None:
    session = await world.session()
    nobody = Claimed(10**12, 1, 0, 1, None, None)
    assert await write(world, session, nobody) == [(10**12, 1)]


async def test_a_refused_one_among_many_does_not_stop_the_others(world: World) -> None:
    session, other = await world.session("a"), await world.session("b")
    await world.enqueue(6)
    mine, theirs = await world.claim(session, 4), await world.claim(other, 2)
    assert await world.finish(session, mine[0], theirs[0], mine[1]) == [(theirs[0].id, 1)]
    refused = await world.settle(session, mine[2], theirs[1], mine[3], end=End.FAILED, error="no")
    assert refused == [(theirs[1].id, 1)]
    assert await world.statuses([run.id for run in mine]) == ["succeeded"] * 2 + ["delayed"] * 2
    assert await world.statuses([run.id for run in theirs]) == ["running"] * 2


async def test_a_finish_does_not_overwrite_what_was_settled(world: World) -> None:
    session = await world.session()
    await world.enqueue(3)
    released, failed, retried = await world.claim(session)
    await world.settle(session, released, end=End.RETURNED, effect=Effect.NONE)
    await world.settle(session, failed, end=End.ABANDONED)
    await world.settle(session, retried, end=End.FAILED)
    all_three = {(run.id, 1) for run in (released, failed, retried)}
    assert set(await world.finish(session, released, failed, retried)) == all_three
    assert await world.statuses([released.id, failed.id, retried.id]) == ["pending", "failed", "delayed"]


# --- what each verdict writes -------------------------------------------------------------------------


async def test_a_success_clears_what_earlier_attempts_left(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.FAILED, error="broken", output="half", after=0)
    await world.store.ready_queue.promote()
    again = await world.claim_one(session)
    await world.clock.tick(3)
    await world.finish(session, again, result="42")
    run = await world.run(claimed.id)
    assert (run.status, run.attempt, run.spent, run.result) == ("succeeded", 2, 1, 42)
    assert (run.error, run.reason, run.output, run.effect) == (None, None, None, "applied")
    assert run.finished_at == START + 3_000_000
    (kept,) = await world.store.runs.attempts(claimed.id)
    assert (kept.attempt, kept.end, kept.error, kept.output) == (1, "failed", "broken", "half")
    assert kept.worker == "worker-1"


async def test_a_first_success_leaves_no_other_row(world: World) -> None:
    session = await world.session()
    await world.finish(session, await world.enqueue_and_claim(session))
    assert await world.rows(attempts) == []


async def test_a_retry_waits_as_long_as_its_verdict_says(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session, priority=3)
    await world.clock.tick(5)
    await world.settle(session, claimed, end=End.FAILED, error="broken", policy=TWO)
    run = await world.run(claimed.id)
    assert (run.status, run.attempt, run.spent) == ("delayed", 1, 1)
    assert (run.error, run.reason) == ("broken", "failed; tried again")
    assert run.due_at == START + 15_000_000
    assert run.finished_at is None
    await world.clock.tick(10)
    assert (await world.store.ready_queue.promote()).count == 1
    again = await world.claim_one(session)
    assert (again.attempt, again.spent) == (2, 1)
    await world.settle(session, again, end=End.FAILED, error="broken again", policy=TWO)
    run = await world.run(claimed.id)
    assert (run.status, run.spent, run.reason) == ("failed", 2, "failed; 2 of 2 attempts spent")
    assert run.finished_at == START + 15_000_000
    assert [kept.attempt for kept in await world.store.runs.attempts(claimed.id)] == [1]


async def test_a_release_keeps_the_place_in_line_and_spends_nothing(world: World) -> None:
    session = await world.session()
    first, second, third = await world.enqueue(3)
    await world.clock.tick(60)
    claimed = await world.claim(session, 2)
    await world.clock.tick(60)
    await world.settle(session, claimed[0], end=End.RETURNED, effect=Effect.NONE)
    run = await world.run(first)
    assert (run.status, run.attempt, run.spent, run.due_at) == ("pending", 1, 0, START)
    assert await world.store.runs.attempts(first) == []
    again = await world.claim(session)
    assert [(run.id, run.attempt, run.spent) for run in again] == [(first, 2, 0), (third, 1, 0)]
    assert second not in {run.id for run in again}


async def test_a_release_after_it_had_started_is_kept_for_the_reader(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.RETURNED, effect=Effect.UNKNOWN, error="drained")
    (kept,) = await world.store.runs.attempts(claimed.id)
    assert (kept.end, kept.effect, kept.error) == ("returned", "unknown", "drained")


async def test_a_lost_run_leaves_its_session(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.LOST)
    run = await world.run(claimed.id)
    assert (run.status, run.spent, run.worker) == ("pending", 1, None)
    assert (await world.claim_one(session)).attempt == 2


@pytest.mark.parametrize(
    ("end", "status", "effect"),
    [
        (End.ABANDONED, "failed", Effect.UNKNOWN),
        (End.SKIPPED, "skipped", Effect.NONE),
        (End.CANCELED, "canceled", Effect.APPLIED),
    ],
)
async def test_a_terminal_verdict_is_written_with_its_reason(
    world: World, end: End, status: str, effect: Effect
) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.clock.tick(1)
    await world.settle(session, claimed, end=end, error="the reason", output="tail", effect=effect)
    run = await world.run(claimed.id)
    assert (run.status, run.error, run.output, run.effect) == (status, "the reason", "tail", effect)
    assert run.reason
    assert run.finished_at == START + 1_000_000
    assert (await world.store.runs.ended([claimed.id])) == {claimed.id: RunStatus(status)}


async def test_a_later_attempt_that_did_nothing_does_not_undo_an_effect(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.FAILED, effect=Effect.APPLIED, after=0)
    await world.store.ready_queue.promote()
    again = await world.claim_one(session)
    await world.settle(session, again, end=End.SKIPPED, effect=Effect.NONE)
    assert (await world.run(claimed.id)).effect == "applied"


async def test_a_long_reason_is_cut_not_refused(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    verdict = Verdict("skip", RunStatus.SKIPPED, "because " * 200)
    ended = Ended(End.SKIPPED, effect=Effect.NONE)
    assert await world.store.outcomes.settle(session, [Settlement(claimed.id, 1, ended, verdict)]) == []
    reason = (await world.run(claimed.id)).reason
    assert reason is not None and len(reason) == 500


async def test_hundreds_are_settled_at_once(world: World) -> None:
    session = await world.session()
    await world.enqueue(600)
    claimed = await world.claim(session)
    ends = [End.FAILED, End.RETURNED, End.ABANDONED]
    settlements = [
        settlement(run, ends[n % 3], effect=Effect.NONE, error=f"run {run.id}")
        for n, run in enumerate(claimed)
    ]
    assert await world.store.outcomes.settle(session, settlements) == []
    assert await world.tally() == {"delayed": 200, "pending": 200, "failed": 200}
    assert (await world.run(claimed[0].id)).error == f"run {claimed[0].id}"


async def test_a_late_result_is_refused_and_kept_for_the_reader(world: World) -> None:
    late = await world.session("late")
    claimed = await world.enqueue_and_claim(late)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    await world.clock.tick(1)
    assert await world.finish(late, claimed) == [(claimed.id, 1)]
    await world.store.outcomes.record_stale([(claimed.id, 1, "succeeded")])
    (kept,) = await world.store.runs.attempts(claimed.id)
    assert (kept.end, kept.late_end, kept.late_at) == ("lost", "succeeded", START + 32_000_000)
    assert (await world.run(claimed.id)).status == "pending"
    await world.store.outcomes.record_stale([])
    await world.store.outcomes.record_stale([(claimed.id, 9, "failed")])


# --- the database guards too --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "status = 'sleeping'",
        "status = 'succeeded'",
        "finished_at = 1",
        "status = 'running'",
        "spent = 1",
        "attempt = -1",
    ],
)
async def test_the_database_itself_refuses_what_cannot_be(world: World, change: str) -> None:
    run_id = await world.enqueue_one()
    before = asdict(await world.run(run_id))
    with pytest.raises(DBAPIError):
        await world.sql(f"UPDATE fusee_runs SET {change} WHERE id = {run_id}")
    assert asdict(await world.run(run_id)) == before


async def test_an_unlimited_finish_leaves_tickets_alone(world: World) -> None:
    session = await world.session()
    await world.finish(session, await world.enqueue_and_claim(session))
    assert await world.rows(tickets) == []
    assert (await world.store.claims.exchange(session, Finished(), Order())).refused == []
