"""Timeouts, cancels and handlers that will not stop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from fusee import RetryPolicy, current_run
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.events import RunCancelRequested, RunStuck
from tests.chaos.inside import FixedPace, Journal, Seen, make_app, until, working

QUICK = RetryPolicy(max_attempts=3, backoff="fixed", base=0.01, jitter=0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fusee.db"


async def test_after_a_timeout_the_next_attempt_waits_for_the_first_to_end(database_url: str) -> None:
    app, journal = make_app(database_url, grace=5), Journal()

    @app.handler("slow", timeout=0.2, retry=QUICK)
    async def slow() -> str:
        journal.start()
        try:
            if current_run().attempt == 1:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            journal.write("told")
            await asyncio.sleep(0.4)  # cleaning up, within its grace
            raise
        finally:
            journal.end()
        return "second"

    async with working(app):
        handle = await app.enqueue("slow")
        assert await handle.result(20) == "second"
        kept = await app.store.runs.attempts(handle.id)
    assert [(line.attempt, line.what) for line in journal.of(handle)] == [
        (1, "start"),
        (1, "told"),
        (1, "end"),
        (2, "start"),
        (2, "end"),
    ]
    start, told, end, again, _ = journal.of(handle)
    assert 0.2 <= told.at - start.at < 2
    assert again.at > end.at
    assert [(a.end, a.effect) for a in kept] == [(End.TIMED_OUT, Effect.UNKNOWN)]


async def test_a_handler_that_swallows_its_cancel_is_stuck_and_gets_no_second_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.engine.worker.pool.STUCK_AFTER", 0.3)
    app, journal = make_app(url, max_concurrent_tasks=2), Journal()
    seen = Seen(app.bus, RunStuck)
    let_go = asyncio.Event()

    @app.handler("deaf", timeout=0.1, retry=QUICK)
    async def deaf() -> str:
        journal.start()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                journal.write("told")
        journal.end()
        return "too late"

    @app.handler("fine")
    async def fine() -> str:
        return "fine"

    async with working(app) as worker:
        handle = await app.enqueue("deaf")
        run = await handle.wait(20)
        assert run.status is RunStatus.TIMED_OUT
        assert run.effect is Effect.UNKNOWN
        assert "still running" in str(run.error)
        assert [(e.run_id, e.attempt) for e in seen.of(RunStuck)] == [(run.id, 1)]
        assert worker.pool.busy == 1, "its place stays taken"
        assert await (await app.enqueue("fine")).result(10) == "fine"
        assert len(journal.starts()) == 1, "no attempt beside it"
        let_go.set()
        await until(lambda: journal.of(handle, "end"))
        await until(lambda: worker.pool.busy == 0)
        again = await app.store.runs.run(run.id)
    assert (again.status, again.result, again.attempt) == (RunStatus.TIMED_OUT, None, 1)
    assert len(journal.starts()) == 1


async def test_a_timeout_kills_the_whole_process_group(url: str, tmp_path: Path) -> None:
    app = make_app(url, grace=0.2)
    script = (
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 600 & echo $! >> pids; wait' & "
        "echo $$ >> pids; wait; wait"
    )
    async with working(app):
        handle = await app.enqueue(
            "shell",
            {"argv": ["sh", "-c", script], "cwd": str(tmp_path)},
            executor="shell",
            timeout=1.0,
            retry=RetryPolicy(max_attempts=1),
        )
        pids = tmp_path / "pids"
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        family = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        run = await handle.wait(20)
        assert run.status is RunStatus.TIMED_OUT
        assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def test_a_running_run_is_told_of_its_cancel_within_two_seconds(database_url: str) -> None:
    """Canceled from another process: the worker hears of it from the database alone."""
    app, elsewhere, journal = make_app(database_url), make_app(database_url), Journal()

    @app.handler("long", retry=QUICK)
    async def long() -> None:
        journal.start()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            journal.write("told")
            raise

    async with working(app), elsewhere:
        handle = await app.enqueue("long")
        await until(lambda: journal.started(handle))
        asked = time.monotonic()
        await elsewhere.runs.cancel(handle.id, "enough")
        run = await handle.wait(10)
    assert run.status is RunStatus.CANCELED
    assert run.effect is Effect.UNKNOWN
    (told,) = journal.of(handle, "told")
    assert told.at - asked < 2
    assert len(journal.starts()) == 1


async def test_a_cancel_waits_for_no_worker_when_nothing_has_started(url: str) -> None:
    app, journal = make_app(url), Journal()

    @app.handler("work")
    async def work() -> None:
        journal.start()

    async with working(app):
        handle = await app.enqueue("work", delay=0.5)
        answer = await handle.cancel()
        assert answer.canceled
        await (await app.enqueue("work", delay=0.6)).result(10)
    assert not journal.started(handle)
    assert (answer.run.status, answer.run.effect) == (RunStatus.CANCELED, Effect.NONE)


async def test_a_retry_does_not_follow_a_cancel(url: str) -> None:
    """It fails by itself after the cancel was asked for, before the worker heard of it."""
    app, journal = make_app(url), Journal()
    fail = asyncio.Event()

    @app.handler("fails", retry=QUICK)
    async def fails() -> None:
        journal.start()
        await fail.wait()
        raise ValueError("by itself")

    async with working(app):

        async def deaf(*_: object) -> list[tuple[int, int]]:
            return []

        app.store.runs.cancel_requests = deaf  # type: ignore[method-assign]
        handle = await app.enqueue("fails")
        await until(lambda: journal.started(handle))
        await app.store.runs.cancel(handle.id, "enough")
        fail.set()
        run = await handle.wait(10)
    assert run.status is RunStatus.CANCELED
    assert len(journal.starts()) == 1


async def test_a_cancel_reaches_a_run_that_its_worker_holds_and_has_not_started(database_url: str) -> None:
    """At once, not when it would have been handed back; and it does not start when there is room."""
    app, journal = make_app(database_url, max_concurrent_tasks=1), Journal()
    let_go = asyncio.Event()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await let_go.wait()

    async with working(app) as worker:
        worker.couriers.pace = FixedPace(10)
        told = Seen(app.bus, RunCancelRequested)
        # Holds what it claimed for as long as the test needs: nothing is handed back for its age.
        worker.pool.hand_back_stale = lambda now: 0  # type: ignore[method-assign]
        first, second = await app.enqueue_many([RunSpec(handler="work", priority=1), RunSpec(handler="work")])
        try:
            await until(lambda: worker.pool.busy == 1 and len(worker.pool.ready) == 1)
            await app.store.runs.cancel(second.id, "changed my mind")
            await until(lambda: [event.run_id for event in told.of(RunCancelRequested)] == [second.id], 5)
            run = await second.wait(10)
            assert (run.status, run.effect) == (RunStatus.CANCELED, Effect.NONE)
            assert worker.pool.busy == 1, "the first one is still there: nobody had to make room"
        finally:
            let_go.set()
        await first.wait(10)
    assert [line.run for line in journal.starts()] == [first.id]
