"""The scenes of docs/policies: for each policy one story, played once for each of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusee.tasks.service.tasks import TaskOperations
from tools.timelines.stage import US, Part, Scene, Work

__all__ = ["SCENES"]

TEN_SECONDS = "*/10 * * * * *"
TEN_MINUTES = "*/10 * * * *"
MINUTE = 60.0
HOUR = 3600.0


def _task(name: str = "report", cron: str | None = TEN_SECONDS, **fields: Any) -> dict[str, Any]:
    return {"name": name, "retry": {"max_attempts": 1}, **({"cron": cron} if cron else {}), **fields}


def _each(
    seconds: float, *, fail: Sequence[float] = (), other: dict[float, float] | None = None
) -> Callable[[Part], Work]:
    """So long each; those due at `fail` fail, those of `other` take another time."""

    def lasts(part: Part) -> Work:
        return Work((other or {}).get(part.at, seconds), part.at in fail)

    return lasts


# -- overlap


def _overlap(value: str, story: str) -> Scene:
    return Scene(
        name=f"overlap-{value.lower().replace('_', '-')}",
        title=f"overlap_action {value}",
        story=f"Due every 10 s, cap 1; the fire of 20 s takes 25 s, the others 4 s. {story}",
        tasks=[_task(overlap_action=value)],
        lasts=_each(4, other={20: 25}),
        until=68,
    )


OVERLAP = [
    _overlap(
        "ALLOW", "Those of 30, 40 and 50 s meet the cap: they stand in line and run one after the other."
    ),
    _overlap("SKIP", "Those of 30 and 40 s are skipped."),
    _overlap(
        "CANCEL_PREV", "At 30 s the run of 20 s is told to stop; that of 30 s starts when it has ended."
    ),
    _overlap("PARALLEL", "Those of 30 and 40 s start beside it, over the cap."),
]

# -- concurrency


def _concurrency(name: str, title: str, story: str, **fields: Any) -> Scene:
    return Scene(
        name=f"concurrency-{name}",
        title=title,
        story=f"Due every 10 s, five times, each takes 35 s. {story}",
        tasks=[_task(cron="10-50/10 0 9 * * *", **{"max_concurrency": 2, **fields})],
        lasts=_each(35),
        until=100,
    )


CONCURRENCY = [
    _concurrency(
        "queue",
        "concurrency_policy QUEUE, max_concurrency 2, queue_depth 1",
        "At most two run; one more stands in line and starts when a place is free; what finds the line full"
        " is skipped.",
        concurrency_policy="QUEUE",
        queue_depth=1,
    ),
    _concurrency(
        "skip",
        "concurrency_policy SKIP, max_concurrency 2",
        "At most two run; what finds both places taken is skipped.",
        concurrency_policy="SKIP",
    ),
    _concurrency(
        "parallel",
        "concurrency_policy PARALLEL, max_concurrency 2",
        "All start at once; those over the cap say so in their rule.",
        concurrency_policy="PARALLEL",
    ),
    _concurrency("no-cap", "max_concurrency 0", "There is no cap: all start at once.", max_concurrency=0),
]

# -- failure


def _failure(value: str, story: str) -> Scene:
    return Scene(
        name=f"failure-{value.lower().replace('_', '-')}",
        title=f"failure_action {value}",
        story=f"Due every 10 s, each takes 4 s; those of 20 and 30 s fail when they run. {story}",
        tasks=[_task(failure_action=value)],
        lasts=_each(4, fail=(20, 30)),
        until=65,
        asked=[("report", 30)] if value == "PAUSE" else (),
    )


FAILURE = [
    _failure("RUN_NEW", "Each fire runs as its first attempt."),
    _failure("SKIP", "That of 30 s is skipped, that of 40 s runs again, as the third attempt."),
    _failure("RETRY", "Each fire runs; the attempts are counted on: the fire of 40 s is the third attempt."),
    _failure("PAUSE", "When the run of 20 s has failed, the task is paused; nothing is due after that."),
]

# -- catch-up

AWAY = (12 * MINUTE, 64 * MINUTE)


def _catch_up(name: str, title: str, story: str, **fields: Any) -> Scene:
    return Scene(
        name=f"catch-up-{name}",
        title=title,
        story=f"Due every 10 minutes, each takes 2 minutes; no dispatcher from 09:12 to 10:04. {story}",
        tasks=[_task(cron=TEN_MINUTES, **fields)],
        lasts=_each(2 * MINUTE),
        until=85 * MINUTE,
        tick=10 * MINUTE,
        clock=True,
        away=AWAY,
    )


CATCH_UP = [
    _catch_up("none", "catch_up_mode NONE", "All five that were due then are missed.", catch_up_mode="NONE"),
    _catch_up(
        "compact",
        "catch_up_mode COMPACT",
        "The latest of them, that of 10:00, runs at 10:04 for all five.",
        catch_up_mode="COMPACT",
    ),
    _catch_up(
        "full",
        "catch_up_mode FULL",
        "All five run from 10:04 on, oldest first, one after the other, as the cap of 1 has it.",
        catch_up_mode="FULL",
    ),
    _catch_up(
        "window",
        "catch_up_mode FULL, catch_up_window 30m",
        "What was due more than 30 minutes before 10:04 is missed.",
        catch_up_mode="FULL",
        catch_up_window="30m",
    ),
    _catch_up(
        "cap",
        "catch_up_mode FULL, catch_up_cap 2",
        "Only the latest two run.",
        catch_up_mode="FULL",
        catch_up_cap=2,
    ),
    _catch_up(
        "grace",
        "catch_up_mode NONE, grace 5m",
        "That of 10:00 is four minutes late, which counts as on time: it runs. The others are missed.",
        catch_up_mode="NONE",
        grace="5m",
    ),
    _catch_up(
        "full-skip",
        "catch_up_mode FULL, overlap_action SKIP",
        "All are decided at 10:04: the oldest runs, the others find it under way and are skipped.",
        catch_up_mode="FULL",
        overlap_action="SKIP",
    ),
]

# -- jitter and rate


def _jitter(name: str, title: str, story: str, **fields: Any) -> Scene:
    return Scene(
        name=f"jitter-{name}",
        title=title,
        story=f"Five tasks are due at 09:01, each takes 8 s. {story}",
        tasks=[_task(f"shop-{n}", cron="1 9 4 1 *", **fields) for n in range(1, 6)],
        lasts=_each(8),
        first=50,
        until=130,
    )


def _rate(name: str, title: str, story: str, **fields: Any) -> Scene:
    async def six(tasks: TaskOperations, _: int) -> None:
        for _ in range(6):
            await tasks.trigger("report")

    return Scene(
        name=f"rate-{name}",
        title=title,
        story=f"Six fires by hand at 10 s, without a cap; each takes 8 s. {story}",
        tasks=[_task(cron=None, max_concurrency=0, **fields)],
        lasts=lambda part: Work(8),
        until=70,
        acts=[(10, six)],
    )


JITTER_AND_RATE = [
    _jitter("none", "jitter 0", "All start at once."),
    _jitter("minute", "jitter 1m", "Each starts somewhere in the minute after it.", jitter="1m"),
    _rate("none", "no rate", "All start at once."),
    _rate("six-a-minute", "rate 6/m", "One starts every 10 s.", rate="6/m"),
    _rate("burst", "rate 6/m, burst 3", "Three start at once, then one every 10 s.", rate="6/m", burst=3),
]

# -- dependencies


def _warehouse(part: Part) -> Work:
    minutes = {"extract": 3, "prices": 6, "report": 2}[part.task]
    return Work(minutes * MINUTE, fails=part.task == "prices" and part.at == 20 * MINUTE)


def _depends(rule: str, story: str) -> Scene:
    return Scene(
        name=f"dependencies-{rule.replace('_', '-')}",
        title=f"trigger_rule {rule}",
        story="extract, prices and report are due at 09:10 and 09:20; report is after the other two. The"
        f" prices of 09:20 fail. {story}",
        tasks=[
            _task("extract", cron="10,20 9 * * *"),
            _task("prices", cron="10,20 9 * * *"),
            _task("report", cron="10,20 9 * * *", after=["extract", "prices"], trigger_rule=rule),
        ],
        lasts=_warehouse,
        first=8 * MINUTE,
        until=32 * MINUTE,
        tick=2 * MINUTE,
        clock=True,
    )


DEPENDENCIES = [
    _depends("all_success", "The report of 09:10 starts when both have succeeded; that of 09:20 is skipped."),
    _depends("all_done", "Both reports start when both upstreams have ended, in whatever way."),
    _depends("any_success", "Both reports start as soon as the first upstream has succeeded."),
    Scene(
        name="dependencies-mixed",
        title="mixed schedules: since its own previous fire",
        story="extract is due every 10 minutes, report at 09:15 and 09:35. At 09:15 the extract of 09:10 has"
        " succeeded since report's previous fire, so report starts at once. The extracts of 09:20 and 09:30"
        " fail, so the report of 09:35 waits until the extract of 09:40 has succeeded.",
        tasks=[_task("extract", cron=TEN_MINUTES), _task("report", cron="15,35 9 * * *", after=["extract"])],
        lasts=lambda part: Work(2 * MINUTE, fails=part.task == "extract" and part.at in (1200, 1800)),
        first=5 * MINUTE,
        until=47 * MINUTE,
        tick=5 * MINUTE,
        clock=True,
    ),
    Scene(
        name="dependencies-after",
        title="no schedule of its own: fires after others",
        story="extract and prices are due at 09:10 and 09:20; report has no schedule and is after both. It"
        " fires when the first of them has ended, for the same time, and waits for the other. The prices of"
        " 09:20 fail, and the report of that time is skipped.",
        tasks=[
            _task("extract", cron="10,20 9 * * *"),
            _task("prices", cron="10,20 9 * * *"),
            _task("report", cron=None, after=["extract", "prices"]),
        ],
        lasts=_warehouse,
        first=8 * MINUTE,
        until=32 * MINUTE,
        tick=2 * MINUTE,
        clock=True,
    ),
]

# -- sharding


def _shards(part: Part) -> Work:
    late = {0: 12.0, 1: 9.0, 2: 6.0, 3: 14.0}[part.shard]
    return Work(late, fails=(part.at, part.shard, part.attempt) == (10, 2, 1))


SHARDING = [
    Scene(
        name="sharding",
        title="shards 4",
        story="One fire makes four runs. Shard 2 of the fire of 10 s fails and is tried again alone. The fire"
        " of 20 s stands in line until all four shards of the first have ended.",
        tasks=[
            _task(
                cron="10,20 0 9 * * *",
                shards=4,
                retry={"max_attempts": 2, "backoff": "fixed", "base": 5, "jitter": 0},
            )
        ],
        lasts=_shards,
        until=45,
    )
]

# -- backfill


def _backfill(concurrency: int, story: str) -> Scene:
    async def fill(tasks: TaskOperations, begin: int) -> object:
        begin_us, end_us = begin + round(10 * MINUTE) * US, begin + round(60 * MINUTE) * US
        return await tasks.backfill("report", begin_us, end_us, concurrency=concurrency)

    return Scene(
        name=f"backfill-{concurrency}",
        title=f"backfill from 09:10 to 10:00, concurrency {concurrency}",
        story="Due every 10 minutes with catch-up NONE, each takes 5 minutes; no dispatcher from 09:12 to"
        f" 10:04. At 10:05 someone starts a backfill of the five that were missed. {story} The schedule goes"
        " on beside it.",
        tasks=[_task(cron=TEN_MINUTES, catch_up_mode="NONE")],
        lasts=_each(5 * MINUTE),
        until=95 * MINUTE,
        tick=10 * MINUTE,
        clock=True,
        away=AWAY,
        acts=[(65 * MINUTE, fill)],
    )


BACKFILL = [
    _backfill(1, "They run one after the other, oldest first."),
    _backfill(2, "They run two at a time, oldest first."),
]

# -- priorities


def _priorities(name: str, title: str, story: str, after: float) -> Scene:
    return Scene(
        name=f"priorities-{name}",
        title=title,
        story="A worker with one place. Orders, with priority 10, are due every minute and take 70 s each, so"
        f" one of them always waits. Cleaning, with priority 0, is due at 09:01. {story}",
        tasks=[
            _task("orders", cron="* * * * *", priority=10, max_concurrency=0),
            _task("cleaning", cron="1 9 4 1 *", priority=0),
        ],
        lasts=lambda part: Work(70 if part.task == "orders" else 60),
        until=10 * MINUTE,
        tick=MINUTE,
        clock=True,
        slots=1,
        starvation_after=after,
    )


PRIORITIES = [
    _priorities("strict", "dispatcher.starvation_after 0", "It waits for as long as orders keep coming.", 0),
    _priorities(
        "lifted",
        "dispatcher.starvation_after 5m",
        "After five minutes it goes to the head of the line and takes the next place.",
        300,
    ),
]

# -- alerts

HOOK = "https://hooks.example.com/fusee"


def _alerts(name: str, title: str, story: str, alerts: dict[str, Any]) -> Scene:
    return Scene(
        name=f"alerts-{name}",
        title=title,
        story=f"Due every 10 s, each takes 4 s; those from 20 to 50 s fail. {story}",
        tasks=[_task(alerts={"webhook": HOOK, **alerts})],
        lasts=_each(4, fail=(20, 30, 40, 50)),
        until=75,
    )


ALERTS = [
    _alerts("failure", "alerts: on_failure", "Each failure is told.", {}),
    _alerts(
        "in-a-row",
        "alerts: on_failures_in_a_row 3",
        "The third failure in a row is told, and no other.",
        {"on_failures_in_a_row": 3},
    ),
]

SCENES: Sequence[Scene] = [
    *OVERLAP,
    *CONCURRENCY,
    *FAILURE,
    *CATCH_UP,
    *JITTER_AND_RATE,
    *DEPENDENCIES,
    *SHARDING,
    *BACKFILL,
    *PRIORITIES,
    *ALERTS,
]
