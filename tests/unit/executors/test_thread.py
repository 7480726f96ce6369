"""Sync handlers in threads: stopping, not being stoppable, and never losing a slot."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.context import RunContext, current_run
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.handlers import Handler
from fusee.executors.python import thread as thread_module
from fusee.executors.python.thread import ThreadExecutor


@pytest.fixture
async def threads() -> AsyncIterator[ThreadExecutor]:
    executor = ThreadExecutor(2)
    yield executor
    await executor.close()


async def test_a_handler_gets_its_payload_and_its_run(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    def work(x: int, run: RunContext) -> dict[str, object]:
        assert current_run() is run
        return {"x": x, "run": run.run_id, "daemon": threading.current_thread().daemon}

    ended = await threads.call(job(x=1), handler(work))
    assert (ended.end, ended.result) == (End.SUCCEEDED, '{"x":1,"run":7,"daemon":true}')


async def test_errors_are_ends(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    def fail() -> None:
        raise SystemExit(3)

    ended = await threads.call(job(), handler(fail))
    assert (ended.end, (ended.error or "").splitlines()[0]) == (End.FAILED, "SystemExit: 3")
    assert (await threads.call(job(y=1), handler(fail))).end is End.ABANDONED


async def test_threads_are_reused_and_limited(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    names = set()
    busy, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        names.add(threading.current_thread().name)
        with lock:
            busy -= 1

    await asyncio.gather(*(threads.call(job(), handler(work)) for _ in range(50)))
    assert len(names) <= 2
    assert most <= 2


async def test_the_callers_context_is_seen(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    trace.set("abc")
    assert (await threads.call(job(), handler(lambda: trace.get()))).result == '"abc"'


async def test_told_to_stop_it_stops_and_what_it_did_is_known(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    started = threading.Event()

    def patient() -> str:
        started.set()
        while not current_run().stopping:
            time.sleep(0.001)
        return "clean"

    this = job()
    task = asyncio.create_task(threads.call(this, handler(patient)))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert this.effect is Effect.APPLIED
    assert threads.stuck == 0


@pytest.mark.parametrize("grace", [0.0, 0.05])
async def test_one_that_does_not_listen_is_interrupted(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler], grace: float
) -> None:
    started, cleaned = threading.Event(), threading.Event()

    def deaf() -> None:
        started.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            cleaned.set()

    this = job(grace=grace)
    task = asyncio.create_task(threads.call(this, handler(deaf)))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()
    assert this.effect is Effect.UNKNOWN
    assert (await threads.call(job(), handler(lambda: 1))).result == "1"


async def test_cancelled_again_it_does_not_wait_for_the_grace(
    threads: ThreadExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    started = threading.Event()

    def deaf() -> None:
        started.set()
        while True:
            time.sleep(0.001)

    this = job(grace=60)
    task = asyncio.create_task(threads.call(this, handler(deaf)))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    assert this.stop.is_set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 5)


async def test_what_cannot_be_stopped_is_said_and_costs_no_slot(
    job: Callable[..., Job],
    handler: Callable[..., Handler],
    until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_module, "LAST_WAIT", 0.1)
    executor = ThreadExecutor(1)
    started = threading.Event()

    def stone() -> None:
        started.set()
        time.sleep(1)  # one call into C: no exception arrives before it ends

    task = asyncio.create_task(executor.call(job(grace=0.05), handler(stone)))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(Unstoppable, match="isolation='process'"):
        await task
    assert executor.stuck == 1
    assert (await executor.call(job(), handler(lambda: "still serving"))).end is End.SUCCEEDED
    await until(lambda: executor.stuck == 0)
    await executor.close()


async def test_one_that_swallows_everything_is_unstoppable_too(
    job: Callable[..., Job],
    handler: Callable[..., Handler],
    until: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_module, "LAST_WAIT", 0.1)
    executor = ThreadExecutor(1)
    started, enough = threading.Event(), threading.Event()

    def stubborn() -> None:
        while not enough.is_set():
            try:
                started.set()
                time.sleep(0.001)
            except BaseException:
                pass

    task = asyncio.create_task(executor.call(job(grace=0), handler(stubborn)))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(Unstoppable):
        await task
    assert executor.stuck == 1
    enough.set()
    await until(lambda: executor.stuck == 0)
    await executor.close()


async def test_cancelled_in_the_queue_it_never_starts(
    job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    executor = ThreadExecutor(1)
    started, release, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        started.set()
        release.wait(5)

    one = asyncio.create_task(executor.call(job(), handler(first)))
    await asyncio.to_thread(started.wait, 5)
    waiting = job()
    two = asyncio.create_task(executor.call(waiting, handler(lambda: ran.append(1))))
    await asyncio.sleep(0)
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    assert waiting.effect is Effect.NONE
    release.set()
    assert (await one).end is End.SUCCEEDED
    assert (await executor.call(job(), handler(lambda: 2))).result == "2"
    assert ran == []
    await executor.close()


async def test_stopping_never_hits_a_neighbour(
    job: Callable[..., Job], handler: Callable[..., Handler]
) -> None:
    """Calls that end at the very moment they are interrupted, over and over, beside ones that must not be."""
    executor = ThreadExecutor(2)

    def brief() -> None:
        time.sleep(0.0005)

    async def harass(times: int) -> None:
        for at in range(times):
            task = asyncio.create_task(executor.call(job(grace=0), handler(brief)))
            await asyncio.sleep(0.0003 + 0.0001 * (at % 6))
            task.cancel()
            await asyncio.wait({task})

    async def innocent(times: int) -> None:
        for _ in range(times):
            ended = await executor.call(job(), handler(brief))
            assert ended.end is End.SUCCEEDED

    await asyncio.wait_for(asyncio.gather(harass(150), innocent(150)), 20)
    assert executor.stuck == 0
    await executor.close()
