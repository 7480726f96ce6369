"""Strategies with real workers and a real dispatcher: who runs what, and that everything is run."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee, RetryPolicy, current_run
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from tests.chaos.inside import Journal, all_ended, make_app, until, working

pytestmark = pytest.mark.heavy

ONCE = RetryPolicy(max_attempts=1)


class Crew:
    """Workers a, b, c in this process, each an app of its own over one database."""

    def __init__(self, url: str, names: str = "abc", seconds: float = 0.0, **worker: Any) -> None:
        self.journal = Journal()
        self.ran: dict[str, list[int]] = {name: [] for name in names}
        self.apps = {name: self._app(url, name, seconds, worker) for name in names}

    def _app(self, url: str, name: str, seconds: float, worker: dict[str, Any]) -> Fusee:
        app = make_app(url, **{"worker_id": name, "cpu": 2, "memory": "100MB", **worker})

        @app.handler("work")
        async def work(n: int = 0) -> str:
            self.journal.start()
            self.ran[name].append(n)
            await asyncio.sleep(seconds)
            self.journal.end()
            return name

        return app

    async def start(self, stack: AsyncExitStack) -> Fusee:
        """All of them, one dispatcher; answers the first app."""
        for nr, app in enumerate(self.apps.values()):
            await stack.enter_async_context(working(app, dispatcher=nr == 0))
        return next(iter(self.apps.values()))


async def test_by_turns_everyone_does_as_much(database_url: str) -> None:
    crew = Crew(database_url)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        specs = [RunSpec(handler="work", strategy="round_robin", retry=ONCE)] * 90
        runs = await all_ended(app, await app.enqueue_many(specs))
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert [len(done) for done in crew.ran.values()] == [30, 30, 30]
    assert not crew.journal.started_twice


async def test_a_key_is_always_done_by_the_same_worker(database_url: str) -> None:
    crew = Crew(database_url)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        specs = [
            RunSpec(handler="work", hash_key=f"user-{n % 9}", payload={"n": n % 9}, retry=ONCE)
            for n in range(90)
        ]
        await all_ended(app, await app.enqueue_many(specs))
    for n in range(9):
        assert [done.count(n) for done in crew.ran.values()].count(10) == 1, f"user-{n} moved"


async def test_resources_bound_what_runs_at_once(database_url: str) -> None:
    """Three workers of two cores: six runs of one core at once, and never more on one of them."""
    crew = Crew(database_url, seconds=0.05, max_concurrent_tasks=10)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        await all_ended(app, await app.enqueue_many([RunSpec(handler="work", cpu=1, retry=ONCE)] * 30))
    assert crew.journal.most_at_once() <= 6


async def test_a_queue_with_a_strategy_keeps_its_limits(database_url: str) -> None:
    crew = Crew(database_url, seconds=0.02)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        await app.queues.place("default", "round_robin")
        await app.queues.limit("default", QueueLimits(concurrency=2))
        await until(lambda: all(w.store.lane_map.limits for w in crew.apps.values()))
        runs = await all_ended(app, await app.enqueue_many([RunSpec(handler="work", retry=ONCE)] * 20))
        stats = await app.queues.get("default")
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert crew.journal.most_at_once() <= 2
    assert (stats.limits.strategy, stats.limits.concurrency) == ("round_robin", 2)


async def test_a_strategy_can_be_chosen_and_lifted_while_work_is_under_way(database_url: str) -> None:
    crew = Crew(database_url)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        handles = []
        for strategy in ("shared", "round_robin", "shared", "affinity", "least_loaded", "shared"):
            await app.queues.place("default", strategy)
            handles += await app.enqueue_many([RunSpec(handler="work", retry=ONCE)] * 40)
        runs = await all_ended(app, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not crew.journal.started_twice
    assert {run.spent for run in runs} == {0}


async def test_a_broadcast_reaches_every_worker_once(database_url: str) -> None:
    crew = Crew(database_url)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        await app.enqueue("work", {"n": 7}, strategy="broadcast", retry=ONCE)
        await until(lambda: all(crew.ran.values()))
        task = {"name": "flush", "handler": "work", "strategy": "broadcast", "payload": {"n": 8}}
        await app.tasks.create(task)
        await app.tasks.trigger("flush")
        await until(lambda: all(len(done) == 2 for done in crew.ran.values()))
    assert list(crew.ran.values()) == [[7, 8]] * 3


async def test_a_draining_worker_gives_back_what_it_was_given(database_url: str) -> None:
    crew = Crew(database_url, "ab", seconds=0.03, max_concurrent_tasks=2)
    async with AsyncExitStack() as stack:
        app = await crew.start(stack)
        handles = await app.enqueue_many([RunSpec(handler="work", strategy="round_robin", retry=ONCE)] * 40)
        await until(lambda: len(crew.ran["b"]) >= 3)
        await app.workers.drain("b")
        runs = await all_ended(app, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}, [r for r in runs if r.status == "failed"]
    assert {run.spent for run in runs} == {0}
    assert not crew.journal.started_twice
    assert Counter(run.worker for run in runs)["a"] > 20


async def test_a_lane_that_the_worker_has_not_read_yet_is_read_when_its_runs_come(tmp_path: Path) -> None:
    """The dispatcher may be quicker to know a new queue than the worker that it gives the first run to."""
    app = make_app(f"sqlite:///{tmp_path}/fusee.db", worker_id="a")

    @app.handler("work")
    async def work() -> str:
        return current_run().queue

    async with working(app, dispatcher=False) as worker:
        await app.enqueue("work", strategy="round_robin")
        await until(lambda: worker.served.may_have_assigned)
        other = app.store.for_namespace(app.store.namespace)
        (run,) = await other.run_writer.enqueue(
            [RunSpec(handler="work", queue="new", strategy="round_robin")]
        )
        worker.served.work_source.lane_map.lanes = {
            lane_id: lane
            for lane_id, lane in worker.work_source.lane_map.lanes.items()
            if lane.queue != "new"
        }
        await other.assignments.assign()
        ended = await app.runs.wait(run.id, 10)
    assert ended.result == "new"
