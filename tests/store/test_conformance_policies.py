"""The policies end to end: the table, and what its words mean for runs from then on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import StoreUnavailable
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap
from fusee.tasks.model.task import TaskStatus
from tests.store.clockwork import ONCE, Clockwork, at, spec
from tests.unit.tasks.policy_table import CELLS, SITUATIONS, WORDS, Cell

pytestmark = pytest.mark.asyncio(loop_scope="session")


# --- the table -----------------------------------------------------------------------------------------

ANSWERS = {
    # word → the new fire's run, and what became of those before it
    "start": "pending",
    "queue": "blocked (queue)",
    "replace": "blocked (previous)",
    "beside": "pending",
    "over": "pending",
    "no:overlap": "skipped",
    "no:failure": "skipped",
    "no:cap": "skipped",
    "no:full": "skipped",
}
BEFORE = {
    "idle": [],
    "running": ["running"],
    "line full": ["running", "blocked"],
    "failed": ["failed"],
    "failed, one skipped": ["failed", "skipped"],
    "running, failed": ["failed", "running"],
}
REPLACED = {"running": "running, told to stop", "blocked": "canceled"}


async def _bring_about(works: Clockwork, situation: str, names: list[str]) -> None:
    """Under policies that are in nobody's way, bring all these tasks into that situation by minute 3."""
    first = 4 - len(BEFORE[situation])
    await works.go_to(first - 0.5)
    await asyncio.gather(*(works.make(name, queue_depth=1) for name in names))
    if situation == "idle":
        return
    await works.fire_at(first)
    await works.claim()
    if "failed" in situation:
        await works.world.settle(works.session, *works.held.values(), end=End.FAILED, policy=ONCE)
        works.held.clear()
        await works.react()
    if situation == "failed, one skipped":
        await works.redefine(*(spec(name, failure=FailureAction.SKIP) for name in names))
    if first < 3:
        await works.fire_at(3)
    if situation == "running, failed":
        await works.claim()


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_each_fire_is_decided_as_the_table_says(works: Clockwork, situation: str) -> None:
    """All 48 combinations at once, a task each."""
    cells = [cell for cell in CELLS if cell.situation == situation]
    await _bring_about(works, situation, [cell.name for cell in cells])
    await works.redefine(*(replace(spec(cell.name), policy=cell.policy) for cell in cells))
    await works.fire_at(4)
    record = await works.records()
    for cell in cells:
        _check(cell, record[cell.name])


def _check(cell: Cell, record: list[Any]) -> None:
    """`record` is the rows of its fires, each with its run, oldest first."""
    what, word = f"{cell.name} when {cell.situation}: {cell.word}", WORDS[cell.word]
    *before, fire = record
    assert fire.fire_time == at(4), what
    assert (fire.decision, fire.code) == (word.decision, word.code), f"{what}, not {fire.rule}"
    held = "" if fire.held is None else f" ({fire.held})"
    assert f"{fire.status}{held}" == ANSWERS[cell.word], what
    expected = [REPLACED.get(s, s) if word.replaces else s for s in BEFORE[cell.situation]]
    told = ["running, told to stop" if f.status == "running" and f.asked else f.status for f in before]
    assert told == expected, what
    if not cell.word.startswith("no:"):
        assert fire.attempt == cell.attempts_before, what


# --- overlap: CANCEL_PREV ------------------------------------------------------------------------------


async def test_replaced_before_it_started_the_new_one_runs_at_once(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV)
    await works.fire_at(1)
    await works.fire_at(2)
    assert await works.record() == ["1 run canceled", "2 run pending"]
    canceled = await works.run_of("t", 1)
    assert canceled.reason == "overlap_action CANCEL_PREV: the fire of 2027-01-15T08:02:00Z takes its place"
    assert await works.claim() == ["t 2"], "the canceled one stands in line no more"


async def test_replaced_while_it_was_delayed(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, rate=0.001, catch_up=CatchUp.FULL)
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1)
    await works.fire_at(2)
    assert await works.record() == ["1 run succeeded", "2 run delayed"]
    await works.fire_at(3)
    assert await works.record() == ["1 run succeeded", "2 run canceled", "3 run delayed"]


async def test_replaced_while_it_waited_for_its_retry(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, retry=RetryPolicy(max_attempts=3, base=600))
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1)
    assert await works.record() == ["1 run delayed"]
    await works.fire_at(2)
    assert await works.record() == ["1 run canceled", "2 run pending"]


