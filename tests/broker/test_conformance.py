"""The promises that every broker keeps, however the runs reach a worker."""

from __future__ import annotations

import asyncio
import time

import pytest

from fusee import Fusee, RunSpec
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.states import RunStatus, SessionState
from fusee.errors import RunFailed
from fusee.events import RunRefused
from tests.broker.cluster import Cluster
from tests.chaos.inside import Seen, until


async def test_runs_are_executed_once_each_and_their_results_come_back(cluster: Cluster) -> None:
    async with cluster.start_worker("one"), cluster.start_worker("two"):
        handles = await cluster.app.enqueue_each("work", [{"value": n} for n in range(300)])
        runs = await cluster.ended(*handles)
    assert [run.result for run in runs] == list(range(300))
    assert {(run.status, run.spent) for run in runs} == {("succeeded", 0)}
    assert len(cluster.journal.starts()) == 300 and not cluster.journal.started_twice


async def test_a_failed_attempt_is_tried_again(cluster: Cluster) -> None:
    async with cluster.start_worker():
        handle = await cluster.app.enqueue("flaky", {"failures": 2})
        assert await handle.result(20) == "at last"
        attempts = await cluster.app.store.runs.attempts(handle.id)
        assert [attempt.end for attempt in attempts] == ["failed", "failed"]


async def test_what_fails_for_good_says_why(cluster: Cluster) -> None:
    async with cluster.start_worker():
        with pytest.raises(RunFailed, match="no luck"):
            await (await cluster.app.enqueue("flaky", {"failures": 99})).result(20)


async def test_a_run_canceled_before_it_starts_never_does(cluster: Cluster) -> None:
    async with cluster.start_worker(max_concurrent_tasks=1):
        hanging = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(hanging))
        waiting = await cluster.app.enqueue("work")
        canceled = await waiting.cancel()
        cluster.let_go.set()
        await cluster.ended(hanging, waiting)
    assert canceled.run.status is RunStatus.CANCELED
    assert not cluster.journal.started(waiting)


async def test_a_running_run_is_stopped_within_two_seconds(cluster: Cluster) -> None:
    async with cluster.start_worker():
        handle = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(handle))
        asked = time.monotonic()
        await handle.cancel()
        await until(lambda: cluster.journal.of(handle, "end"), 5)
        assert time.monotonic() - asked < 2
        (run,) = await cluster.ended(handle)
    assert run.status is RunStatus.CANCELED


async def test_a_timeout_stops_the_attempt(cluster: Cluster) -> None:
    async with cluster.start_worker():
        (handle,) = await cluster.app.enqueue_many(
            [RunSpec(handler="work", payload={"seconds": 60}, timeout=0.2)]
        )
        run = (await cluster.ended(handle))[0]
    assert run.status is RunStatus.TIMED_OUT
    assert [start.attempt for start in cluster.journal.starts()] == [1, 2, 3]


async def test_a_worker_that_vanishes_loses_nothing(cluster: Cluster) -> None:
    async with cluster.start_worker("gone") as gone:
        handle = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(handle))
        gone.kill()
        async with cluster.start_worker("other"):
            await until(lambda: len(cluster.journal.starts(handle.id)) == 2)
            cluster.let_go.set()
            (run,) = await cluster.ended(handle)
    assert (run.status, run.worker) == ("succeeded", "other")
    assert not cluster.journal.started_twice


async def test_a_late_result_is_refused_and_kept_as_stale(cluster: Cluster) -> None:
    async with cluster.start_worker(
        "slow", max_concurrent_tasks=1, heartbeat_interval_seconds=20, lease_ttl=60
    ) as slow:
        refused = Seen(slow.app.bus, RunRefused)
        handle = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(handle))
        async with cluster.start_worker("other"):
            await cluster.lose("slow")
            await until(lambda: len(cluster.journal.starts(handle.id)) == 2)
            cluster.let_go.set()
            (run,) = await cluster.ended(handle)
            await until(lambda: refused.events)
    assert (run.status, run.worker, run.attempt > 1) == ("succeeded", "other", True)
    (lost, *_) = await cluster.app.store.runs.attempts(handle.id)
    assert (lost.end, lost.late_end) == ("lost", "succeeded")


async def test_a_limit_holds_over_all_workers(cluster: Cluster) -> None:
    await cluster.app.store.queues.set_limits("default", QueueLimits(concurrency=2))
    async with cluster.start_worker("one"), cluster.start_worker("two"):
        handles = await cluster.app.enqueue_each("work", [{"seconds": 0.02}] * 30)
        await cluster.ended(*handles)
    assert cluster.journal.most_at_once() <= 2
    assert not cluster.journal.started_twice


async def test_a_paused_queue_starts_nothing_until_it_goes_on(cluster: Cluster) -> None:
    await cluster.app.store.queues.set_limits("default", QueueLimits(paused=True))
    async with cluster.start_worker():
        handle = await cluster.app.enqueue("work")
        await asyncio.sleep(0.5)
        assert not cluster.journal.started(handle)
        await cluster.app.store.queues.set_limits("default", QueueLimits())
        await cluster.ended(handle)


