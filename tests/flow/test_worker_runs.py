"""What a worker does with the runs it has claimed, judged by what the handlers wrote down."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fusee import Abandon, Done, Retry, RetryPolicy, Skip, current_run
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from tests.chaos.inside import FixedPace, Journal, all_ended, make_app, until, working

QUICK = RetryPolicy(max_attempts=3, backoff="fixed", base=0.05, jitter=0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fusee.db"


async def test_runs_at_most_capacity_at_once(database_url: str) -> None:
    app, journal = make_app(database_url, max_concurrent_tasks=3), Journal()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.01)
        journal.end()

    async with working(app):
        handles = await app.enqueue_many([RunSpec(handler="work")] * 30)
        runs = await all_ended(app, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert journal.most_at_once() == 3
    assert len(journal.starts()) == 30


async def test_sync_handlers_run_in_threads_side_by_side(url: str) -> None:
    app = make_app(url, max_concurrent_tasks=4)
    together = threading.Barrier(4)

    @app.handler("meet")
    def meet() -> str:
        together.wait(10)  # passes only when four threads are here at the same time
        return threading.current_thread().name

    async with working(app):
        handles = await app.enqueue_many([RunSpec(handler="meet")] * 4)
        names = {await handle.result(15) for handle in handles}
    assert len(names) == 4
    assert threading.main_thread().name not in names


def pid_of_process() -> int:
    return os.getpid()


async def test_process_isolation_runs_in_another_process(url: str) -> None:
    app = make_app(url)
    app.handler("where", isolation="process")(pid_of_process)
    async with working(app):
        pid = await (await app.enqueue("where")).result(20)
    assert pid != os.getpid()


async def test_retries_with_backoff_and_keeps_the_attempts(database_url: str) -> None:
    app, journal = make_app(database_url), Journal()

    @app.handler("flaky", retry=RetryPolicy(max_attempts=3, backoff="exponential", base=0.2, jitter=0))
    async def flaky() -> str:
        journal.start()
        if current_run().attempt < 3:
            raise ValueError(f"not yet ({current_run().attempt})")
        return "done"

    async with working(app):
        handle = await app.enqueue("flaky")
        assert await handle.result(20) == "done"
        kept = await app.runs.get(handle.id)
    assert kept.run.status is RunStatus.SUCCEEDED
    assert (kept.run.attempt, kept.run.spent) == (3, 2)
    assert [(a.attempt, a.end) for a in kept.attempts] == [(1, End.FAILED), (2, End.FAILED)]
    assert "not yet (1)" in str(kept.attempts[0].error)
    first, second, third = journal.starts(handle.id)
    assert second.at - first.at >= 0.19
    assert third.at - second.at >= 0.39


async def test_fails_when_the_attempts_are_spent(url: str) -> None:
    app, journal = make_app(url), Journal()

    @app.handler("broken", retry=QUICK)
    async def broken() -> None:
        journal.start()
        raise ValueError("always")

    async with working(app):
        run = await (await app.enqueue("broken")).wait(20)
        kept = await app.store.runs.attempts(run.id)
    assert (run.status, run.attempt, run.spent) == (RunStatus.FAILED, 3, 3)
    assert [a.attempt for a in kept] == [1, 2], "the last attempt is the run's own row"
    assert [line.attempt for line in journal.starts()] == [1, 2, 3]


async def test_retry_after_is_obeyed(url: str) -> None:
    app, journal = make_app(url), Journal()

    @app.handler("later", retry=RetryPolicy(base=300))
    async def later() -> Any:
        journal.start()
        return Retry(after=0.3) if current_run().attempt == 1 else None

    async with working(app):
        handle = await app.enqueue("later")
        await handle.result(20)
    first, second = journal.starts(handle.id)
    assert 0.29 <= second.at - first.at < 5


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_abandon_skip_and_done(url: str, how: str) -> None:
    app = make_app(url)

    def answer(value: Any) -> Any:
        if how == "raise" and isinstance(value, Exception):
            raise value
        return value

    @app.handler("abandon", retry=QUICK)
    async def abandon() -> Any:
        return answer(Abandon("of no use"))

    @app.handler("skip", retry=QUICK)
    def skip() -> Any:
        return answer(Skip("nothing to do"))

    @app.handler("done", retry=QUICK)
    async def done() -> Any:
        return Done({"n": 7})

    async with working(app):
        abandoned, skipped, finished = [
            await (await app.enqueue(name)).wait(20) for name in ("abandon", "skip", "done")
        ]
    assert (abandoned.status, abandoned.spent, abandoned.error) == (RunStatus.FAILED, 1, "of no use")
    assert (skipped.status, skipped.reason) == (RunStatus.SKIPPED, "nothing to do")
    assert (finished.status, finished.result) == (RunStatus.SUCCEEDED, {"n": 7})
    assert finished.effect is Effect.APPLIED


async def test_asyncio_timeout_and_task_groups_work_inside_a_handler(url: str) -> None:
    app = make_app(url, max_concurrent_tasks=1)

    @app.handler("times_out_inside")
    async def times_out_inside() -> str:
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(30)
        except TimeoutError:
            return "timed out inside"
        return "not"

    @app.handler("group")
    async def group() -> int:
        async def part(n: int) -> int:
            await asyncio.sleep(0.001)
            return n + current_run().attempt

        async with asyncio.TaskGroup() as tasks:
            parts = [tasks.create_task(part(n)) for n in range(4)]
        return sum(task.result() for task in parts)

    @app.handler("failing_group", retry=RetryPolicy(max_attempts=1))
    async def failing_group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(30))
            raise ValueError("inside the group")

    async with working(app):
        # Capacity 1 and one line: the same runner may serve all of them, one after the other.
        names = ["times_out_inside", "failing_group", "group"] * 3
        handles = await app.enqueue_many([RunSpec(handler=name) for name in names])
        runs = await all_ended(app, handles)
    for run in runs:
        match run.handler:
            case "times_out_inside":
                assert run.result == "timed out inside"
            case "group":
                assert run.result == 10
            case _:
                assert run.status is RunStatus.FAILED
                assert "inside the group" in str(run.error)


async def test_what_one_handler_sets_in_its_context_the_next_does_not_see(url: str) -> None:
    from contextvars import ContextVar

    app = make_app(url, max_concurrent_tasks=1)
    mark: ContextVar[str] = ContextVar("mark", default="clean")

    @app.handler("look")
    async def look() -> str:
        seen = mark.get()
        mark.set("dirty")
        return seen

    @app.handler("look_sync")
    def look_sync() -> str:
        seen = mark.get()
        mark.set("dirty")
        return seen

    async with working(app):
        specs = [RunSpec(handler=name) for name in ("look", "look_sync") * 20]
        runs = await all_ended(app, await app.enqueue_many(specs))
    assert {run.result for run in runs} == {"clean"}


async def test_current_run_in_handler_subtask_and_thread(url: str) -> None:
    app = make_app(url, max_concurrent_tasks=4)

    @app.handler("everywhere")
    async def everywhere() -> list[int]:
        async def sub() -> int:
            await asyncio.sleep(0.001)
            return current_run().run_id

        inside = current_run().run_id
        task = await asyncio.create_task(sub())
        thread = await asyncio.to_thread(lambda: current_run().run_id)
        return [inside, task, thread]

    @app.handler("in_thread")
    def in_thread() -> list[int]:
        return [current_run().run_id]

    async with working(app):
        specs = [RunSpec(handler=name) for name in ("everywhere", "in_thread") * 10]
        runs = await all_ended(app, await app.enqueue_many(specs))
    for run in runs:
        assert set(run.result) == {run.id}
    with pytest.raises(RuntimeError, match="no run here"):
        current_run()


@pytest.mark.heavy
async def test_runs_that_never_suspend_do_not_starve_the_heartbeat(database_url: str) -> None:
    app, journal = make_app(database_url, lease_ttl=3.0, heartbeat_interval_seconds=0.3), Journal()

    @app.handler("busy")
    async def busy() -> None:
        journal.start()
        until_then = time.perf_counter() + 0.002
        while time.perf_counter() < until_then:
            pass

    async with working(app) as worker:
        session = worker.session
        handles = await app.enqueue_many([RunSpec(handler="busy")] * 2000)
        runs = await all_ended(app, handles, 60)
        assert worker.session == session, "the lease was kept all the time"
    assert {(run.status, run.attempt) for run in runs} == {(RunStatus.SUCCEEDED, 1)}
    assert len(journal.starts()) == 2000


async def test_claims_only_what_it_has(database_url: str) -> None:
    app = make_app(database_url, queues=["default", "mine"], region="north")

    @app.handler("known")
    async def known() -> None:
        pass

    async with working(app):
        spec = {"handler": "known"}
        foreign = await app.enqueue_many(
            [
                RunSpec(handler="unknown"),
                RunSpec(**spec, queue="theirs"),
                RunSpec(**spec, region="south"),
            ],
            allow_unknown=True,
        )
        ours = await app.enqueue_many(
            [RunSpec(**spec), RunSpec(**spec, queue="mine"), RunSpec(**spec, region="north")]
        )
        await all_ended(app, ours)
        # A later one of each known lane: had the foreign ones been claimable, they came first.
        await all_ended(app, await app.enqueue_many([RunSpec(**spec)] * 5))
        left = [await app.store.runs.run(handle.id) for handle in foreign]
    assert [(run.status, run.attempt) for run in left] == [(RunStatus.PENDING, 0)] * 3


async def test_finds_a_new_lane_quickly(database_url: str) -> None:
    """Created by another process: this one learns of it by asking, or by a notification."""
    app, other = make_app(database_url, poll_interval=0.1), make_app(database_url)
    for one in (app, other):

        @one.handler("known")
        async def known() -> None:
            pass

    async with working(app), other:
        await (await other.enqueue("known")).result(10)
        for queue in ("q1", "q2", "q3"):
            began = time.monotonic()
            await (await other.enqueue("known", queue=queue)).result(10)
            assert time.monotonic() - began < 2.5


class Sudden(BaseException):
    """Neither an Exception nor one that asyncio knows."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, Sudden])