async def test_replaced_while_it_waited_for_a_service(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV)
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1, end=End.ACCEPTED)
    assert await works.record() == ["1 run waiting"]
    await works.fire_at(2)
    assert await works.record() == ["1 run canceled", "2 run pending"]


@pytest.mark.parametrize("end", ["canceled", "succeeded", "failed"])
async def test_replaced_while_it_ran_the_new_one_waits_for_its_end(works: Clockwork, end: str) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, failure=FailureAction.RETRY)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    assert await works.record() == ["1 run running", "2 run blocked (previous)"]
    old = await works.run_of("t", 1)
    assert await works.store.runs.cancel_requests(works.session, [old.id]) == [(old.id, 1)]
    assert await works.claim() == []
    match end:
        case "succeeded":
            await works.succeed("t", 1)
        case "failed":
            await works.fail("t", 1)
        case _:
            await works.fail("t", 1, end=End.CANCELED)
    assert await works.record() == [f"1 run {end}", "2 run pending"]
    task = await works.task()
    assert (task.last_status, task.failures) == {
        "canceled": (None, 0),  # by the task's own policy: no failure
        "succeeded": ("succeeded", 0),
        "failed": ("failed", 1),
    }[end]


async def test_a_replaced_run_is_not_tried_again(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, retry=RetryPolicy(max_attempts=9))
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.fail("t", 1)
    assert await works.record() == ["1 run canceled", "2 run pending"]


async def test_replaced_when_its_worker_died(works: Clockwork) -> None:
    doomed = await works.world.session("doomed", ttl=30)
    await works.make("t", overlap=Overlap.CANCEL_PREV, retry=RetryPolicy(max_attempts=9))
    await works.fire_at(1)
    assert await works.world.claim(doomed)
    await works.fire_at(2)
    assert (await works.store.recovery.recover()).canceled == 1
    await works.react()
    assert await works.record() == ["1 run canceled", "2 run pending"]


async def test_a_replacement_that_waits_is_replaced_too(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.fire_at(3)
    assert await works.record() == ["1 run running", "2 run canceled", "3 run blocked (previous)"]
    await works.fail("t", 1, end=End.CANCELED)
    assert await works.record() == ["1 run canceled", "2 run canceled", "3 run pending"]
    assert (await works.task()).last_status is None


async def test_a_cancel_by_policy_skips_no_fire_and_pauses_nothing(works: Clockwork) -> None:
    for failure in FailureAction:
        await works.make(failure.lower(), overlap=Overlap.CANCEL_PREV, failure=failure)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.fire_at(3)
    for failure in FailureAction:
        record = await works.record(failure.lower())
        assert record == ["1 run canceled", "2 run canceled", "3 run pending"], failure
        assert (await works.run_of(failure.lower(), 3)).attempt == 0


async def test_caught_up_in_full_each_replaces_the_one_before_it(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, catch_up=CatchUp.FULL)
    await works.fire_at(1)
    await works.claim()
    await works.go_to(4.5)
    await works.store.tasks.firing.fire_due()
    assert await works.record() == [
        "1 run running",
        "2 run canceled",
        "3 run canceled",
        "4 run blocked (previous)",
    ]
    await works.succeed("t", 1)
    assert await works.claim() == ["t 4"]


async def test_all_shards_are_replaced_and_waited_for(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, shards=3)
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1, shard=0)
    await works.fire_at(2)
    assert await works.record() == [
        "1 run succeeded running running",
        "2 run blocked blocked blocked (previous)",
    ]
    await works.fail("t", 1, shard=1, end=End.CANCELED)
    assert await works.claim() == []
    await works.fail("t", 1, shard=2, end=End.CANCELED)
    assert await works.claim() == ["t 2"] * 3
    assert (await works.task()).last_status is None


async def test_with_room_for_several_the_replacement_still_waits_for_all(works: Clockwork) -> None:
    await works.make("t", max_concurrency=3)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.claim()
    await works.change("t", max_concurrency=3, overlap=Overlap.CANCEL_PREV)
    await works.fire_at(3)
    await works.fail("t", 1, end=End.CANCELED)
    assert await works.record() == ["1 run canceled", "2 run running", "3 run blocked (previous)"]
    await works.fail("t", 2, end=End.CANCELED)
    assert await works.record() == ["1 run canceled", "2 run canceled", "3 run pending"]