async def test_higher_priorities_go_first(cluster: Cluster) -> None:
    async with cluster.start_worker(max_concurrent_tasks=1, prefetch=0.0):
        hanging = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(hanging))
        order = [-5] * 4 + [0] * 4 + [5] * 4
        handles = await cluster.app.enqueue_many([RunSpec(handler="work", priority=p) for p in order])
        await asyncio.sleep(1.2)  # long enough for a full worker to have handed back what it holds
        cluster.let_go.set()
        await cluster.ended(*handles)
    started = [line.run for line in cluster.journal.starts() if line.run != hanging.id]
    place = {run: nr for nr, run in enumerate(started)}
    mean = [sum(place[h.id] for h in handles[n : n + 4]) / 4 for n in (8, 4, 0)]
    assert mean == sorted(mean), f"high, normal, low started at {mean} on average"
    if cluster.broker == "database":  # a worker may hold one message when those of higher priority come
        assert started[0] in {h.id for h in handles[8:]}


async def test_a_drain_hands_back_what_has_not_started(cluster: Cluster) -> None:
    async with cluster.start_worker("first", max_concurrent_tasks=2) as first:
        hanging = await cluster.app.enqueue_many([RunSpec(handler="hang")] * 2)
        await until(lambda: len(cluster.journal.starts()) == 2)
        handles = await cluster.app.enqueue_each("work", [{}] * 40)
        first.worker.stop()
        async with cluster.start_worker("second"):
            runs = await cluster.ended(*handles)
        cluster.let_go.set()
        kept = await cluster.ended(*hanging)
    assert {run.worker for run in runs} == {"second"}
    assert {(run.status, run.spent) for run in [*runs, *kept]} == {("succeeded", 0)}
    states = {session.state for session in await cluster.app.store.sessions.sessions(all_states=True)}
    assert states == {SessionState.ENDED}


async def test_a_full_worker_hands_back_what_another_could_run(cluster: Cluster) -> None:
    async with cluster.start_worker("full", max_concurrent_tasks=1):
        hanging = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(hanging))
        handles = await cluster.app.enqueue_each("work", [{}] * 50)
        async with cluster.start_worker("free"):
            runs = await cluster.ended(*handles, seconds=15)
        cluster.let_go.set()
        await cluster.ended(hanging)
    assert {run.worker for run in runs} == {"free"}


async def test_a_run_waits_for_a_worker_that_has_its_handler(cluster: Cluster) -> None:
    def newer(app: Fusee) -> None:
        @app.handler("new")
        async def new() -> str:
            return "understood"

    async with cluster.start_worker("old"):
        handle = await cluster.app.enqueue("new", allow_unknown=True)
        await cluster.ended(await cluster.app.enqueue("work"))
        assert (await cluster.app.store.runs.run(handle.id)).status is RunStatus.PENDING
        async with cluster.start_worker("new", prepare=newer):
            assert await handle.result(20) == "understood"


async def test_scheduled_and_delayed_runs_arrive_too(cluster: Cluster) -> None:
    async with cluster.start_worker():
        handle = await cluster.app.enqueue("work", {"value": 1}, delay=0.3)
        assert await handle.result(20) == 1


async def test_a_worker_is_drained_by_command(cluster: Cluster) -> None:
    async with cluster.start_worker("first") as first, cluster.start_worker("second"):
        hanging = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(hanging))
        (run,) = [await cluster.app.store.runs.run(hanging.id)]
        assert run.worker is not None
        await cluster.app.store.sessions.ask_to_drain("first")
        handles = await cluster.app.enqueue_each("work", [{}] * 20)
        runs = await cluster.ended(*handles)
        cluster.let_go.set()
        await cluster.ended(hanging)
        await until(first.task.done, 10, "the drained worker's end")
    assert {run.worker for run in runs} == {"second"}


async def test_strategies_place_runs_on_workers(cluster: Cluster) -> None:
    async with cluster.start_worker("one"), cluster.start_worker("two"):
        hashed = [RunSpec(handler="work", hash_key=f"k{n % 4}") for n in range(40)]
        runs = await cluster.ended(*await cluster.app.enqueue_many(hashed))
        turns = await cluster.app.enqueue_many([RunSpec(handler="work", strategy="round_robin")] * 20)
        taken = await cluster.ended(*turns)
    by_key: dict[int, set[str | None]] = {}
    for nr, run in enumerate(runs):
        by_key.setdefault(nr % 4, set()).add(run.worker)
    assert all(len(workers) == 1 for workers in by_key.values()), by_key
    assert {run.worker for run in taken} == {"one", "two"}
    assert not cluster.journal.started_twice


async def test_a_limit_holds_for_what_a_strategy_placed(cluster: Cluster) -> None:
    await cluster.app.store.queues.set_limits("default", QueueLimits(concurrency=2))
    async with cluster.start_worker("one"), cluster.start_worker("two"):
        specs = [RunSpec(handler="work", payload={"seconds": 0.02}, strategy="round_robin")] * 12
        await cluster.ended(*await cluster.app.enqueue_many(specs))
    assert cluster.journal.most_at_once() <= 2
