"""The scan: a fire time never fires twice, and every due fire leaves a row with the rule that decided."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from fusee.clock import SystemClock
from fusee.engine.store.tables import runs
from fusee.errors import StoreUnavailable
from fusee.stores import Store
from fusee.tasks.model import catch_up
from fusee.tasks.model.policy import CatchUp
from fusee.tasks.service.explain import explain
from fusee.tasks.store import fire_writer, firing
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.tables import fires
from tests.store.clockwork import MINUTE, Clockwork, at, minutes, spec
from tests.store.harness import START

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = 3600.0


async def _explained(works: Clockwork, name: str, minute: float) -> tuple[str, str]:
    """What `explain` answers about that minute: the verdict, and the rule or else the text."""
    task = await works.task(name)
    found = await works.store.tasks.history.fires_at(task.id, at(minute))
    answer = explain(task, at(minute), found, await works.world.clock.now())
    return answer.verdict, answer.rule or answer.text


# --- the tick ------------------------------------------------------------------------------------------


async def test_a_due_task_makes_a_run_that_knows_its_fire(works: Clockwork) -> None:
    await works.make("t", payload={"depth": 3}, priority=7, queue="nightly", timeout=9.0)
    assert not await works.store.tasks.firing.fire_due(), "nothing is due yet"
    fired = await works.fire_at(1)
    assert (dict(fired.counts), list(fired.lateness), fired.tasks) == ({"on_time": 1}, [0.0], 1)
    run = await works.run_of("t", 1)
    assert (run.kind, run.task, run.fire_time, run.shard_total) == ("task", "t", at(1), 1)
    assert (run.payload, run.priority, run.queue, run.timeout) == ({"depth": 3}, 7, "nightly", 9.0)
    assert (run.status, run.due_at, run.attempt) == ("pending", at(1), 0)
    task = await works.task()
    assert (task.next_fire_at, task.last_fire_at) == (at(2), at(1))


async def test_the_scan_says_when_it_is_needed_again(works: Clockwork) -> None:
    assert (await works.store.tasks.firing.fire_due()).next_in is None
    await works.make("t", every=90)
    assert (await works.store.tasks.firing.fire_due()).next_in == 90.0


async def test_the_scan_serves_all_namespaces(works: Clockwork) -> None:
    other = works.store.for_namespace("other")
    await works.make("t")
    await other.tasks.definitions.create_task(spec("t"))
    assert (await works.fire_at(1)).tasks == 2
    task = await other.tasks.definitions.task("t")
    (fire,) = await other.tasks.history.fires_at("t", at(1))
    assert fire.task_id == task.id
    assert (await other.runs.run(fire.run_id)).namespace == "other"


async def test_a_task_that_fires_once_fires_once(works: Clockwork) -> None:
    await works.make("t", at=at(3))
    assert not await works.fire_at(2)
    assert await works.fire_at(3)
    assert (await works.task()).next_fire_at is None
    assert not await works.fire_at(10)


async def test_a_pass_takes_as_many_tasks_as_it_is_told_earliest_first(works: Clockwork) -> None:
    for name, every in (("c", 180), ("a", 60), ("b", 120)):
        await works.make(name, every=every)
    await works.go_to(3)
    for name in "abc":
        assert (await works.store.tasks.firing.fire_due(limit=1)).tasks == 1
        assert (await works.task(name)).last_fire_at == at(3 if name != "b" else 2)


async def test_a_pass_that_has_made_enough_rows_leaves_the_rest_to_the_next(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "MOST_ROWS", 4)
    for name in "abc":
        await works.make(name, catch_up=CatchUp.FULL)
    await works.go_to(5)
    assert [(await works.store.tasks.firing.fire_due()).tasks for _ in range(4)] == [1, 1, 1, 0]
    assert [len(await works.record(name)) for name in "abc"] == [5, 5, 5]


async def test_a_jittered_fire_starts_later_by_a_share_of_its_own(works: Clockwork) -> None:
    for n in range(20):
        await works.make(f"t{n}", jitter=10.0)
    await works.fire_at(1)
    starts = [(await works.run_of(f"t{n}", 1)) for n in range(20)]
    assert all(at(1) <= run.due_at <= at(1) + 10_000_000 for run in starts)
    assert len({run.due_at for run in starts}) > 10
    assert {run.status for run in starts} <= {"delayed", "pending"}


async def test_a_rate_delays_starts_over_all_fires_of_a_task(works: Clockwork) -> None:
    await works.make("t", max_concurrency=0, rate=0.01, burst=2, catch_up=CatchUp.FULL)
    await works.fire_at(4)
    runs = [await works.run_of("t", minute) for minute in (1, 2, 3, 4)]
    assert [(str(run.status), (run.due_at - at(4)) / 1e6) for run in runs] == [
        ("pending", 0),
        ("pending", 0),
        ("delayed", 100),
        ("delayed", 200),
    ]


# --- promise 5: never twice ----------------------------------------------------------------------------


async def test_three_dispatchers_fire_each_time_once(works: Clockwork) -> None:
    dispatchers = [works.store, await works.world.another(), await works.world.another()]
    for n in range(12):
        await works.make(f"t{n}", max_concurrency=0, shards=1 + n % 2)
    for minute in range(1, 6):
        await works.go_to(minute)
        fired = await asyncio.gather(*(store.tasks.firing.fire_due(limit=5) for store in dispatchers * 2))
        while (again := await works.store.tasks.firing.fire_due(limit=5)).tasks:
            fired.append(again)
        assert sum(one.tasks for one in fired) == 12
    seen = Counter((row.task_id, row.fire_time, row.shard) for row in await works.world.rows(fires))
    assert len(seen) == 5 * (6 + 6 * 2) and set(seen.values()) == {1}
    assert len(await works.world.rows(runs)) == len(seen), "no run without its fire"


async def test_two_dispatchers_after_an_outage_make_up_for_it_once(works: Clockwork) -> None:
    other = await works.world.another()
    for n in range(6):
        await works.make(f"t{n}", catch_up=CatchUp.FULL)
    await works.go_to(20)
    await asyncio.gather(*(store.tasks.firing.fire_due() for store in (works.store, other) * 2))
    for n in range(6):
        assert minutes(f.fire_time for f in await _fires(works, f"t{n}")) == list(range(1, 21))


async def _fires(works: Clockwork, name: str) -> list[Any]:
    task = await works.task(name)
    return sorted(
        (row for row in await works.world.rows(fires) if row.task_id == task.id),
        key=lambda row: row.fire_time,
    )


@pytest.mark.parametrize("broken", ["save", "_fire_rows", "insert_runs"])
async def test_a_pass_that_dies_in_the_middle_leaves_nothing_half_done(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    await works.make("t", shards=2)
    await works.go_to(1)

    def die(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the dispatcher dies")

    with monkeypatch.context() as patch:
        parts = {
            "save": works.store.tasks.states,
            "_fire_rows": fire_writer,
            "insert_runs": works.store.run_writer,
        }
        patch.setattr(parts[broken], broken, die)
        with pytest.raises(StoreUnavailable, match="the dispatcher dies"):
            await works.store.tasks.firing.fire_due()
    assert await works.world.rows(fires) == await works.world.rows(runs) == []
    assert (await works.task()).next_fire_at == at(1)
    await works.fire_at(1)
    assert await works.record() == ["1 run pending pending"]
    assert (await works.task()).next_fire_at == at(2)


async def test_the_database_itself_refuses_a_second_fire_of_a_time(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    (row,) = await works.world.rows(fires)
    with pytest.raises(IntegrityError):
        await works.store.database.write(lambda c: c.execute(insert(fires).values(row._mapping)).close())


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
async def test_a_task_that_someone_else_decides_about_is_passed_over(works: Clockwork) -> None:
    """Whoever holds a task's row decides; the others go on with the rest. (SQLite has one writer.)"""
    other = await works.world.another()
    await works.make("held")
    await works.make("free")
    await works.go_to(1)
    holding, decided = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with other.database.engine.begin() as connection:  # type: ignore[attr-defined]
            await connection.exec_driver_sql("SELECT id FROM fusee_tasks WHERE name = 'held' FOR UPDATE")
            holding.set()
            await decided.wait()

    holder = asyncio.create_task(hold())
    await holding.wait()
    fired = await works.store.tasks.firing.fire_due()
    assert fired.tasks == 1, "not both, and without waiting"
    assert (await works.store.tasks.firing.fire_due()).next_in == 0.05, (
        "soon again: something is due and held"
    )
    decided.set()
    await holder
    assert (await works.store.tasks.firing.fire_due()).tasks == 1