# --- concurrency: QUEUE --------------------------------------------------------------------------------


async def test_a_line_is_first_in_first_out(works: Clockwork) -> None:
    await works.make("t")
    for minute in (1, 2, 3, 4):
        await works.fire_at(minute)
    for minute in (1, 2, 3, 4):
        assert await works.claim() == [f"t {minute}"]
        assert await works.claim() == []
        await works.succeed("t", minute)
    (fire,) = await works.shards_of("t", 4)
    assert fire.admitted_at == at(4)


async def test_a_full_line_leaves_a_row_of_what_it_left_out(works: Clockwork) -> None:
    await works.make("t", queue_depth=2)
    for minute in (1, 2, 3, 4):
        await works.fire_at(minute)
    assert await works.record() == [
        "1 run pending",
        "2 queue blocked (queue)",
        "3 queue blocked (queue)",
        "4 skip skipped",
    ]
    assert await works.rule("t", 4) == (
        "concurrency_policy QUEUE: 1 of at most 1 under way, and the queue is full (2)"
    )
    assert (await works.run_of("t", 4)).reason == await works.rule("t", 4)


@pytest.mark.parametrize("end", ["succeeded", "failed", "timed_out", "canceled"])
async def test_the_head_of_the_line_goes_when_a_place_is_free_however_it_became_so(
    works: Clockwork, end: str
) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    match end:
        case "succeeded":
            await works.succeed("t", 1)
        case "canceled":
            await works.cancel("t", 1)
        case "timed_out":
            await works.fail("t", 1, end=End.TIMED_OUT)
        case _:
            await works.fail("t", 1)
    assert await works.record() == [f"1 run {end}", "2 queue pending"]


async def test_a_retry_keeps_its_place(works: Clockwork) -> None:
    await works.make("t", retry=RetryPolicy(max_attempts=2, base=5, jitter=0))
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.fail("t", 1)
    assert await works.record() == ["1 run delayed", "2 queue blocked (queue)"]
    await works.go_to(2.5)
    await works.claim()
    await works.fail("t", 1)
    assert await works.record() == ["1 run failed", "2 queue pending"]


async def test_canceled_in_line_it_leaves_its_place_to_the_next(works: Clockwork) -> None:
    await works.make("t", queue_depth=2)
    for minute in (1, 2, 3):
        await works.fire_at(minute)
    await works.claim()
    await works.cancel("t", 2)
    await works.fire_at(4)
    assert await works.record() == [
        "1 run running",
        "2 queue canceled",
        "3 queue blocked (queue)",
        "4 queue blocked (queue)",
    ]
    await works.succeed("t", 1)
    assert await works.claim() == ["t 3"]


async def test_a_head_that_was_canceled_this_very_moment_holds_nobody_up(works: Clockwork) -> None:
    """The scan comes before the aggregator has heard of the cancel, and of the end that made room."""
    await works.make("t")
    for minute in (1, 2, 3):
        await works.fire_at(minute)
    await works.claim()
    await works.store.runs.cancel((await works.run_of("t", 2)).id, "no")
    await works.world.finish(works.session, works.held.pop((await works.run_of("t", 1)).id))
    await works.go_to(4)
    await works.store.tasks.firing.fire_due()
    assert await works.statuses("t", 1, 2, 3, 4) == ["succeeded", "canceled", "pending", "blocked"]
    await works.react()
    assert await works.record() == [
        "1 run succeeded",
        "2 queue canceled",
        "3 queue pending",
        "4 queue blocked (queue)",
    ]


async def test_shards_stand_in_line_and_leave_it_together(works: Clockwork) -> None:
    await works.make("t", shards=2)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.claim()
    await works.succeed("t", 1, shard=0)
    assert await works.record() == ["1 run succeeded running", "2 queue blocked blocked (queue)"]
    await works.succeed("t", 1, shard=1)
    assert await works.record() == ["1 run succeeded succeeded", "2 queue pending pending"]


