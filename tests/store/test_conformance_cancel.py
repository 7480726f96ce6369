"""Cancelling: what has not started never starts; what runs is told, and what it did is kept."""

from __future__ import annotations

import asyncio

import pytest

from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Conflict, NotFound
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("delay", [0, 60], ids=["pending", "delayed"])
async def test_after_a_cancel_no_attempt_starts(world: World, delay: float) -> None:
    session = await world.session(ttl=3600)
    run_id = await world.enqueue_one(delay=delay, priority=9)
    await world.clock.tick(1)
    assert await world.store.runs.cancel(run_id, "not needed") == "canceled"
    run = await world.run(run_id)
    assert (run.status, run.reason, run.effect, run.attempt) == ("canceled", "not needed", "none", 0)
    assert run.finished_at == run.cancel_requested_at == START + 1_000_000
    await world.clock.tick(3600)
    assert (await world.store.ready_queue.promote()).count == 0
    assert await world.claim(session) == []


async def test_a_retried_run_that_is_canceled_keeps_its_effect(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=End.FAILED, effect=Effect.APPLIED)
    assert await world.store.runs.cancel(claimed.id, "enough") == "canceled"
    run = await world.run(claimed.id)
    assert (run.status, run.effect, run.attempt) == ("canceled", "applied", 1)


async def test_a_cancel_repeated_is_harmless(world: World) -> None:
    run_id = await world.enqueue_one()
    await world.store.runs.cancel(run_id, "first")
    await world.clock.tick(1)
    assert await world.store.runs.cancel(run_id, "second") == "canceled"
    run = await world.run(run_id)
    assert (run.reason, run.finished_at) == ("first", START)


@pytest.mark.parametrize("end", [End.SUCCEEDED, End.ABANDONED, End.SKIPPED])
async def test_what_has_ended_cannot_be_canceled(world: World, end: End) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.settle(session, claimed, end=end)
    before = await world.run(claimed.id)
    with pytest.raises(Conflict, match=f"run {claimed.id} has ended"):
        await world.store.runs.cancel(claimed.id, "too late")
    assert await world.run(claimed.id) == before


async def test_cancelling_nothing_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="no run 123456789 in namespace 'default'"):
        await world.store.runs.cancel(123456789, "?")


async def test_a_running_run_is_asked_to_stop(world: World) -> None:
    session, other = await world.session("a"), await world.session("b")
    await world.enqueue(3)
    first, second, _ = await world.claim(session)
    heard: list[str] = []
    world.store.wakes.on("cancel", lambda: heard.append("cancel"))
    ids = [run.id for run in (first, second)]
    assert await world.store.runs.cancel_requests(session, ids) == []
    assert await world.store.runs.cancel(first.id, "stop it") == "running"
    assert heard
    assert (await world.run(first.id)).cancel_requested_at == START
    assert await world.store.runs.cancel_requests(session, ids) == [(first.id, 1)]
    assert await world.store.runs.cancel_requests(other, ids) == []
    await world.clock.tick(2)
    await world.store.runs.cancel(first.id, "stop it")
    assert (await world.run(first.id)).cancel_requested_at == START, "the first request counts"
    assert await world.store.runs.claimed_ago(first.id) == 2.0
    await world.settle(session, first, end=End.CANCELED, effect=Effect.APPLIED)
    run = await world.run(first.id)
    assert (run.status, run.effect) == ("canceled", "applied")
    assert await world.store.runs.cancel_requests(session, ids) == []
    assert await world.store.runs.claimed_ago(first.id) is None


async def test_an_attempt_that_begins_late_is_confirmed_unless_it_was_canceled(world: World) -> None:
    """A cancel that comes after the confirmation counts from there; nothing is confirmed after a cancel."""
    session, other = await world.session("a", ttl=3600), await world.session("b", ttl=3600)
    claimed = await world.enqueue_and_claim(session)
    await world.clock.tick(10)
    assert not await world.store.runs.confirm_start(other, claimed.id, claimed.attempt)
    assert not await world.store.runs.confirm_start(session, claimed.id, claimed.attempt + 1)
    assert await world.store.runs.claimed_ago(claimed.id) == 10.0, "what was refused changed nothing"
    assert await world.store.runs.confirm_start(session, claimed.id, claimed.attempt)
    assert await world.store.runs.claimed_ago(claimed.id) == 0.0
    await world.clock.tick(1)
    await world.store.runs.cancel(claimed.id, "stop it")
    assert await world.store.runs.claimed_ago(claimed.id) == 1.0
    assert not await world.store.runs.confirm_start(session, claimed.id, claimed.attempt)
    await world.settle(session, claimed, end=End.CANCELED, effect=Effect.NONE)
    assert not await world.store.runs.confirm_start(session, claimed.id, claimed.attempt)


