"""Stories of what does the work: runs, tasks, templates, workflows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine

from fusee import RunSpec
from fusee.engine.store.runs import RunFilter
from fusee.errors import Conflict, Invalid, NotFound, UnknownHandler
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.tasks import TaskFilter
from tests.flow.sdk import Stage, story, until

__all__: list[str] = []

DAY = 86_400_000_000
NIGHTLY = {"name": "nightly", "cron": "0 3 * * *", "handler": "greet", "payload": {"name": "Ada"}}


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


@story("runs")
async def _(stage: Stage, runs: Any) -> None:
    greet = RunSpec(handler="greet", payload={"name": "Ada"})
    await runs.check(greet)
    with pytest.raises(UnknownHandler):
        await runs.check(RunSpec(handler="nobody"))
    [first] = await runs.submit([greet])
    assert (await runs.wait(first.id, 30)).result == "hello Ada"
    seen = await runs.get(first.id)
    assert (seen.run.status, seen.run.result) == ("succeeded", "hello Ada")
    assert (await runs.peek(first.id)).result == "hello Ada"
    each = await runs.submit_each(RunSpec(handler="greet"), [{"name": "Bob"}, {"name": "Eve"}])
    assert [run.result for run in await stage.ended(*(run.id for run in each))] == ["hello Bob", "hello Eve"]

    engine = create_engine(f"sqlite:///{stage.database}")
    with engine.begin() as connection:
        [kept] = runs.submit_within(connection, [greet])
    with engine.connect() as connection:
        [dropped] = runs.submit_within(connection, [greet])
        connection.rollback()
    engine.dispose()
    assert (await runs.wait(kept.id, 30)).result == "hello Ada"
    assert await runs.ended([kept.id]) == {kept.id: "succeeded"}
    listed = {run.id for run in await runs.list(RunFilter(handler="greet"))}
    assert listed == {first.id, kept.id, *(run.id for run in each)}
    assert dropped.id not in listed

    [waits, hangs, fails] = await runs.submit(
        [RunSpec(handler="greet", delay=3600), RunSpec(handler="hang"), RunSpec(handler="fail")]
    )
    assert (await runs.cancel(waits.id, "not today")).canceled
    await asyncio.wait_for(stage.hanging.wait(), 30)
    await runs.cancel(hangs.id)
    assert [run.status for run in await stage.ended(waits.id, hangs.id, fails.id)] == [
        "canceled",
        "canceled",
        "failed",
    ]
    assert (await runs.peek(waits.id)).reason == "not today"
    again = await runs.retry(fails.id, idempotency_key="again")
    assert (await runs.retry(fails.id, idempotency_key="again")).id == again.id
    [run] = await stage.ended(again.id)
    assert (run.status, run.origin_id, "no luck" in run.error) == ("failed", fails.id, True)


@story("tasks")
async def _(stage: Stage, tasks: Any) -> None:
    # Looking before it exists.
    spec = await tasks.checked(NIGHTLY)
    assert tasks.describe(spec) == "every day at 03:00"
    with pytest.raises(Invalid, match="nobody"):
        await tasks.check_runnable(
            (await tasks.checked({**NIGHTLY, "handler": "nobody"}, allow_unknown=True)), False
        )
    due = tasks.preview(NIGHTLY, 3)
    assert [at % DAY for at in due] == [3 * DAY // 24] * 3
    await stage.app.templates.create(
        {
            "name": "hourly",
            "params": {"who": {}},
            "task": {"every": "1h", "handler": "greet", "payload": {"name": "{{param.who}}"}},
        }
    )
    plain = await tasks.plain({"name": "x", "template": "hourly", "with": {"who": "Bob"}})
    assert (plain["every"], plain["payload"]) == ("1h", {"name": "Bob"})

    task = await tasks.create(NIGHTLY)
    assert (await tasks.get("nightly")).id == (await tasks.get(task.id)).id == task.id
    assert [one.name for one in await tasks.list(TaskFilter())] == ["nightly"]
    assert await tasks.next("nightly", 3) == list(due) == tasks.upcoming(task, 3)
    twice = {"name": "once", "every": "1h", "handler": "greet"}
    assert [(await tasks.create_once("k", twice))[1] for _ in range(2)] == [True, False]

    # Firing.
    fired = await tasks.trigger("nightly", payload={"name": "Eve"})
    again = await tasks.restart("nightly")
    assert [run.result for run in await stage.ended(*fired.run_ids, *again.run_ids)] == ["hello Eve"] * 2
    fires = await tasks.fires("nightly", FireFilter())
    assert sorted(fire.run_id for fire in fires) == sorted([*fired.run_ids, *again.run_ids])
    told = await tasks.explain("nightly", fired.fire_time)
    assert (told.verdict, told.fires[0].run_id) == ("ran", fired.run_ids[0])
    past = us("2025-01-01T00:00:00"), us("2025-01-03T12:00:00")
    dry = await tasks.backfill("nightly", *past, dry_run=True)
    assert (dry.id, [at % DAY for at in dry.times]) == (None, [3 * DAY // 24] * 3)
    assert len(await tasks.fires("nightly", FireFilter())) == 2
    filled = await tasks.backfill("nightly", *past, concurrency=2)
    assert list(filled.times) == list(dry.times)

    async def filled_in() -> list[tuple[int, str | None]]:
        found = await tasks.fires("nightly", FireFilter(until=past[1]))
        return sorted((fire.fire_time, fire.run_status) for fire in found)

    await until(filled_in, [(at, "succeeded") for at in dry.times])
    assert len((await tasks.simulate("nightly", *past, duration=1)).fires) == 3

    # Changing.
    assert (await tasks.change("nightly", {"cron": "30 4 * * *"})).version == 2
    changed = (await tasks.get("nightly")).spec
    assert (tasks.describe(changed), changed.payload) == ("every day at 04:30", {"name": "Ada"})
    await tasks.replace("nightly", {"name": "nightly", "every": "2h", "handler": "greet"})
    replaced = (await tasks.get("nightly")).spec
    assert (replaced.cron, replaced.every, replaced.payload) == (None, 7200, {})
    for verb, status in (
        ("pause", "paused"),
        ("resume", "enabled"),
        ("disable", "disabled"),
        ("enable", "enabled"),
    ):
        await tasks.steer("nightly", verb)
        assert (await tasks.get("nightly")).status == status
        assert bool(await tasks.next("nightly")) == (status == "enabled")

    # A line of fires.
    await tasks.create(
        {"name": "slow", "handler": "hang", "concurrency_policy": "QUEUE", "max_concurrency": 1}
    )
    line = [await tasks.trigger("slow") for _ in range(3)]
    await asyncio.wait_for(stage.hanging.wait(), 30)
    assert await tasks.clear_queue("slow") == 2
    assert [run.status for run in await stage.ended(*line[1].run_ids, *line[2].run_ids)] == ["skipped"] * 2
    await stage.app.runs.cancel(line[0].run_ids[0])

    assert (await tasks.delete("nightly")).status == "deleted"
    with pytest.raises(NotFound):
        await tasks.get("nightly")
    assert {one.name for one in await tasks.list(TaskFilter())} == {"once", "slow"}


@story("templates")
async def _(stage: Stage, templates: Any) -> None:
    greeting = {
        "name": "greeting",
        "params": {"who": {}, "hour": {"default": 9}},
        "task": {"cron": "0 {{param.hour}} * * *", "handler": "greet", "payload": {"name": "{{param.who}}"}},
    }
    await templates.create(greeting)
    assert (await templates.get("greeting")).spec.to_dict()["task"] == greeting["task"]
    fields = await templates.expanded({"name": "ada", "template": "greeting", "with": {"who": "Ada"}})
    assert (fields["cron"], fields["payload"]) == ("0 9 * * *", {"name": "Ada"})
    await stage.app.tasks.create({"name": "ada", "template": "greeting", "with": {"who": "Ada"}})
    fired = await stage.app.tasks.trigger("ada")
    assert [run.result for run in await stage.ended(*fired.run_ids)] == ["hello Ada"]

    other = {"name": "other", "task": {"handler": "greet"}}
    assert [(await templates.create_once("k", other))[1] for _ in range(2)] == [True, False]
    assert [one.name for one in await templates.list()] == ["greeting", "other"]
    other["task"] = {"handler": "fail"}
    assert (await templates.replace("other", other, version=1)).version == 2
    assert (await templates.get("other")).spec.to_dict()["task"] == {"handler": "fail"}
    with pytest.raises(Conflict):
        await templates.replace("other", other, version=1)
    assert (await templates.apply(other))[1] == "unchanged"
    assert (await templates.apply({**other, "task": {"handler": "hang"}}))[1] == "updated"
    assert (await templates.apply({**other, "name": "third"}))[1] == "created"
    await templates.delete("third")
    with pytest.raises(NotFound):
        await templates.get("third")
    assert [one.name for one in await templates.list()] == ["greeting", "other"]


@story("workflows")
async def _(stage: Stage, workflows: Any) -> None:
    def flow(name: str, *handlers: str) -> dict[str, Any]:
        """One step after another."""
        after: list[list[str]] = [[], *([str(nr)] for nr in range(len(handlers)))]
        return {
            "name": name,
            "nodes": [
                {"name": str(nr), "handler": one, "after": after[nr]} for nr, one in enumerate(handlers)
            ],
        }

    await workflows.create(flow("two", "greet", "greet"))
    assert [node.name for node in (await workflows.get("two")).spec.nodes] == ["0", "1"]
    assert [(await workflows.create_once("k", flow("bad", "greet", "fail")))[1] for _ in range(2)] == [
        True,
        False,
    ]
    assert [(await workflows.apply(flow("slow", "hang", "greet")))[1] for _ in range(2)] == [
        "created",
        "unchanged",
    ]
    assert {one.name for one in await workflows.list()} == {"two", "bad", "slow"}

    started = await workflows.start("two", idempotency_key="k")
    assert (await workflows.start("two", idempotency_key="k")) == (started.id, False)
    steps: list[int] = []
    done = await workflows.wait(started.id, 30, seen=lambda run: steps.append(run.ended))
    assert (done.status, done.succeeded, steps[-1]) == ("succeeded", 2, 2)
    page = await workflows.graph(started.id)
    assert ([(node.name, node.status) for node in page.nodes], page.total) == (
        [("0", "succeeded"), ("1", "succeeded")],
        2,
    )

    bad = await workflows.start("bad")
    assert (await workflows.wait(bad.id, 30)).status == "failed"
    again = await workflows.rerun(bad.id)
    rerun = await workflows.wait(again.id, 30)
    assert (rerun.status, rerun.origin_id) == ("failed", bad.id)
    attempts = await stage.app.runs.list(RunFilter(handler="fail"))
    assert len(attempts) == 2, "the step that failed was done again"

    slow = await workflows.start("slow")
    await asyncio.wait_for(stage.hanging.wait(), 30)
    assert (await workflows.cancel(slow.id)).told == 1
    assert (await workflows.wait(slow.id, 30)).status == "canceled"
    assert (await workflows.run(slow.id)).status == "canceled"
    assert {run.id for run in await workflows.runs()} == {started.id, bad.id, again.id, slow.id}

    assert (await workflows.replace("two", flow("two", "greet"))).version == 2
    assert len((await workflows.get("two")).spec.nodes) == 1
    await workflows.delete("two")
    with pytest.raises(NotFound):
        await workflows.get("two")
    assert {one.name for one in await workflows.list()} == {"bad", "slow"}