async def test_one_shard_canceled_in_line_leaves_the_others_in_it(works: Clockwork) -> None:
    await works.make("t", shards=3)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.cancel("t", 2, shard=0)
    assert (await works.record())[1] == "2 queue canceled blocked blocked (queue)"
    for shard in range(3):
        await works.succeed("t", 1, shard)
    assert (await works.record())[1] == "2 queue canceled pending pending"
    await works.fire_at(3)
    await works.claim()
    await works.succeed("t", 2, 1)
    assert (await works.record())[2] == "3 queue blocked blocked blocked (queue)", "2 has not ended"
    await works.succeed("t", 2, 2)
    assert (await works.record())[2] == "3 queue pending pending pending"
    task = await works.task()
    assert (task.last_status, task.failures) == ("failed", 1), "a shard that a person canceled counts"


async def test_a_raised_cap_lets_more_out(works: Clockwork) -> None:
    await works.make("t")
    for minute in (1, 2, 3, 4):
        await works.fire_at(minute)
    await works.change("t", max_concurrency=3)
    await works.claim()
    await works.succeed("t", 1)
    assert await works.record() == [
        "1 run succeeded",
        "2 queue pending",
        "3 queue pending",
        "4 queue pending",
    ]


async def test_a_dispatcher_that_dies_before_it_let_the_next_one_go_leaves_that_to_another(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.world.finish(works.session, works.held.pop((await works.run_of("t", 1)).id))

    def die(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the dispatcher dies")

    steps = ((works.store.tasks.admission, "admit"), (works.store.tasks.states, "save"))
    for part, step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(part, step, die)
            with pytest.raises(StoreUnavailable):
                await works.store.aggregation.aggregate()
        assert await works.record() == ["1 run succeeded", "2 queue blocked (queue)"]
        assert await works.notices() == ["task"], "what it had taken is there again"
    await works.react(store=await works.world.another())
    assert await works.record() == ["1 run succeeded", "2 queue pending"]


async def test_let_out_under_a_rate_it_starts_when_the_rate_allows(works: Clockwork) -> None:
    await works.make("t", rate=1 / 300)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.succeed("t", 1)
    assert await works.record() == ["1 run succeeded", "2 queue delayed"]
    assert (await works.run_of("t", 2)).due_at == at(6)
    await works.go_to(6)
    assert await works.claim() == ["t 2"]


# --- failure -------------------------------------------------------------------------------------------


async def _attempts(works: Clockwork, name: str, *minutes: int) -> list[int]:
    return [(await works.run_of(name, minute)).attempt for minute in minutes]


async def test_skip_leaves_out_one_fire_and_counts_it(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.SKIP)
    for minute in (1, 3, 5):
        await works.fire_at(minute)
        await works.claim()
        await works.fail("t", minute)
        await works.fire_at(minute + 1)
    assert await works.record() == [
        "1 run failed",
        "2 skip skipped",
        "3 run failed",
        "4 skip skipped",
        "5 run failed",
        "6 skip skipped",
    ]
    assert await _attempts(works, "t", 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    await works.fire_at(7)
    await works.claim()
    await works.succeed("t", 7)
    await works.fire_at(8)
    await works.claim()
    assert await _attempts(works, "t", 7, 8) == [7, 1], "a success starts the count anew"


async def test_retry_counts_attempts_on_and_run_new_does_not(works: Clockwork) -> None:
    for name in ("RETRY", "RUN_NEW"):
        await works.make(name, failure=FailureAction(name), retry=RetryPolicy(max_attempts=2, base=0))
    for minute in (1, 2):
        await works.fire_at(minute)
        for _ in range(2):
            await works.claim()
            await works.fail("RETRY", minute)
            await works.fail("RUN_NEW", minute)
    assert await _attempts(works, "RETRY", 1, 2) == [2, 4]
    assert await _attempts(works, "RUN_NEW", 1, 2) == [2, 2]
    await works.fire_at(3)
    await works.claim()
    await works.succeed("RETRY", 3)
    await works.fire_at(4)
    await works.claim()
    assert await _attempts(works, "RETRY", 3, 4) == [5, 1]


async def test_counted_on_attempts_spend_nothing_of_the_retries(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.RETRY, retry=RetryPolicy(max_attempts=2, base=0))
    await works.fire_at(1)
    for _ in range(2):
        await works.claim()
        await works.fail("t", 1)
    await works.fire_at(2)
    await works.claim()
    await works.fail("t", 2)
    assert (await works.run_of("t", 2)).status == "delayed", "tried again, as its policy says"


async def test_pause_pauses_at_once_and_says_why(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    await works.go_to(1.5)
    await works.fail("t", 1)
    task, run = await works.task(), await works.run_of("t", 1)
    assert (task.status, task.next_fire_at, task.updated_at) == (TaskStatus.PAUSED, None, at(1.5))
    assert task.reason == f"failure_action PAUSE: run {run.id} ended failed"
    assert task.version == 2, "whoever edits the task has to look at it again"
    assert not await works.fire_at(3)
    await works.store.tasks.steering.steer_task("t", "resume")
    await works.fire_at(4)
    assert await works.record() == ["1 run failed", "4 run pending"]


@pytest.mark.parametrize("who", ["scan", "aggregator"])
async def test_what_was_due_when_the_failure_was_heard_of_is_on_record(works: Clockwork, who: str) -> None:
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)
    await works.world.settle(works.session, works.held.pop(run.id), end=End.ABANDONED)
    await works.go_to(3.5)
    await (works.store.tasks.firing.fire_due() if who == "scan" else works.store.aggregation.aggregate())
    await works.react()
    assert (await works.task()).status is TaskStatus.PAUSED
    assert await works.record() == ["1 run failed", "2 skip skipped", "3 skip skipped"]
    assert await works.rule("t", 3) == f"failure_action PAUSE: run {run.id} ended failed"


async def test_the_scan_decides_on_what_is_true_not_on_what_it_was_told(works: Clockwork) -> None:
    """A run ended, its notice has not been taken: the scan sees the end all the same."""
    for name, policies in {
        "skip": {"overlap": Overlap.SKIP},
        "cap": {"concurrency": Concurrency.SKIP},
        "retry": {"failure": FailureAction.RETRY},
    }.items():
        await works.make(name, **policies)
    await works.fire_at(1)
    await works.claim()
    for name in ("skip", "cap"):
        await works.world.finish(works.session, works.held.pop((await works.run_of(name, 1)).id))
    failed = works.held.pop((await works.run_of("retry", 1)).id)
    await works.world.settle(works.session, failed, end=End.ABANDONED)
    await works.go_to(2)
    await works.store.tasks.firing.fire_due()
    assert await works.statuses("skip", 2) == await works.statuses("cap", 2) == ["pending"]
    assert (await works.run_of("retry", 2)).attempt == 1
    await works.react()
    task = await works.task("retry")
    assert (task.failures, task.last_status) == (1, "failed"), "and the notice counts nothing twice"


# --- shards --------------------------------------------------------------------------------------------


async def test_a_fire_of_many_shards_is_many_runs_that_know_their_place(works: Clockwork) -> None:
    await works.make("t", shards=3, payload={"x": 1})
    await works.fire_at(1)
    runs = [await works.run_of("t", 1, shard) for shard in range(3)]
    assert [(run.shard_index, run.shard_total, run.payload) for run in runs] == [
        (0, 3, {"x": 1}),
        (1, 3, {"x": 1}),
        (2, 3, {"x": 1}),
    ]


async def test_shards_are_tried_again_apart(works: Clockwork) -> None:
    await works.make("t", shards=2, retry=RetryPolicy(max_attempts=2, base=30, jitter=0))
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1, shard=1)
    await works.succeed("t", 1, shard=0)
    assert await works.record() == ["1 run succeeded delayed"]
    assert (await works.task()).last_status is None, "it has not ended"
    await works.go_to(1.5)
    assert await works.claim() == ["t 1"]
    await works.succeed("t", 1, shard=1)
    task = await works.task()
    assert (task.last_status, task.failures) == ("succeeded", 0)


async def test_one_failed_shard_is_a_failed_fire(works: Clockwork) -> None:
    await works.make("t", shards=2, failure=FailureAction.RETRY)
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1, shard=0)
    await works.succeed("t", 1, shard=1)
    task = await works.task()
    assert (task.last_status, task.failures) == ("failed", 1)
    await works.fire_at(2)
    assert [(await works.run_of("t", 2, shard)).attempt for shard in (0, 1)] == [1, 1]


async def test_a_skipped_fire_of_many_shards_is_one_row(works: Clockwork) -> None:
    await works.make("t", shards=5, overlap=Overlap.SKIP)
    await works.fire_at(1)
    await works.fire_at(2)
    assert (await works.record())[1] == "2 skip skipped"


async def test_a_cap_counts_fires_not_shards(works: Clockwork) -> None:
    await works.make("t", shards=5, max_concurrency=2)
    for minute in (1, 2, 3):
        await works.fire_at(minute)
    assert len(await works.claim()) == 10