@pytest.mark.parametrize(
    ("end", "fields"),
    [
        (End.FAILED, {"effect": Effect.APPLIED}),
        (End.TIMED_OUT, {"effect": Effect.UNKNOWN}),
        (End.LOST, {"effect": Effect.UNKNOWN}),
        (End.RETURNED, {"effect": Effect.NONE}),
    ],
)
async def test_after_a_cancel_no_further_attempt_starts(world: World, end: End, fields: dict) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.store.runs.cancel(claimed.id, "enough")
    assert await world.settle(session, claimed, end=end, **fields) == []
    run = await world.run(claimed.id)
    assert (run.status, run.effect, run.reason) == ("canceled", fields["effect"], "enough")
    assert await world.claim(session) == []
    await world.clock.tick(100_000)
    assert (await world.store.ready_queue.promote()).count == 0


@pytest.mark.parametrize(("end", "status"), [(End.SUCCEEDED, "succeeded"), (End.ABANDONED, "failed")])
async def test_a_real_end_is_kept_though_someone_asked_to_cancel(world: World, end: End, status: str) -> None:
    session = await world.session()
    await world.enqueue(2)
    first, second = await world.claim(session)
    await world.store.runs.cancel(first.id, "enough")
    await world.store.runs.cancel(second.id, "enough")
    await world.settle(session, first, end=end, effect=Effect.APPLIED)
    assert (await world.run(first.id)).status == status
    await world.finish(session, second)
    assert (await world.run(second.id)).status == "succeeded"


async def test_a_canceled_run_whose_worker_dies_is_not_run_again(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session)
    await world.store.runs.cancel(claimed.id, "enough")
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    assert (recovered.canceled, recovered.requeued, recovered.failed) == (1, 0, 0)
    run = await world.run(claimed.id)
    assert (run.status, run.effect) == ("canceled", "unknown")


async def test_recovery_tells_what_it_wrote_of_a_canceled_run_without_attempts(world: World) -> None:
    session = await world.session()
    claimed = await world.enqueue_and_claim(session, retry=RetryPolicy(max_attempts=1))
    await world.store.runs.cancel(claimed.id, "enough")
    await world.clock.tick(31)
    recovered = await world.store.recovery.recover()
    told = {"canceled": recovered.canceled, "failed": recovered.failed, "pending": recovered.requeued}
    assert told[(await world.run(claimed.id)).status] == 1


async def test_a_long_reason_is_cut_not_refused(world: World) -> None:
    run_id = await world.enqueue_one()
    await world.store.runs.cancel(run_id, "because " * 200)
    reason = (await world.run(run_id)).reason
    assert reason is not None and len(reason) == 500
    session = await world.session()
    running = await world.enqueue_and_claim(session)
    await world.store.runs.cancel(running.id, "because " * 200)
    assert (await world.run(running.id)).status == "running"


async def test_racing_claims_and_cancels_leave_each_run_one_fate(world: World) -> None:
    other = await world.another()
    session = await world.session(ttl=3600)
    ids = await world.enqueue(60)
    answers = await asyncio.gather(
        *(other.runs.cancel(run_id, "race") for run_id in ids[::3]),
        *(world.claim(session, 10) for _ in range(8)),
    )
    canceled = {run_id for run_id, status in zip(ids[::3], answers, strict=False) if status == "canceled"}
    claimed = [run.id for part in answers[20:] for run in part]  # type: ignore[union-attr]
    assert len(claimed) == len(set(claimed))
    assert not canceled & set(claimed), "canceled was acknowledged, and an attempt started"
    statuses = dict(zip(ids, await world.statuses(ids), strict=True))
    assert {run_id for run_id, status in statuses.items() if status == "canceled"} == canceled


async def test_racing_promotions_and_cancels_leave_each_run_one_fate(world: World) -> None:
    other = await world.another()
    ids = await world.enqueue(40, delay=1)
    await world.clock.tick(2)
    await asyncio.gather(
        *(other.runs.cancel(run_id, "race") for run_id in ids[::2]),
        *(world.store.ready_queue.promote(10) for _ in range(6)),
    )
    while await world.store.ready_queue.promote():
        pass
    assert await world.tally() == {"canceled": 20, "pending": 20}
