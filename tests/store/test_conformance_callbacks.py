"""Callbacks: an outside service ends an attempt, once and in time, and only the one its token is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.callbacks import Fate, KnownCallback, token_digest
from fusee.engine.store.tables import callbacks, outbox, receipts, tickets
from fusee.errors import LeaseLost
from fusee.stores import Store
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR, DAY = 3600.0, 86400.0
DONE = Ended(End.SUCCEEDED, '{"rows":3}', effect=Effect.APPLIED)
BROKEN = Ended(End.FAILED, error="disk full", effect=Effect.UNKNOWN)


async def open_call(
    world: World,
    session: int,
    claimed: Claimed,
    *,
    token: str = "",
    timeout: float = HOUR,
    signed: bool = False,
) -> KnownCallback:
    """What a worker does before it calls; what the token is for."""
    digest = token_digest(token or f"token-{claimed.id}-{claimed.attempt}")
    await world.store.callbacks.open_callback(
        session, claimed.id, claimed.attempt, digest, timeout=timeout, signed=signed
    )
    known = await world.store.callbacks.known_callback(claimed.id, digest)
    assert known == KnownCallback(claimed.id, claimed.attempt, signed)
    return known


async def accepted(world: World, session: int, claimed: Claimed, **terms: Any) -> KnownCallback:
    """A call that its service took: the run waits."""
    known = await open_call(world, session, claimed, **terms)
    assert await world.settle(session, claimed, end=End.ACCEPTED, output="job 77") == []
    return known


async def waiting(world: World, session: int, **fields: Any) -> KnownCallback:
    return await accepted(world, session, await world.enqueue_and_claim(session, **fields))


async def row_of(world: World, known: KnownCallback) -> Any:
    (row,) = [
        r for r in await world.rows(callbacks) if (r.run_id, r.attempt) == (known.run_id, known.attempt)
    ]
    return row


# --- opening ------------------------------------------------------------------------------------------


async def test_only_a_digest_is_kept(world: World) -> None:
    session = await world.session()
    known = await open_call(
        world, session, await world.enqueue_and_claim(session), token="s3cret", timeout=1.5, signed=True
    )
    row = await row_of(world, known)
    assert "s3cret" not in str(row)
    assert (row.namespace, row.signed, row.timeout) == ("default", True, 1_500_000)
    assert (row.deadline, row.used_at, row.outcome) == (None, None, None)


async def test_who_lost_the_run_opens_nothing(world: World) -> None:
    session = await world.session()
    first = await world.enqueue_and_claim(session)
    await world.clock.tick(31)
    await world.store.recovery.recover()
    again = await world.session("worker-2")
    second = await world.claim_one(again)
    for who, attempt in ((session, first.attempt), (session, second.attempt), (again, first.attempt)):
        with pytest.raises(LeaseLost, match=f"attempt {attempt} of run {first.id}"):
            await world.store.callbacks.open_callback(
                who, first.id, attempt, "0" * 64, timeout=1, signed=False
            )
    assert await world.rows(callbacks) == []
    await open_call(world, again, second)


async def test_what_has_ended_opens_nothing(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.finish(session, claimed)
    with pytest.raises(LeaseLost):
        await open_call(world, session, claimed)


async def test_a_token_is_known_by_its_own_run_only(world: World) -> None:
    session = await world.session()
    mine, other = await waiting(world, session), await waiting(world, session)
    assert (
        await world.store.callbacks.known_callback(mine.run_id, token_digest(f"token-{other.run_id}-1"))
        is None
    )
    assert (
        await world.store.callbacks.known_callback(123456789, token_digest(f"token-{mine.run_id}-1")) is None
    )
    assert await world.store.callbacks.known_callback(mine.run_id, token_digest("")) is None


async def test_an_answer_finds_its_run_in_any_namespace(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    session = await world.session(store=tenant)
    await world.enqueue(store=tenant)
    (claimed,) = await world.claim(session, store=tenant)
    await tenant.callbacks.open_callback(session, claimed.id, 1, token_digest("t"), timeout=5, signed=False)
    await world.settle(session, claimed, end=End.ACCEPTED, store=tenant)
    assert (await tenant.runs.run(claimed.id)).callback_deadline == START + 5_000_000
    known = await world.store.callbacks.known_callback(claimed.id, token_digest("t"))
    assert known is not None
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.APPLIED
    assert (await tenant.runs.run(claimed.id)).status == "succeeded"


# --- waiting ------------------------------------------------------------------------------------------


async def test_an_accepted_call_leaves_its_worker_and_waits(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    known = await open_call(world, session, claimed, timeout=HOUR)
    await world.clock.tick(7)
    await world.settle(session, claimed, end=End.ACCEPTED, output="job 77")
    run = await world.run(known.run_id)
    assert (run.status, run.effect, run.attempt, run.spent) == ("waiting", "unknown", 1, 0)
    assert (run.output, run.result, run.finished_at) == ("job 77", None, None)
    assert run.reason == "waits for the service that it called"
    assert run.callback_deadline == START + (7 + 3600) * 1_000_000
    assert await world.store.runs.attempts(run.id) == [], "the attempt has not ended"
    assert await world.store.runs.owned(session) == []
    counts = (await world.store.queues.counts()).values()
    assert [by_status["waiting"][0] for by_status in counts] == [1]


async def test_a_dead_worker_takes_no_waiting_run_with_it(world: World) -> None:
    session = await world.session()
    known = await waiting(world, session)
    assert len(await world.rows(receipts)) == 1
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    assert (recovered.requeued, recovered.failed) == (0, 0)
    assert (await world.run(known.run_id)).status == "waiting"
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.APPLIED


async def test_a_wait_written_twice_is_written_once(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await accepted(world, session, claimed)
    await world.clock.tick(5)
    assert await world.settle(session, claimed, end=End.ACCEPTED) == [], (
        "its first answer was lost, not the run"
    )
    assert (await world.run(claimed.id)).callback_deadline == START + 3600 * 1_000_000


async def test_a_run_may_wait_without_a_callback(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.ACCEPTED)
    await world.sql("UPDATE fusee_runs SET effect = NULL")
    await world.clock.tick(365 * DAY)
    assert await world.store.callbacks.expire() == []
    assert (await world.run(claimed.id)).callback_deadline is None
    assert await world.store.runs.cancel(claimed.id, "enough") == "canceled"
    assert (await world.run(claimed.id)).effect == "unknown"


async def test_a_waiting_run_keeps_its_place_in_a_limited_queue(world: World) -> None:
    session = await world.session(ttl=1e6)
    ids = await world.enqueue(4, retry=RetryPolicy(base=60, jitter=0))
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))

    async def next_waits() -> KnownCallback:
        (claimed,) = await world.claim_limited(session)
        known = await accepted(world, session, claimed, timeout=10)
        assert await world.claim_limited(session) == [], "its work goes on elsewhere"
        assert [ticket.run_id for ticket in await world.rows(tickets)] == [known.run_id]
        return known

    await world.store.callbacks.answer(await next_waits(), DONE)
    await world.store.callbacks.answer(await next_waits(), BROKEN)
    await world.store.runs.cancel((await next_waits()).run_id, "enough")
    await next_waits()
    await world.clock.tick(10)
    await world.store.callbacks.expire()
    assert await world.rows(tickets) == []
    assert await world.statuses(ids) == ["succeeded", "delayed", "canceled", "delayed"]


# --- answers ------------------------------------------------------------------------------------------


async def test_an_answer_ends_the_run(world: World) -> None:
    session = await world.session()
    known = await waiting(world, session)
    await world.clock.tick(20)
    heard: list[str] = []
    world.store.wakes.on("ended", lambda: heard.append("ended"))
    answered = await world.store.callbacks.answer(known, DONE)
    assert (answered.fate, answered.status) == (Fate.APPLIED, "succeeded")
    one = answered.concluded
    assert one is not None
    assert (one.run_id, one.attempt, one.handler, one.end) == (known.run_id, 1, "work", End.SUCCEEDED)
    assert (one.status, one.seconds, one.error) == ("succeeded", 20.0, None)
    run = await world.run(known.run_id)
    assert (run.status, run.result, run.effect) == ("succeeded", {"rows": 3}, "applied")
    assert (run.output, run.spent, run.reason) == ("job 77", 0, None)
    assert run.finished_at == START + 20_000_000
    row = await row_of(world, known)
    assert (row.used_at, row.deadline, row.outcome) == (START + 20_000_000, None, None)
    assert await world.store.runs.attempts(run.id) == []
    assert heard


async def test_only_the_first_answer_counts(world: World) -> None:
    session = await world.session()
    known = await waiting(world, session)
    await world.store.callbacks.answer(known, DONE)
    before = await world.run(known.run_id)
    await world.clock.tick(1)
    for again in (DONE, BROKEN):
        answered = await world.store.callbacks.answer(known, again)
        assert (answered.fate, answered.status, answered.concluded) == (Fate.REPEATED, "succeeded", None)
    assert await world.run(known.run_id) == before


async def test_of_many_answers_at_once_one_counts(world: World) -> None:
    other = await world.another()
    session = await world.session()
    known = await waiting(world, session)
    stores = [world.store, other] * 4
    answers = await asyncio.gather(*(store.callbacks.answer(known, DONE) for store in stores))
    assert sorted(answer.fate for answer in answers) == [Fate.APPLIED] + [Fate.REPEATED] * 7


async def test_a_failure_is_tried_again_with_a_new_token(world: World) -> None:
    session = await world.session(ttl=HOUR)
    known = await waiting(world, session, retry=RetryPolicy(max_attempts=2, base=30, jitter=0))
    heard: list[str] = []
    world.store.wakes.on("delayed", lambda: heard.append("delayed"))
    await world.clock.tick(5)
    answered = await world.store.callbacks.answer(known, BROKEN)
    assert (answered.fate, answered.status) == (Fate.APPLIED, "delayed")
    assert heard
    run = await world.run(known.run_id)
    assert (run.status, run.spent, run.due_at) == ("delayed", 1, START + 35_000_000)
    (attempt,) = await world.store.runs.attempts(run.id)
    assert (attempt.attempt, attempt.end, attempt.error) == (1, End.FAILED, "disk full")
    assert (attempt.output, attempt.worker, attempt.effect) == ("job 77", "worker-1", "unknown")
    assert (attempt.started_at, attempt.finished_at) == (START, START + 5_000_000)

    await world.clock.tick(30)
    await world.store.ready_queue.promote()
    new = await accepted(world, session, await world.claim_one(session))
    assert new == KnownCallback(run.id, 2, signed=False)
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.REPEATED
    assert (await world.run(run.id)).status == "waiting"
    assert (await world.store.callbacks.answer(new, BROKEN)).status == "failed"
    run = await world.run(run.id)
    assert (run.status, run.spent, run.error) == ("failed", 2, "disk full")
    assert run.reason == "failed; 2 of 2 attempts spent"


async def test_a_service_may_name_the_delay_or_give_up(world: World) -> None:
    session = await world.session()
    soon = await waiting(world, session, retry=RetryPolicy(base=1000))
    await world.store.callbacks.answer(soon, Ended(End.FAILED, error="busy", after=12.5))
    assert (await world.run(soon.run_id)).due_at == START + 12_500_000
    over = await waiting(world, session, retry=RetryPolicy(max_attempts=100))
    await world.store.callbacks.answer(over, Ended(End.ABANDONED, error="no such account"))
    run = await world.run(over.run_id)
    assert (run.status, run.error, run.effect) == ("failed", "no such account", "unknown")


async def test_a_run_without_a_policy_follows_its_handlers(world: World) -> None:
    session = await world.session(policies={"work": RetryPolicy(max_attempts=1)})
    known = await waiting(world, session)
    assert (await world.store.callbacks.answer(known, BROKEN)).status == "failed"


async def test_the_owner_of_a_run_hears_of_its_end(world: World) -> None:
    session = await world.session(ttl=1e6)
    ids = await world.enqueue(4, retry=RetryPolicy(max_attempts=2, base=DAY))
    await world.sql("UPDATE fusee_runs SET kind = 'task'")
    calls = [await accepted(world, session, claimed) for claimed in await world.claim(session)]
    assert await world.rows(outbox) == []
    await world.store.callbacks.answer(calls[0], DONE)
    await world.store.callbacks.answer(calls[1], BROKEN)
    await world.store.runs.cancel(ids[2], "enough")
    told = {row.run_id for row in await world.rows(outbox) if row.kind == "task"}
    assert told == {ids[0], ids[2]}, "one is tried again, one waits"
    await world.store.callbacks.answer(calls[3], Ended(End.ABANDONED, error="no"))
    assert ("task", ids[3]) in {(row.kind, row.run_id) for row in await world.rows(outbox)}


# --- answers that come before the worker has said that its call was accepted ----------------------------


async def test_an_early_answer_is_kept_and_applied_when_the_wait_is_written(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    known = await open_call(world, session, claimed)
    answered = await world.store.callbacks.answer(known, DONE)
    assert (answered.fate, answered.status) == (Fate.KEPT, "running")
    assert (await world.run(claimed.id)).status == "running"
    assert (await world.store.callbacks.answer(known, BROKEN)).fate is Fate.REPEATED
    heard: list[str] = []
    world.store.wakes.on("ended", lambda: heard.append("ended"))
    assert await world.settle(session, claimed, end=End.ACCEPTED, output="job 77") == []
    run = await world.run(claimed.id)
    assert (run.status, run.result, run.output, run.effect) == ("succeeded", {"rows": 3}, "job 77", "applied")
    assert heard
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.REPEATED


async def test_an_early_failure_is_judged_by_the_runs_policy(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session, retry=RetryPolicy(max_attempts=2, base=30, jitter=0))
    known = await open_call(world, session, claimed)
    await world.store.callbacks.answer(known, BROKEN)
    await world.clock.tick(1)
    await world.settle(session, claimed, end=End.ACCEPTED, output="job 77")
    run = await world.run(claimed.id)
    assert (run.status, run.due_at, run.spent) == ("delayed", START + 31_000_000, 1)
    (attempt,) = await world.store.runs.attempts(run.id)
    assert (attempt.end, attempt.error, attempt.output) == (End.FAILED, "disk full", "job 77")


@pytest.mark.parametrize("end", [End.FAILED, End.TIMED_OUT, End.CANCELED])
async def test_an_early_answer_counts_whatever_became_of_the_call(world: World, end: End) -> None:
    """The service answered us, and its answer to the call got lost: doing it again would do it twice."""
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    known = await open_call(world, session, claimed)
    await world.store.callbacks.answer(known, DONE)
    if end is End.CANCELED:
        await world.store.runs.cancel(claimed.id, "too late")
    await world.settle(session, claimed, end=end, error="the connection broke")
    run = await world.run(claimed.id)
    assert (run.status, run.error, run.result) == ("succeeded", None, {"rows": 3})
    assert await world.store.runs.attempts(run.id) == []


async def test_an_early_answer_survives_the_worker(world: World) -> None:
    session = await world.session()
    await world.enqueue(2)
    first, second = await world.claim(session)
    known = await open_call(world, session, first)
    await open_call(world, session, second)
    await world.store.callbacks.answer(known, DONE)
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    assert (len(recovered.sessions), recovered.requeued, recovered.failed) == (1, 1, 0)
    assert await world.statuses([first.id, second.id]) == ["succeeded", "pending"]


async def test_a_wait_after_a_cancel_is_canceled(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    known = await open_call(world, session, claimed)
    await world.store.runs.cancel(claimed.id, "enough")
    assert await world.settle(session, claimed, end=End.ACCEPTED) == []
    run = await world.run(claimed.id)
    assert (run.status, run.reason, run.effect) == ("canceled", "enough", "unknown")
    assert await world.store.runs.attempts(run.id) == []
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.LATE


async def test_a_worker_lost_before_the_wait_leaves_a_dead_token(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    known = await open_call(world, session, claimed)
    await world.clock.tick(31)
    assert (await world.store.recovery.recover()).requeued == 1
    answered = await world.store.callbacks.answer(known, DONE)
    assert (answered.fate, answered.status) == (Fate.LATE, "pending")
    (attempt,) = await world.store.runs.attempts(claimed.id)
    assert (attempt.end, attempt.late_end, attempt.late_at) == (End.LOST, "succeeded", START + 31_000_000)
    assert await world.settle(session, claimed, end=End.ACCEPTED) == [(claimed.id, 1)], (
        "a zombie waits for nothing"
    )

    again = await world.session("worker-2")
    new = await accepted(world, again, await world.claim_one(again))
    assert (await world.store.callbacks.answer(known, BROKEN)).fate is Fate.LATE, (
        "the token of an older attempt"
    )
    assert (await world.store.callbacks.answer(new, DONE)).fate is Fate.APPLIED
    (attempt,) = await world.store.runs.attempts(claimed.id)
    assert (attempt.late_end, attempt.late_at) == ("succeeded", START + 31_000_000), "the first is kept"


# --- time ---------------------------------------------------------------------------------------------


async def test_a_callback_that_does_not_come_times_the_run_out(world: World) -> None:
    session = await world.session(ttl=1e6)
    claimed = await world.enqueue_and_claim(session, retry=RetryPolicy(max_attempts=2, base=30, jitter=0))
    known = await accepted(world, session, claimed, timeout=90)
    await world.clock.tick(89.999999)
    assert await world.store.callbacks.expire() == []
    await world.clock.tick(0.000001)
    (one,) = await world.store.callbacks.expire()
    assert (one.run_id, one.attempt, one.end, one.status) == (claimed.id, 1, End.TIMED_OUT, "delayed")
    assert (one.handler, one.seconds) == ("work", 90.0)
    assert await world.store.callbacks.expire() == []
    (attempt,) = await world.store.runs.attempts(claimed.id)
    assert (attempt.end, attempt.error) == (End.TIMED_OUT, "no callback came within 90 s of the call")
    assert (attempt.effect, attempt.output) == ("unknown", "job 77")

    await world.clock.tick(1)
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.LATE
    (attempt,) = await world.store.runs.attempts(claimed.id)
    assert (attempt.late_end, attempt.late_at) == ("succeeded", START + 91_000_000)

    await world.clock.tick(29)
    await world.store.ready_queue.promote()
    await accepted(world, session, await world.claim_one(session), timeout=90)
    await world.clock.tick(90)
    await world.store.callbacks.expire()
    run = await world.run(claimed.id)
    assert (run.status, run.spent, run.effect) == ("timed_out", 2, "unknown")
    assert run.reason == "timed out; 2 of 2 attempts spent"


async def test_an_answer_counts_until_someone_has_ended_the_waiting(world: World) -> None:
    """Late by the clock, and nobody has acted on that: the work was done, so that is what is kept."""
    session = await world.session()
    known = await accepted(world, session, await world.enqueue_and_claim(session), timeout=1)
    await world.clock.tick(100)
    assert (await world.store.callbacks.answer(known, DONE)).fate is Fate.APPLIED
    assert await world.store.callbacks.expire() == []


async def test_the_earliest_deadlines_are_looked_at_first_up_to_the_limit(world: World) -> None:
    session = await world.session(ttl=1e6)
    ids = await world.enqueue(4, retry=RetryPolicy(max_attempts=1))
    for claimed, timeout in zip(await world.claim(session), (30, 10, 20, 10_000), strict=True):
        await accepted(world, session, claimed, timeout=timeout)
    await world.clock.tick(60)
    assert {one.run_id for one in await world.store.callbacks.expire(limit=2)} == {ids[1], ids[2]}
    assert {one.run_id for one in await world.store.callbacks.expire(limit=2)} == {ids[0]}
    assert await world.statuses(ids) == ["timed_out", "timed_out", "timed_out", "waiting"]


async def test_racing_dispatchers_and_answers_leave_each_run_one_end(world: World) -> None:
    other = await world.another()
    session = await world.session(ttl=1e6)
    ids = await world.enqueue(30, retry=RetryPolicy(max_attempts=1))
    calls = [await accepted(world, session, claimed, timeout=1) for claimed in await world.claim(session)]
    await world.clock.tick(2)

    async def end(store: Store) -> list[int]:
        return [one.run_id for one in await store.callbacks.expire(limit=7)]

    answers, *passes = await asyncio.gather(
        asyncio.gather(*(world.store.callbacks.answer(known, DONE) for known in calls[::2])),
        *(end(store) for store in (world.store, other) * 6),
    )
    while left := await end(other):
        passes.append(left)
    expired = [run_id for part in passes for run_id in part]
    answered = [known.run_id for known, a in zip(calls[::2], answers, strict=True) if a.fate is Fate.APPLIED]
    assert {a.fate for a in answers} <= {Fate.APPLIED, Fate.LATE}
    assert sorted(expired + answered) == ids, "each ended once"
    by_status = dict(zip(ids, await world.statuses(ids), strict=True))
    assert {run_id for run_id, status in by_status.items() if status == "succeeded"} == set(answered)


async def test_a_deadline_that_was_seen_is_not_that_of_the_next_attempt(world: World) -> None:
    """Between looking for deadlines and locking, a run is answered, tried again, and waits anew."""
    session = await world.session(ttl=1e6)
    claimed = await world.enqueue_and_claim(session, retry=RetryPolicy(base=0))
    known = await accepted(world, session, claimed, timeout=10)
    await world.clock.tick(10)
    store = world.store
    seen = await store.database.read(lambda connection: store.callbacks._callbacks_due(connection, 10))
    assert list(seen) == [claimed.id]
    await store.callbacks.answer(known, BROKEN)
    await store.ready_queue.promote()
    again = await world.claim_one(session)
    await accepted(world, session, again, timeout=10)
    assert await store.database.write(lambda connection: store.callbacks._expire(connection, seen)) == []
    assert (await world.run(claimed.id)).status == "waiting"


async def test_a_deadline_looks_at_every_namespace(world: World) -> None:
    tenant = world.store.for_namespace("tenant")
    session = await world.session(store=tenant)
    await world.enqueue(store=tenant)
    (claimed,) = await world.claim(session, store=tenant)
    await tenant.callbacks.open_callback(session, claimed.id, 1, token_digest("t"), timeout=5, signed=False)
    await world.settle(session, claimed, end=End.ACCEPTED, store=tenant)
    await world.clock.tick(5)
    assert [one.run_id for one in await world.store.callbacks.expire()] == [claimed.id]


# --- cancel, prune ------------------------------------------------------------------------------------


async def test_a_waiting_run_is_canceled_at_once(world: World) -> None:
    session = await world.session()
    known = await waiting(world, session)
    await world.clock.tick(3)
    assert await world.store.runs.cancel(known.run_id, "enough") == "canceled"
    run = await world.run(known.run_id)
    assert (run.status, run.reason, run.effect) == ("canceled", "enough", "unknown")
    assert run.callback_deadline is None
    answered = await world.store.callbacks.answer(known, DONE)
    assert (answered.fate, answered.status) == (Fate.LATE, "canceled")
    assert (await world.run(known.run_id)) == run
    await world.clock.tick(2 * HOUR)
    assert await world.store.callbacks.expire() == []


async def test_racing_cancels_and_answers_leave_each_run_one_end(world: World) -> None:
    other = await world.another()
    session = await world.session()
    ids = await world.enqueue(20)
    calls = [await accepted(world, session, claimed) for claimed in await world.claim(session)]
    answers, _ = await asyncio.gather(
        asyncio.gather(*(world.store.callbacks.answer(known, DONE) for known in calls)),
        asyncio.gather(*(other.runs.cancel(run_id, "race") for run_id in ids), return_exceptions=True),
    )
    expected = ["succeeded" if answer.fate is Fate.APPLIED else "canceled" for answer in answers]
    assert await world.statuses(ids) == expected


async def test_callbacks_go_with_their_runs(world: World) -> None:
    session = await world.session(ttl=1e6)
    old, young, still = [await waiting(world, session) for _ in range(3)]
    await world.store.callbacks.answer(old, DONE)
    await world.clock.tick(DAY)
    await world.store.callbacks.answer(young, DONE)
    await world.clock.tick(HOUR)
    assert (await world.store.retention.prune(DAY, 0, 100)).count == 1
    assert {row.run_id for row in await world.rows(callbacks)} == {young.run_id, still.run_id}
    assert (
        await world.store.callbacks.known_callback(old.run_id, token_digest(f"token-{old.run_id}-1")) is None
    )
    assert (await world.store.callbacks.answer(old, DONE)).fate is Fate.LATE