async def test_a_database_clock_that_goes_back_fires_nothing_again(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.fire_at(2)
    await works.go_to(0.5)
    assert not await works.fire_at(1)
    # Changed meanwhile, it would be due at minutes that have fired.
    await works.change("t", cron="* * * * *", shards=2)
    await works.change("t", cron="0 * * * * *", timezone="Europe/Berlin")
    await works.fire_at(1)
    await works.fire_at(2)
    await works.fire_at(3)
    assert [line.split()[0] for line in await works.record()] == ["1", "2", "3"]


async def test_a_clock_that_goes_back_over_a_row_of_many_fires_none_of_them(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "MOST_ROWS", 50)
    await works.make("t", cron="* * * * * *", catch_up_cap=5)
    await works.fire_at(50)
    before = len(await works.record())
    await works.go_to(5)
    await works.change("t", cron="* * * * * *", timezone="Europe/Berlin")
    await works.fire_at(6)
    assert len(await works.record()) == before


async def test_a_clock_that_goes_back_over_a_backfill_stops_no_task(works: Clockwork) -> None:
    """Resumed in the past, a task is due at times that were made up for: they are left alone."""
    await works.make("t")
    await works.make("innocent")
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.go_to(3.5)
    await works.store.tasks.backfills.start("t", at(1), at(3))
    await works.go_to(0.5)
    await works.store.tasks.steering.steer_task("t", "resume")
    await works.fire_at(1)
    assert [line.split()[0] for line in await works.record("innocent")] == ["1"]
    assert [line.split()[:2] for line in await works.record("t")] == [
        ["1", "run"],
        ["2", "run"],
        ["3", "run"],
    ]
    await works.fire_at(4)
    assert [line.split()[0] for line in await works.record("t")] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_dispatchers_own_clock_decides_nothing(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """On SQLite the process's clock is the database's."""
    await works.make("t")
    await works.go_to(1.5)
    now = await works.world.clock.now()
    monkeypatch.setattr(SystemClock, "now_us", lambda self: now + round(hours * HOUR * 1e6))
    monkeypatch.setattr("time.time", lambda: now / 1e6 + hours * HOUR)
    monkeypatch.setattr("time.time_ns", lambda: now * 1000 + round(hours * HOUR * 1e9))
    await works.store.tasks.firing.fire_due()
    assert await works.record() == ["1 run pending"]
    assert (await works.task()).next_fire_at == at(2)


# --- promise 6: every due fire leaves a row ------------------------------------------------------------


def _minutes_due(begin: float, end: float) -> list[int]:
    """The oracle: a task of every minute is due at each whole minute after it was made."""
    return [minute for minute in range(1000) if begin < minute <= end]


@pytest.mark.parametrize("mode", CatchUp)
async def test_whenever_dispatchers_come_each_due_minute_has_its_row(works: Clockwork, mode: CatchUp) -> None:
    await works.go_to(0.3)
    await works.make("t", catch_up=mode, max_concurrency=0)
    looks = [0.9, 1.1, 1.2, 3.05, 9.9, 9.95, 17.0, 17.5, 40.2]
    for before, now in pairwise([0.3, *looks]):
        await works.fire_at(now)
        found = await _fires(works, "t")
        assert minutes(row.fire_time for row in found) == _minutes_due(0.3, now)
        for row in found:
            minute = (row.fire_time - START) / MINUTE
            if before < minute <= now:
                late = row.decided_at - row.fire_time > 10_000_000
                latest = minute == max(_minutes_due(0.3, now))  # on time or not, COMPACT runs this one
                runs_late = {CatchUp.NONE: False, CatchUp.COMPACT: latest, CatchUp.FULL: True}[mode]
                assert row.decision == ("miss" if late and not runs_late else "run"), (minute, now)
    assert len(await works.world.rows(runs)) == 40, "one run each, also of those that did not run"


@pytest.mark.parametrize(
    ("mode", "explained"),
    [
        (
            CatchUp.NONE,
            {
                1: ("missed", "catch_up_mode NONE: nothing could fire it when it was due"),
                3: ("ran", "due, and nothing in its way"),
            },
        ),
        (
            CatchUp.COMPACT,
            {
                1: ("missed", "catch_up_mode COMPACT: a later fire runs for all that were missed"),
                2: ("missed", "catch_up_mode COMPACT: a later fire runs for all that were missed"),
                3: ("ran", "due, and nothing in its way"),
            },
        ),
        (
            CatchUp.FULL,
            {
                1: ("ran", "catch_up_mode FULL: 125 s late"),
                2: ("queued", "concurrency_policy QUEUE: 1 of at most 1 under way; queued at place 1"),
                3: ("queued", "concurrency_policy QUEUE: 1 of at most 1 under way; queued at place 2"),
            },
        ),
    ],
)
async def test_each_row_says_which_rule_decided(
    works: Clockwork, mode: CatchUp, explained: dict[float, tuple[str, str]]
) -> None:
    await works.make("t", catch_up=mode)
    await works.fire_at(3 + 5 / 60)
    await works.claim()
    for minute, answer in explained.items():
        assert await _explained(works, "t", minute) == answer


@pytest.mark.parametrize(
    ("mode", "ran"), [(CatchUp.NONE, [0.2]), (CatchUp.COMPACT, [0.2]), (CatchUp.FULL, [0.1, 0.2])]
)
async def test_the_grace_never_exceeds_the_period_of_the_task(
    works: Clockwork, mode: CatchUp, ran: list[float]
) -> None:
    """Every 6 s; a dispatcher comes 2 s after the second fire, both within the grace of 10 s."""
    await works.make("t", every=6, catch_up=mode, max_concurrency=0)
    await works.fire_at(14 / 60)
    found = await _fires(works, "t")
    assert minutes(row.fire_time for row in found) == [0.1, 0.2]
    assert minutes(row.fire_time for row in found if row.decision == "run") == ran


async def test_what_has_no_row_is_explained_too(works: Clockwork) -> None:
    await works.go_to(0.5)
    await works.make("t")
    assert (await _explained(works, "t", 0))[0] == "before_it_was"
    assert (await _explained(works, "t", 0.75))[0] == "not_due"
    assert (await _explained(works, "t", 2))[0] == "not_yet"
    await works.go_to(2)
    verdict, text = await _explained(works, "t", 2)
    assert (verdict, "is one running?" in text) == ("not_yet", True)
    await works.store.tasks.steering.steer_task("t", "pause", "for the night")
    assert (await _explained(works, "t", 2))[0] == "missed"
    await works.go_to(4)
    assert (await _explained(works, "t", 3))[0] == "not_enabled"


async def test_after_an_age_one_row_stands_for_many(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "MOST_ROWS", 50)
    await works.make("t", cron="* * * * * *", catch_up=CatchUp.COMPACT, catch_up_cap=5)
    await works.fire_at(50)
    rows = await _fires(works, "t")
    many, rest = rows[0], rows[1:]
    assert many.fire_time == START + 1_000_000 and many.decision == "miss"
    assert rest[0].fire_time == many.through // 1_000_000 * 1_000_000 + 1_000_000
    assert [row.fire_time for row in rest] == list(range(rest[0].fire_time, at(50) + 1, 1_000_000))
    verdict, rule = await _explained(works, "t", 5)
    assert verdict == "missed"
    assert rule == f"missed in a long outage: this row stands for every fire up to the last {len(rest)}"
    assert (await works.task()).last_fire_at == at(50)
    assert not await works.store.tasks.firing.fire_due()


async def test_the_record_is_read_in_pages_newest_first(works: Clockwork) -> None:
    await works.make("t", shards=2, max_concurrency=0, catch_up=CatchUp.FULL)
    await works.fire_at(3)
    seen: list[tuple[float, int]] = []
    before = None
    while page := await works.store.tasks.history.fires("t", FireFilter(limit=2, before=before)):
        seen += [(minutes([f.fire_time])[0], f.shard) for f in page]
        before = (page[-1].fire_time, page[-1].shard)
    assert seen == [(3, 1), (3, 0), (2, 1), (2, 0), (1, 1), (1, 0)]


async def test_a_run_knows_the_fire_that_made_it(works: Clockwork, store: Store) -> None:
    await works.make("t")
    await works.fire_at(1)
    run = await works.run_of("t", 1)
    fire = await store.tasks.history.fire_of(run.id)
    assert fire is not None and fire.fire_time == at(1)
    assert await store.for_namespace("other").tasks.history.fire_of(run.id) is None