@pytest.mark.parametrize("shape", ["inline", "with_options", "sync"])
async def test_no_handler_can_kill_the_worker(url: str, error: type[BaseException], shape: str) -> None:
    app = make_app(url, max_concurrent_tasks=2)

    if shape == "sync":

        @app.handler("deadly", retry=RetryPolicy(max_attempts=1))
        def deadly() -> None:
            raise error("on purpose")
    else:

        @app.handler("deadly", retry=RetryPolicy(max_attempts=1))
        async def deadly_async() -> None:
            raise error("on purpose")

    @app.handler("fine")
    async def fine() -> str:
        return "fine"

    timeout = 60.0 if shape == "with_options" else None
    async with working(app):
        victim = await app.enqueue("deadly", timeout=timeout)
        others = await app.enqueue_many([RunSpec(handler="fine")] * 5)
        runs = await all_ended(app, others)
        run = await victim.wait(10)
    assert {run.result for run in runs} == {"fine"}
    assert run.status is RunStatus.FAILED
    assert error.__name__ in str(run.error)


async def test_a_cancel_left_behind_by_a_handler_strands_no_other_run(url: str) -> None:
    """A home-made timer that outlives its handler hits the runner while it serves someone else."""
    app, journal = make_app(url, max_concurrent_tasks=1), Journal()

    @app.handler("careless")
    async def careless() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.2, task.cancel)

    @app.handler("innocent", retry=QUICK)
    async def innocent() -> None:
        journal.start()
        await asyncio.sleep(0.5)
        journal.end()

    async with working(app) as worker:
        worker.couriers.pace = FixedPace(5)
        handles = await app.enqueue_many([RunSpec(handler="careless"), RunSpec(handler="innocent")])
        runs = await all_ended(app, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice
    assert journal.of(handles[1], "end")


async def test_a_busy_worker_does_not_spin(url: str) -> None:
    """Full with one long run while more is waiting: nothing to do but to wait."""
    app = make_app(url, max_concurrent_tasks=1, poll_interval=0.5)
    begun, let_go = asyncio.Event(), asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        begun.set()
        await let_go.wait()

    async with working(app) as worker:
        handles = await app.enqueue_many([RunSpec(handler="long")] * 20)
        await begun.wait()
        rests = 0
        rest = worker.couriers.rest

        async def counted() -> None:
            nonlocal rests
            rests += 1
            await rest()

        worker.couriers.rest = counted  # type: ignore[method-assign]
        await until(lambda: True)
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 1)
        let_go.set()
        await all_ended(app, handles)
    assert rests < 100, f"{rests} rests in a second"
