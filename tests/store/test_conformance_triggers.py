"""Fires that no schedule makes: by hand, and for a stretch of the past."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.errors import Conflict, Invalid
from fusee.tasks.model import catch_up
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap
from fusee.tasks.store import backfills as backfills_module
from fusee.tasks.store.tables import backfills
from tests.store.clockwork import Clockwork, at, minutes

pytestmark = pytest.mark.asyncio(loop_scope="session")


# --- by hand -------------------------------------------------------------------------------------------


async def test_fired_by_hand_it_runs_now(works: Clockwork) -> None:
    await works.make("t", manual=True, payload={"a": 1, "b": 2})
    await works.go_to(0.5)
    triggered = await works.store.tasks.triggers.trigger(
        "t", payload={"b": 3, "c": 4}, reason="ann wanted it"
    )
    assert (triggered.fire_time, triggered.decision, triggered.created) == (at(0.5), "run", True)
    assert triggered.rule == "ann wanted it, and nothing in its way"
    run = await works.store.runs.run(triggered.run_ids[0])
    assert (run.status, run.payload, run.fire_time) == ("pending", {"a": 1, "b": 3, "c": 4}, at(0.5))
    (fire,) = await works.shards_of("t", 0.5)
    assert (fire.cause, fire.code) == ("manual", "manual")


async def test_for_an_http_call_what_is_given_fills_the_request_in(works: Clockwork) -> None:
    await works.make(
        "t", manual=True, executor="http", handler="http", payload={"url": "http://x", "params": {"a": 1}}
    )
    triggered = await works.store.tasks.triggers.trigger("t", payload={"b": 2})
    run = await works.store.runs.run(triggered.run_ids[0])
    assert run.payload == {"url": "http://x", "params": {"a": 1, "b": 2}}


async def test_by_hand_twice_in_one_moment_is_two_fires(works: Clockwork) -> None:
    await works.make("t", manual=True, max_concurrency=0)
    times = [(await works.store.tasks.triggers.trigger("t")).fire_time for _ in range(3)]
    assert times == [at(0), at(0) + 1, at(0) + 2]


async def test_by_hand_at_the_time_of_a_due_fire_takes_nothing_from_the_schedule(
    works: Clockwork,
) -> None:
    await works.make("t", max_concurrency=0)
    await works.go_to(1)
    triggered = await works.store.tasks.triggers.trigger("t")
    assert triggered.fire_time == at(1) + 1
    await works.fire_at(1)
    await works.fire_at(2)
    assert [line.split()[0] for line in await works.record()] == ["1", "1", "2"]
    (scheduled,) = await works.shards_of("t", 1)
    assert scheduled.cause == "schedule"


@pytest.mark.parametrize(
    ("policies", "record", "rule"),
    [
        (
            {},
            "0.6 queue blocked (queue)",
            "concurrency_policy QUEUE: 1 of at most 1 under way; queued at place 1",
        ),
        ({"overlap": Overlap.SKIP}, "0.6 skip skipped", "overlap_action SKIP: run {run} has not ended"),
        (
            {"concurrency": Concurrency.SKIP},
            "0.6 skip skipped",
            "concurrency_policy SKIP: 1 of at most 1 under way",
        ),
        (
            {"overlap": Overlap.PARALLEL},
            "0.6 run pending",
            "overlap_action PARALLEL: run {run} has not ended; started beside it, over max_concurrency 1",
        ),
        (
            {"overlap": Overlap.CANCEL_PREV},
            "0.6 run blocked (previous)",
            "overlap_action CANCEL_PREV: run {run} has not ended;"
            " canceled, and this one starts when it has ended",
        ),
    ],
)
async def test_by_hand_the_policies_hold(
    works: Clockwork, policies: dict[str, Any], record: str, rule: str
) -> None:
    await works.make("t", manual=True, **policies)
    await works.go_to(0.5)
    first = await works.store.tasks.triggers.trigger("t")
    await works.claim()
    await works.go_to(0.6)
    second = await works.store.tasks.triggers.trigger("t")
    assert second.rule == rule.format(run=first.run_ids[0])
    assert await works.record() == ["0.5 run running", record]


async def test_by_hand_a_failure_counts_like_any_other(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.SKIP)
    await works.go_to(0.5)
    await works.store.tasks.triggers.trigger("t")
    await works.claim()
    await works.fail("t", 0.5)
    await works.fire_at(1)
    assert await works.record() == ["0.5 run failed", "1 skip skipped"]


async def test_a_paused_task_fires_by_hand_a_disabled_one_does_not(works: Clockwork) -> None:
    await works.make("t")
    await works.store.tasks.steering.steer_task("t", "pause")
    assert (await works.store.tasks.triggers.trigger("t")).decision == "run"
    await works.store.tasks.steering.steer_task("t", "disable")
    with pytest.raises(Conflict, match="t is disabled: enable it first"):
        await works.store.tasks.triggers.trigger("t")


async def test_a_key_makes_a_repeated_request_harmless(works: Clockwork) -> None:
    await works.make("t", manual=True, shards=2, max_concurrency=0)
    await works.make("u", manual=True)
    first = await works.store.tasks.triggers.trigger("t", idempotency_key="k")
    await works.go_to(1)
    again = await works.store.tasks.triggers.trigger("t", idempotency_key="k")
    assert (again.created, again.fire_time, list(again.run_ids)) == (
        False,
        first.fire_time,
        list(first.run_ids),
    )
    assert len(await works.record()) == 1
    with pytest.raises(Conflict, match="was used for another request"):
        await works.store.tasks.triggers.trigger("u", idempotency_key="k")
    await works.store.tasks.steering.steer_task("t", "disable")
    assert (await works.store.tasks.triggers.trigger("t", idempotency_key="k")).run_ids, (
        "what was answered is answered again"
    )


async def test_of_two_with_one_key_at_once_one_fires(works: Clockwork) -> None:
    other = await works.world.another()
    await works.make("t", manual=True, max_concurrency=0)
    for n in range(5):
        both = await asyncio.gather(
            works.store.tasks.triggers.trigger("t", idempotency_key=f"k{n}"),
            other.tasks.triggers.trigger("t", idempotency_key=f"k{n}"),
        )
        assert sorted(one.created for one in both) == [False, True]
        assert list(both[0].run_ids) == list(both[1].run_ids)


async def test_two_by_hand_at_once_never_pass_the_cap(works: Clockwork) -> None:
    other = await works.world.another()
    await works.make("t", manual=True, concurrency=Concurrency.SKIP)
    both = await asyncio.gather(works.store.tasks.triggers.trigger("t"), other.tasks.triggers.trigger("t"))
    assert sorted(one.decision for one in both) == ["run", "skip"]


async def test_by_hand_while_the_scan_decides_never_passes_the_cap(works: Clockwork) -> None:
    other = await works.world.another()
    for n in range(8):
        await works.make(f"t{n}", concurrency=Concurrency.SKIP)
    await works.go_to(1)
    await asyncio.gather(
        works.store.tasks.firing.fire_due(), *(other.tasks.triggers.trigger(f"t{n}") for n in range(8))
    )
    await works.store.tasks.firing.fire_due()
    for n in range(8):
        assert sorted(row.decision for row in (await works.records())[f"t{n}"]) == ["run", "skip"]


# --- for a stretch of the past -------------------------------------------------------------------------


async def _outage(works: Clockwork, **policies: Any) -> None:
    """Minutes 1 and 6 ran, 2 to 5 were missed, it is minute 6.5."""
    await works.make("t", catch_up=CatchUp.NONE, max_concurrency=0, **policies)
    await works.fire_at(1)
    await works.fire_at(6)
    await works.claim()
    for minute in (1, 6):
        await works.succeed("t", minute)
    await works.go_to(6.5)


async def test_a_dry_run_says_what_would_run_and_writes_nothing(works: Clockwork) -> None:
    await _outage(works)
    before = await works.record()
    plan = await works.store.tasks.backfills.start("t", at(1), at(100), dry_run=True)
    assert (plan.id, minutes(plan.times), plan.left) == (None, [2, 3, 4, 5], 2)
    assert await works.record() == before
    assert await works.count(backfills) == 0


async def test_only_what_did_not_run_runs_oldest_first_so_many_at_once(
    works: Clockwork,
) -> None:
    await _outage(works)
    made = await works.store.tasks.backfills.start("t", at(1), at(100), concurrency=2)
    assert (minutes(made.times), made.left, made.concurrency) == ([2, 3, 4, 5], 2, 2)
    order: list[str] = []
    going: list[str] = []
    while started := await works.claim() or going:
        fresh = [one for one in started if one not in going]
        order, going = order + fresh, going + fresh
        under_way = [row for row in (await works.records())["t"] if row.status in ("pending", "running")]
        assert len(under_way) == len(going) <= 2
        await works.succeed("t", float(going.pop(0).split()[1]))
    assert order == ["t 2", "t 3", "t 4", "t 5"]
    assert [line.split()[2] for line in await works.record()] == ["succeeded"] * 6
    (fire,) = await works.shards_of("t", 3)
    assert (fire.cause, fire.code, fire.backfill_id) == ("backfill", "backfill", made.id)
    rule = "catch_up_mode NONE: nothing could fire it when it was due"
    assert fire.rule == f"backfill {made.id} (was: {rule})"


@pytest.mark.parametrize("end", ["failed", "canceled"])
async def test_a_backfill_goes_on_after_a_failure_and_a_cancel(works: Clockwork, end: str) -> None:
    await _outage(works)
    await works.store.tasks.backfills.start("t", at(1), at(100))
    await works.claim()
    await (works.fail("t", 2) if end == "failed" else works.cancel("t", 2))
    assert await works.claim() == ["t 3"]
    task = await works.task()
    assert (task.last_status, task.failures) == ("succeeded", 0), "a backfill is apart from the schedule"


async def test_what_is_canceled_before_its_turn_is_passed_over(works: Clockwork) -> None:
    await _outage(works)
    await works.store.tasks.backfills.start("t", at(1), at(100))
    await works.claim()
    await works.cancel("t", 3)
    await works.store.runs.cancel((await works.run_of("t", 4)).id, "no")  # nobody has heard of it yet
    await works.succeed("t", 2)
    assert await works.claim() == ["t 5"]


async def test_a_backfill_and_the_schedule_take_no_place_from_each_other(
    works: Clockwork,
) -> None:
    await works.make("t", catch_up=CatchUp.NONE, overlap=Overlap.CANCEL_PREV)
    await works.go_to(4.5)
    await works.store.tasks.firing.fire_due()
    await works.store.tasks.backfills.start("t", at(1), at(4), concurrency=2)
    assert sorted(await works.claim()) == ["t 1", "t 2"]
    await works.fire_at(5)
    assert (await works.record())[-1] == "5 run pending", "nothing of the schedule's is under way"
    assert await works.statuses("t", 1, 2) == ["running", "running"], "and it cancels none of them"


async def test_shards_of_a_backfill_count_as_one(works: Clockwork) -> None:
    await _outage(works, shards=2)
    await works.claim()
    for minute in (1, 6):
        await works.succeed("t", minute, shard=1)
    await works.store.tasks.backfills.start("t", at(1), at(100))
    assert await works.claim() == ["t 2", "t 2"]
    await works.cancel("t", 3, shard=0)
    await works.succeed("t", 2, shard=0)
    assert await works.claim() == []
    await works.succeed("t", 2, shard=1)
    assert await works.claim() == ["t 3"]
    await works.succeed("t", 3, shard=1)
    assert await works.claim() == ["t 4", "t 4"]


async def test_what_was_skipped_or_canceled_before_it_began_did_not_run(works: Clockwork) -> None:
    await works.make("up")
    await works.make("t", cron="* * * * *", after=("up",), max_concurrency=0)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.claim()
    await works.fail("up", 1)
    await works.cancel("t", 2)
    assert await works.record() == ["1 skip skipped", "2 run canceled"]
    made = await works.store.tasks.backfills.start("t", at(1), at(2), concurrency=5)
    assert minutes(made.times) == [1, 2]
    assert await works.record() == ["1 run pending", "2 run pending"], "a backfill waits for nobody"


async def test_what_is_under_way_is_left_alone(works: Clockwork) -> None:
    await works.make("t")
    for minute in (1, 2):
        await works.fire_at(minute)
    assert await works.record() == ["1 run pending", "2 queue blocked (queue)"]
    made = await works.store.tasks.backfills.start("t", at(1), at(2))
    assert (minutes(made.times), made.left) == ([], 2)


async def test_what_is_due_and_not_decided_is_left_to_the_scan(works: Clockwork) -> None:
    await works.make("t", catch_up=CatchUp.FULL)
    await works.go_to(3.5)
    made = await works.store.tasks.backfills.start("t", at(-2), at(100))
    assert minutes(made.times) == [-2, -1, 0]
    await works.fire_at(3.5)
    assert [line.split()[0] for line in await works.record()] == ["-2", "-1", "0", "1", "2", "3"]


async def test_an_interval_is_made_up_for_in_its_own_beat(works: Clockwork) -> None:
    await works.go_to(0.25)
    await works.make("t", every=60)
    await works.fire_at(1.25)
    made = await works.store.tasks.backfills.start("t", at(-1), at(2))
    assert (minutes(made.times), made.left) == ([-0.75, 0.25], 1)


async def test_the_past_of_a_row_that_stands_for_many_can_be_made_up_for(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "MOST_ROWS", 20)
    await works.make("t", cron="*/30 * * * * *", catch_up=CatchUp.NONE, catch_up_cap=1)
    await works.fire_at(50.2)
    many = (await works.records())["t"][0]
    assert (many.fire_time, many.through is None) == (at(0.5), False)
    await works.store.tasks.backfills.start("t", at(0.5), at(2))
    await works.store.tasks.backfills.start("t", at(5), at(5))
    record = (await works.records())["t"]
    assert [row.fire_time for row in record[:7]] == [
        at(0.5),
        at(0.5) + 1,  # it stands for the others still
        at(1),
        at(1.5),
        at(2),
        at(5),
        record[6].fire_time,
    ]
    assert record[1].through == many.through and record[6].fire_time > many.through
    for minute, decision in ((1, "run"), (3, "miss"), (5, "run")):
        (fire,) = await works.store.tasks.history.fires_at("t", at(minute))
        assert fire.decision == decision


async def test_too_much_is_refused(works: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfills_module, "MOST_BACKFILLED", 10)
    monkeypatch.setattr(backfills_module, "MOST_LOOKED_AT", 15)
    await works.make("t", max_concurrency=0, catch_up=CatchUp.FULL)
    await works.make("shards", shards=2)
    with pytest.raises(Invalid, match="more than 10 runs: backfill shorter ranges"):
        await works.store.tasks.backfills.start("t", at(-10), at(0))
    assert len((await works.store.tasks.backfills.start("t", at(-9), at(0))).times) == 10
    with pytest.raises(Invalid, match="more than 10 runs"):
        await works.store.tasks.backfills.start("shards", at(-5), at(0))
    await works.fire_at(20)
    with pytest.raises(Invalid, match="more than 15 fires: choose a shorter range"):
        await works.store.tasks.backfills.start("t", at(1), at(20))


async def test_what_cannot_be_made_up_for_says_so(works: Clockwork) -> None:
    await works.make("hand", manual=True)
    with pytest.raises(Conflict, match="hand has no schedule: there is nothing to backfill"):
        await works.store.tasks.backfills.start("hand", at(0), at(1))
    await works.make("t")
    await works.store.tasks.steering.steer_task("t", "disable")
    assert (await works.store.tasks.backfills.start("t", at(-1), at(0), dry_run=True)).times
    with pytest.raises(Conflict, match="t is disabled: enable it first"):
        await works.store.tasks.backfills.start("t", at(-1), at(0))


async def test_a_paused_task_can_be_made_up_for(works: Clockwork) -> None:
    await works.make("t")
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.go_to(2)
    assert minutes((await works.store.tasks.backfills.start("t", at(1), at(2))).times) == [1, 2]
    assert await works.claim() == ["t 1"]


async def test_a_key_makes_a_repeated_backfill_harmless(works: Clockwork) -> None:
    await works.make("t")
    first = await works.store.tasks.backfills.start("t", at(-2), at(0), idempotency_key="k")
    again = await works.store.tasks.backfills.start("t", at(-2), at(0), idempotency_key="k")
    assert (again.id, again.times, again.created) == (first.id, first.times, False)
    with pytest.raises(Conflict, match="used for another request"):
        await works.store.tasks.backfills.start("t", at(-3), at(0), idempotency_key="k")


async def test_two_backfills_of_one_stretch_at_once_run_it_once(works: Clockwork) -> None:
    other = await works.world.another()
    await works.make("t")
    both = await asyncio.gather(
        works.store.tasks.backfills.start("t", at(-5), at(0)),
        other.tasks.backfills.start("t", at(-5), at(0)),
    )
    assert sorted(len(one.times) for one in both) == [0, 6]
    assert len(await works.record()) == 6
