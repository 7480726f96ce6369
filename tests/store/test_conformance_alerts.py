"""Alerts: an http run of its own, born in the transaction that saw the reason."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.states import RunStatus
from fusee.engine.store.runs import RunFilter
from fusee.errors import StoreUnavailable
from fusee.tasks.model.kinds import Alerts
from fusee.tasks.model.policy import CatchUp, Overlap
from tests.store.clockwork import Clockwork, at

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOOK = "https://hooks.example.com/fusee"


async def _alerts(works: Clockwork) -> list[dict[str, Any]]:
    """The bodies of the alerts so far, oldest first."""
    listed = await works.store.runs.runs(RunFilter(queue="fusee.alerts", limit=1000))
    runs = [await works.store.runs.run(run.id) for run in reversed(listed)]
    assert all((r.executor, r.payload["url"], r.payload["method"]) == ("http", HOOK, "POST") for r in runs)
    assert all(run.status is RunStatus.PENDING and run.kind is None for run in runs)
    return [run.payload["body"] for run in runs]


async def test_a_failure_is_told_of_with_what_went_wrong(works: Clockwork) -> None:
    await works.make("t", alerts=Alerts(webhook=HOOK))
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)
    await works.go_to(1.5)
    await works.fail("t", 1)
    assert await _alerts(works) == [
        {
            "event": "failure",
            "namespace": "default",
            "task": "t",
            "at": "2027-01-15T08:01:30Z",
            "fire_time": "2027-01-15T08:01:00Z",
            "run_id": run.id,
            "status": "failed",
            "error": "broken",
            "failures_in_a_row": 1,
        }
    ]
    (alert,) = await works.store.runs.runs(RunFilter(queue="fusee.alerts"))
    assert (await works.store.runs.run(alert.id)).retry is not None, "a hook that is down is called again"


async def test_success_is_silent(works: Clockwork) -> None:
    await works.make("t", alerts=Alerts(webhook=HOOK, on_failures_in_a_row=1, on_lateness=60.0))
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1)
    assert await _alerts(works) == []


async def test_of_a_sharded_fire_the_shard_that_failed_is_named(works: Clockwork) -> None:
    await works.make("t", shards=3, alerts=Alerts(webhook=HOOK))
    await works.fire_at(1)
    await works.claim()
    await works.fail("t", 1, shard=0, end=End.SKIPPED)
    await works.succeed("t", 1, shard=1)
    assert await _alerts(works) == [], "it has not ended"
    await works.fail("t", 1, shard=2)
    (alert,) = await _alerts(works)
    assert alert["run_id"] == (await works.run_of("t", 1, shard=2)).id


async def test_the_nth_failure_in_a_row_is_told_of_and_no_other(works: Clockwork) -> None:
    alerts = Alerts(webhook=HOOK, on_failure=False, on_failures_in_a_row=2)
    await works.make("t", alerts=alerts)
    for minute, good in enumerate([False, True, False, False, False, True, False, False], 1):
        await works.fire_at(minute)
        await works.claim()
        await (works.succeed("t", minute) if good else works.fail("t", minute))
    told = [(alert["event"], alert["fire_time"][14:16]) for alert in await _alerts(works)]
    assert told == [("failures_in_a_row", "04"), ("failures_in_a_row", "08")]


async def test_failures_that_are_heard_of_together_are_counted_one_by_one(works: Clockwork) -> None:
    alerts = Alerts(webhook=HOOK, on_failure=False, on_failures_in_a_row=2)
    await works.make("t", max_concurrency=0, alerts=alerts)
    for minute in (1, 2, 3):
        await works.fire_at(minute)
    await works.claim()
    for minute in (1, 2, 3):
        run = works.held.pop((await works.run_of("t", minute)).id)
        await works.world.clock.tick(1)
        await works.world.settle(works.session, run, end=End.ABANDONED)
    await works.react()
    (alert,) = await _alerts(works)
    assert (alert["fire_time"], alert["failures_in_a_row"]) == ("2027-01-15T08:02:00Z", 2)
    assert (await works.task()).failures == 3


async def test_a_late_fire_is_told_of_and_an_outage_is_one_story(works: Clockwork) -> None:
    for mode in CatchUp:
        await works.make(mode.lower(), catch_up=mode, alerts=Alerts(webhook=HOOK, on_lateness=90.0))
    await works.fire_at(1)
    await works.fire_at(4 + 1 / 60)  # 2 is 121 s late, 4 is 1 s late
    late = [(alert["event"], alert["task"], alert["seconds_late"]) for alert in await _alerts(works)]
    assert sorted(late) == [("lateness", mode.lower(), 121.0) for mode in ("COMPACT", "FULL", "NONE")]
    await works.fire_at(8)  # 5 is three minutes late: the same story
    assert len(await _alerts(works)) == 3
    await works.fire_at(14)  # ten minutes after the first alert
    assert len(await _alerts(works)) == 6


async def test_no_alert_of_what_a_policy_did(works: Clockwork) -> None:
    await works.make("t", overlap=Overlap.CANCEL_PREV, alerts=Alerts(webhook=HOOK))
    await works.fire_at(1)
    await works.fire_at(2)
    assert await works.statuses("t", 1) == ["canceled"]
    assert await _alerts(works) == []
    await works.cancel("t", 2)
    assert [alert["status"] for alert in await _alerts(works)] == ["canceled"], "a person did that"


async def test_no_alert_of_a_backfill(works: Clockwork) -> None:
    await works.make("t", alerts=Alerts(webhook=HOOK))
    await works.store.tasks.backfills.start("t", at(-1), at(0))
    await works.claim()
    await works.fail("t", -1)
    assert await _alerts(works) == []


async def test_an_alert_is_born_with_what_it_tells_of_or_not_at_all(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator dies after it made the alert, before it committed; then it hears of the end again."""
    await works.make("t", alerts=Alerts(webhook=HOOK))
    await works.fire_at(1)
    await works.claim()
    run = works.held.pop((await works.run_of("t", 1)).id)
    await works.world.settle(works.session, run, end=End.ABANDONED)

    def die(*_: Any, **__: Any) -> None:
        raise ConnectionError("the dispatcher dies")

    with monkeypatch.context() as patch:
        patch.setattr(works.store.tasks.states, "save", die)
        with pytest.raises(StoreUnavailable):
            await works.store.aggregation.aggregate()
    assert await _alerts(works) == []
    assert (await works.task()).failures == 0
    await works.react()
    assert len(await _alerts(works)) == 1
    assert (await works.task()).failures == 1
