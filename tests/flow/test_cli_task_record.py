"""`fusee explain` and `fusee task simulate`, over a record that was made an hour ago by another clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from fusee import Fusee
from fusee.clock import ManualClock
from fusee.surfaces.cli.exits import Exit
from fusee.tasks.rest.shapes import ExplanationOut, FireOut, SimulationOut
from fusee.values.times import iso, show_time
from tests.flow.conftest import Cli
from tests.store.harness import ProcessClock, World

URL = "sqlite:///fusee.db"
START = (int(time.time()) // 3600 - 1) * 3600 * 1_000_000
"""The last full hour but one."""


class Past:
    """An hour ago: a clock to move, a dispatcher to ask, and a worker that works."""

    def __init__(self, app: Fusee, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.process = ProcessClock()
        self.process.manual = clock
        self.world = World(URL, self.process, app.store)

    async def task(self, **fields: Any) -> None:
        await self.app.tasks.create({"handler": "work", **fields}, allow_unknown=True)

    async def fire(self, seconds: float) -> None:
        """So much later, a dispatcher looks."""
        self.clock.tick(seconds=seconds)
        while await self.app.store.tasks.firing.fire_due():
            pass


def once(story: Callable[[Past], Awaitable[None]]) -> None:
    async def tell() -> None:
        clock = ManualClock(START)
        async with Fusee(URL, clock=clock) as app:
            await story(Past(app, clock))

    asyncio.run(tell())


def at(seconds: float) -> str:
    return iso(START + round(seconds * 1_000_000))


# --- explain


def explained(cli: Cli, name: str, seconds: float) -> tuple[str, str | None]:
    """(verdict, rule); the same for people, and under both names of the command."""
    answer = cli.json("explain", name, at(seconds))
    assert set(answer) == set(ExplanationOut.model_fields)
    assert all(set(fire) == set(FireOut.model_fields) for fire in answer["fires"])
    assert cli.json("task", "explain", name, at(seconds)) == answer
    shown = cli.text("explain", name, at(seconds))
    assert answer["text"] in shown
    if answer["rule"] is not None:
        assert f"rule: {answer['rule']}" in shown
    return answer["verdict"], answer["rule"]


def test_explain_what_was_decided(cli: Cli) -> None:
    async def story(past: Past) -> None:
        await past.task(name="poll", cron="*/15 * * * * *", overlap_action="SKIP")
        await past.task(name="line", cron="*/15 * * * * *", queue_depth=1)
        for _ in range(3):
            await past.fire(15)

    once(story)
    assert explained(cli, "poll", 15) == ("waiting", "due, and nothing in its way")
    verdict, rule = explained(cli, "poll", 30)
    assert verdict == "skipped" and rule is not None and rule.startswith("overlap_action SKIP: run ")
    verdict, rule = explained(cli, "line", 30)
    assert verdict == "queued"
    assert rule == "concurrency_policy QUEUE: 1 of at most 1 under way; queued at place 1"
    verdict, rule = explained(cli, "line", 45)
    assert verdict == "skipped" and rule is not None and "the queue is full (1)" in rule


def test_the_record_of_a_deleted_task_is_read_by_name_and_by_number(cli: Cli) -> None:
    number = 0

    async def story(past: Past) -> None:
        nonlocal number
        await past.task(name="poll", cron="*/15 * * * * *")
        await past.fire(15)
        number = (await past.app.tasks.get("poll")).id
        await past.app.tasks.delete("poll")

    once(story)
    for ref in ("poll", str(number)):
        assert [fire["fire_time"] for fire in cli.json("task", "runs", ref)["items"]] == [
            show_time(START + 15_000_000)
        ]
        assert cli.json("explain", ref, at(15))["task"] == "poll"


def test_explain_what_was_missed(cli: Cli) -> None:
    async def story(past: Past) -> None:
        await past.task(name="never", cron="*/15 * * * * *", catch_up_mode="NONE")
        await past.task(name="last", cron="*/15 * * * * *")
        await past.task(name="often", every=1, catch_up_mode="NONE")
        await past.fire(60)
        await past.fire(2400)

    once(story)
    assert explained(cli, "never", 15) == (
        "missed", "catch_up_mode NONE: nothing could fire it when it was due",
    )  # fmt: skip
    assert explained(cli, "last", 15)[0] == "missed"
    assert explained(cli, "last", 45)[0] == "missed"
    assert explained(cli, "last", 60) == ("waiting", "due, and nothing in its way")
    verdict, rule = explained(cli, "often", 100)
    assert verdict == "missed" and rule is not None and "stands for every fire" in rule


def test_explain_where_there_is_no_row(cli: Cli) -> None:
    async def story(past: Past) -> None:
        await past.task(name="poll", cron="*/15 * * * * *")
        await past.task(name="byhand")
        await past.task(name="gone", cron="*/15 * * * * *")
        await past.task(name="off", cron="*/15 * * * * *")
        await past.task(name="back", cron="*/15 * * * * *")
        await past.app.tasks.steer("back", "pause")
        await past.fire(20)
        await past.app.tasks.steer("off", "disable", reason="moved")
        await past.app.tasks.steer("back", "resume")
        await past.app.store.database.write(
            # What pruning leaves of a fire.
            lambda connection: connection.execute(
                text(
                    "DELETE FROM fusee_fires WHERE task_id = (SELECT id FROM fusee_tasks WHERE name = 'gone')"
                )
            ).close()
        )

    once(story)
    assert explained(cli, "poll", 16)[0] == "not_due"
    assert explained(cli, "poll", 30)[0] == "not_yet"  # nobody has dispatched since
    assert explained(cli, "poll", 86_400)[0] == "not_yet"
    assert explained(cli, "poll", -15)[0] == "before_it_was"
    assert explained(cli, "back", 15)[0] == "before_it_was"
    assert explained(cli, "byhand", 15)[0] == "not_due"
    assert explained(cli, "off", 30)[0] == "not_enabled"
    assert explained(cli, "gone", 15)[0] == "no_record"
    shown = cli.text("explain", "poll", at(16))
    assert "the last one before that time" in shown and "due, and nothing in its way" in shown


def test_times_as_people_say_them(cli: Cli) -> None:
    cli.json(
        "task", "create", "poll", "--cron", "*/15 * * * * *", "--timezone", "Asia/Tokyo", "--allow-unknown"
    )
    for word in ("now", "-5m", "-1h", "+5m", "2030-01-31", "2030-01-31 03:00", "23:59", "03:00:15"):
        assert cli.json("explain", "poll", word)["task"] == "poll"
    assert cli.json("explain", "poll", "2030-01-31 03:00")["at"] == "2030-01-30T18:00:00.000000Z"
    for word in ("yesterday", "-", "25:00", "-5x", "2030-02-30"):
        assert "write a time such as" in cli.refused("explain", "poll", word, code=Exit.USAGE)
    assert "no task" in cli.refused("explain", "nobody", "now", code=Exit.NOT_FOUND)


# --- simulate


@pytest.fixture
def polled(cli: Cli) -> Cli:
    """Due every 15 s for two minutes; each run took 20 s, so every other fire was skipped."""

    async def story(past: Past) -> None:
        await past.task(name="poll", cron="*/15 * * * * *", overlap_action="SKIP")
        session = await past.world.session(ttl=3600)
        await past.fire(5)
        for _ in range(4):
            await past.fire(10)
            claimed = await past.world.claim(session)
            await past.fire(15)
            past.clock.tick(seconds=5)
            await past.world.finish(session, *claimed)
            await past.app.store.aggregation.aggregate()

    once(story)
    return cli


SIMULATE = ("task", "simulate", "poll", "--from", at(1), "--to", at(120))


def test_simulate_shows_both_sides(polled: Cli) -> None:
    words = (*SIMULATE, "--policy", "overlap_action=PARALLEL")
    answer = polled.json(*words)
    assert set(answer) == set(SimulationOut.model_fields)
    assert answer["policy"]["overlap_action"] == "PARALLEL"
    assert (answer["actual"], answer["simulated"]) == ({"run": 4, "skip": 4}, {"run": 8})
    assert (answer["duration"], answer["known"]) == (20, 4)
    skipped = answer["fires"][1]
    assert (skipped["actual"]["decision"], skipped["decision"]) == ("skip", "run")
    assert skipped["starts_at"] == skipped["fire_time"] and skipped["rule"].startswith(
        "overlap_action PARALLEL"
    )

    shown = polled.text(*words)
    drawn = [line for line in shown.splitlines() if "█" in line]
    assert [line.split()[0] for line in drawn[:2]] == ["was", "would"]
    assert len(drawn) == 3, "one at a time was; two at a time would be"
    [left_out] = [line for line in shown.splitlines() if "×" in line]
    assert left_out.count("×") == 4
    assert "8 fires, 4 of them the same" in shown


def test_simulate_lists_what_differs(polled: Cli) -> None:
    same = polled.text(*SIMULATE)
    everything = polled.text(*SIMULATE, "--all")
    assert "overlap_action SKIP" not in same and "overlap_action SKIP" in everything
    one = ("--policy", "concurrency=QUEUE", "--policy", "overlap=ALLOW", "--policy", "max_concurrency=1")
    assert "queued at place 1" in polled.text(*SIMULATE, *one)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "overlap_action=MAYBE"), "overlap_action must be one of"),
        (("--policy", "colour=red"), "there is no policy 'colour'"),
        (("--policy", "max_concurrency=-1"), "max_concurrency"),
        (("--to", "2020-01-01"), "to lies before from"),
    ],
)
def test_simulate_refuses_what_is_no_policy(polled: Cli, words: tuple[str, ...], says: str) -> None:
    assert says in polled.refused("task", "simulate", "poll", "--from", at(0), *words)


def test_simulate_without_a_record_wants_a_duration(cli: Cli) -> None:
    cli.json("task", "create", "new", "--cron", "*/15 * * * * *", "--allow-unknown")
    words = ("task", "simulate", "new", "--from", "now", "--to", "+75s", "-p", "overlap_action=CANCEL_PREV")
    assert "give a duration" in cli.refused(*words)
    answer = cli.json(*words, "--duration", "20s")
    canceled = [fire["canceled"] for fire in answer["fires"]]
    assert canceled == [True] * (len(canceled) - 1) + [False] and len(canceled) >= 4
    shown = cli.text(*words, "--duration", "20s")
    assert "no record" in shown and "canceled by a later fire" in shown
    assert "no fire lies in that time" in cli.text("task", "simulate", "new", "--from", at(1), "--to", at(2))


def test_the_header_of_a_simulation_does_not_end_before_it_begins(cli: Cli) -> None:
    async def story(past: Past) -> None:
        past.clock.tick(seconds=0.658962)
        await past.task(name="odd", every=60)
        await past.fire(60)

    once(story)
    words = ("task", "simulate", "odd", "--from", at(1), "--to", at(100), "--duration", "100ms")
    shown = cli.text(*words, "-p", "overlap_action=SKIP")
    [header] = [line for line in shown.splitlines() if "…" in line]
    first, last = (part.split()[1:3] for part in header.split("…"))
    assert first <= last, header
    assert "1 fire, " in shown
