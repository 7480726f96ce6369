"""Limits of a queue, counted by the handlers of two workers."""

from __future__ import annotations

import asyncio

import pytest

from fusee import Fusee
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.worker.settings import WorkerSettings
from fusee.events import WorkerMemory
from tests.chaos.inside import Journal, all_ended, make_app, until, working


def two_workers(url: str, journal: Journal, seconds: float) -> tuple[Fusee, Fusee]:
    apps = make_app(url, max_concurrent_tasks=10), make_app(url, max_concurrent_tasks=10)
    for app in apps:

        @app.handler("work")
        async def work() -> None:
            journal.start()
            await asyncio.sleep(seconds)
            journal.end()

    return apps


@pytest.mark.heavy
async def test_a_rate_holds_across_two_workers(database_url: str) -> None:
    journal = Journal()
    one, two = two_workers(database_url, journal, 0.0)
    async with one:
        await one.queues.limit("slow", QueueLimits(rate=20, burst=5))
        handles = await one.enqueue_many([RunSpec(handler="work", queue="slow")] * 60)
        async with working(one), working(two, dispatcher=False):
            runs = await all_ended(one, handles, 40)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    starts = sorted(line.at for line in journal.starts())
    assert len(starts) == 60
    # In no stretch of time more than the bucket and what came in meanwhile; a claim may start a little late.
    for first in range(60):
        for last in range(first, 60):
            allowed = 5 + 20 * (starts[last] - starts[first] + 0.35) + 1
            assert last - first + 1 <= allowed
    assert starts[-1] - starts[0] >= (60 - 5) / 20 - 0.4


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(database_url: str) -> None:
    journal = Journal()
    one, two = two_workers(database_url, journal, 0.0)
    async with one:
        await one.queues.pause("held", True)
        handles = await one.enqueue_many([RunSpec(handler="work", queue="held")] * 5)
        free = await one.enqueue_many([RunSpec(handler="work")] * 20)
        async with working(one), working(two, dispatcher=False):
            await all_ended(one, free)
            assert not any(journal.started(handle) for handle in handles)
            await one.queues.pause("held", False)
            await all_ended(one, handles)
    assert len(journal.starts()) == 25


@pytest.mark.heavy
async def test_a_limit_set_under_load_holds_within_two_seconds(database_url: str) -> None:
    journal = Journal()
    one, two = two_workers(database_url, journal, 0.02)
    async with working(one), working(two, dispatcher=False):
        handles = await one.enqueue_many([RunSpec(handler="work", queue="later")] * 1500)
        await until(lambda: len(journal.starts()) > 40)
        await one.queues.limit("later", QueueLimits(concurrency=2))
        loop = asyncio.get_running_loop()
        settled = loop.time() + 2.0
        await until(lambda: loop.time() > settled)
        before = len(journal.lines)
        await until(lambda: len(journal.lines) > before + 60)
        inside = Journal(journal.lines[before:])
        await one.queues.limit("later", QueueLimits())
        runs = await all_ended(one, handles, 60)
    assert inside.most_at_once() <= 2
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice


@pytest.mark.parametrize("who", ["this process", "another"])
async def test_a_limit_holds_from_the_first_run_of_a_queue(
    database_url: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a worker that will not look at limits for an hour: a queue that is new to it is read first."""
    monkeypatch.setattr(WorkerSettings, "look_interval", 3600.0)
    journal = Journal()
    one, other = two_workers(database_url, journal, 0.05)
    async with working(one), other:
        await (await one.enqueue("work")).result(20)
        asking = one if who == "this process" else other
        await asking.queues.limit("narrow", QueueLimits(concurrency=2))
        handles = await asking.enqueue_many([RunSpec(handler="work", queue="narrow")] * 8)
        await all_ended(one, handles)
    assert journal.most_at_once() == 2


async def test_above_its_memory_limit_a_worker_claims_nothing_and_others_do(database_url: str) -> None:
    full, free = make_app(database_url, worker_id="full"), make_app(database_url, worker_id="free")
    where: list[str] = []
    for app in (full, free):

        @app.handler("work")
        async def work(app: Fusee = app) -> None:
            where.append(str(app.config.worker.worker_id))

    used = [0]
    told: list[bool] = []
    full.bus.subscribe(WorkerMemory, lambda event: told.append(event.full))
    async with working(full) as worker:
        worker.memory.limit, worker.memory.measure = 100, lambda: used[0]
        await all_ended(full, await full.enqueue_many([RunSpec(handler="work")] * 5))
        used[0] = 101
        await until(lambda: told == [True])
        await full.queues.limit("slow", QueueLimits(concurrency=5))
        handles = await full.enqueue_many(
            [RunSpec(handler="work"), RunSpec(handler="work", queue="slow")] * 5
        )
        async with working(free, dispatcher=False):
            await all_ended(full, handles)
        assert where == ["full"] * 5 + ["free"] * 10
        last = await full.enqueue_many([RunSpec(handler="work")] * 5)
        used[0] = 50
        await all_ended(full, last)
    assert where[15:] == ["full"] * 5 and told == [True, False]
