"""Dispatchers die, live on machines with wrong clocks, or find the database gone: the record stays right.

The oracle knows nothing of the platform: a task that fires every second is due at every whole second from
when it was made until now, and each of them has its row, once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from fusee.tasks.model.task import Task
from fusee.tasks.store.tables import fires, tasks
from tests.chaos.harness import Fleet, fleet
from tools import servers

SECOND = 1_000_000

pytestmark = pytest.mark.chaos


async def _make(crew: Fleet, count: int, **fields: Any) -> list[Task]:
    name = fields.pop("name", "every-second")
    given = {"cron": "* * * * * *", "handler": "quick", **fields}
    return [
        await crew.app.tasks.create({"name": f"{name}-{n}", **given}, allow_unknown=True)
        for n in range(count)
    ]


async def _record(crew: Fleet) -> dict[int, list[Any]]:
    def work(connection: Connection) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for row in connection.execute(select(fires).order_by(fires.c.task_id, fires.c.fire_time)):
            found.setdefault(row.task_id, []).append(row)
        return found

    return await crew.app.store.database.read(work)


async def _decided_until(crew: Fleet, moment: int) -> None:
    """Every task has been decided about up to that moment."""

    def behind(connection: Connection) -> int:
        query = select(tasks.c.id).where(tasks.c.next_fire_at <= moment)
        return len(connection.execute(query).all())

    deadline = time.monotonic() + 60
    while await crew.app.store.database.read(behind):
        assert not crew.crashed(), crew.crashed()[0]
        assert time.monotonic() < deadline, f"seed {crew.seed}: fires were still due after 60 s"
        await asyncio.sleep(0.2)


def _oracle(task: Task, until: int) -> list[int]:
    first = (task.created_at // SECOND + 1) * SECOND
    return list(range(first, until + 1, SECOND))


async def _judge(crew: Fleet, made: Sequence[Task]) -> Counter[str]:
    until = await crew.app.store.database.read(crew.app.store.context.now) // SECOND * SECOND
    await _decided_until(crew, until)
    record = await _record(crew)
    codes: Counter[str] = Counter()
    for task in made:
        rows = [row for row in record.get(task.id, []) if row.fire_time <= until]
        assert not [row for row in rows if row.through is not None], "no outage here is that long"
        decided = [row.fire_time for row in rows]
        assert decided == _oracle(task, until), f"seed {crew.seed}: task {task.name}"
        codes.update(row.code for row in rows)
    return codes


@pytest.mark.parametrize("engine", ["postgres", "mysql", "sqlite"])
async def test_three_dispatchers_are_killed_while_500_tasks_fire_every_second(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/fusee.db" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    async with fleet(url, tmp_path, workers=1, dispatchers=3, worker={"max_concurrent_tasks": 32}) as crew:
        made = await _make(crew, 500, catch_up_mode="FULL")
        ends = time.monotonic() + 120
        kills = 0
        while time.monotonic() < ends:
            await asyncio.sleep(crew.chance.uniform(0.5, 4))
            assert not crew.crashed(), crew.crashed()[0]
            crew.kill(crew.chance.choice(crew.of("dispatcher")))
            crew.start("dispatcher")
            kills += 1
        codes = await _judge(crew, made)
    print(f"{engine}: {kills} kills, {codes}")
    assert kills > 20


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_a_dispatcher_whose_clock_is_an_hour_off_neither_repeats_nor_loses_a_fire(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    async with fleet(url, tmp_path, workers=1, dispatchers=0) as crew:
        made = await _make(crew, 20)
        wrong = [crew.start("dispatcher", clock_off_by=off) for off in (3600, -3600, 0)]
        await crew.ready(*wrong)
        await asyncio.sleep(15)
        # Only wrong ones are left, then only one that is ahead.
        crew.kill(wrong[2])
        await asyncio.sleep(5)
        crew.kill(wrong[1])
        await asyncio.sleep(5)
        codes = await _judge(crew, made)
    # Decided in time by the database's clock: nothing was early, nothing was taken for missed.
    assert set(codes) <= {"on_time", "concurrency"}, codes


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_the_store_is_down_for_a_minute_and_each_mode_makes_up_for_it_in_its_way(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: servers.Database = request.getfixturevalue(f"{engine}_server")
    if not server.pids:
        pytest.skip("the server is not ours to stop")
    url = request.getfixturevalue(f"{engine}_url")
    async with fleet(url, tmp_path, workers=1, dispatchers=2) as crew:
        made = {
            mode: (await _make(crew, 3, name=mode, catch_up_mode=mode, grace=5, max_concurrency=0))
            for mode in ("NONE", "COMPACT", "FULL")
        }
        await asyncio.sleep(3)
        await asyncio.to_thread(server.halt, kill=True)
        down_at = time.time_ns() // 1000
        await asyncio.sleep(60)
        up_at = time.time_ns() // 1000
        await asyncio.to_thread(server.start)
        await asyncio.sleep(5)
        await _judge(crew, [task for mode in made.values() for task in mode])
        record = await _record(crew)
    for mode, some in made.items():
        for task in some:
            lost = [r for r in record[task.id] if down_at < r.fire_time < up_at - 10 * SECOND]
            decisions = Counter(row.decision for row in lost)
            assert len(lost) >= 48, (mode, decisions)
            match mode:
                case "NONE":
                    assert decisions.keys() == {"miss"}
                case "FULL":
                    assert decisions.keys() == {"run"}
                case "COMPACT":
                    # The latest one runs for all; it may lie within the last seconds before the end.
                    assert decisions["run"] <= 1
                    caught_up = [r for r in record[task.id] if r.code == "caught_up"]
                    assert len(caught_up) >= 1
