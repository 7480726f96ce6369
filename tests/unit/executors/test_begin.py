"""An attempt that begins late asks first: right before it has an effect, whatever kind of executor it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handlers
from fusee.executors.http.executor import HttpExecutor
from fusee.executors.python.executor import PythonExecutor
from fusee.executors.shell import ShellExecutor

KINDS = ["http", "process", "shell", "thread"]


def touch(path: str) -> None:
    Path(path).touch()


@dataclass
class Begun:
    """An executor, and a job whose only effect is that `path` exists."""

    execute: Callable[[Job], Any]
    job: Job
    path: Path


@pytest.fixture(params=KINDS)
async def late(
    request: pytest.FixtureRequest, tmp_path: Path, job: Callable[..., Job]
) -> AsyncIterator[Begun]:
    path = tmp_path / "effect"
    handlers = Handlers()
    handlers.register("thread", touch, isolation="thread")
    handlers.register("process", touch, isolation="process")

    async def handle(_request: web.Request) -> web.Response:
        path.touch()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    executor: Any
    match request.param:
        case "http":
            executor = HttpExecutor(allow_private=["127.0.0.0/8"])
            made = job(url=f"http://127.0.0.1:{runner.addresses[0][1]}/")
        case "shell":
            executor, made = ShellExecutor(enabled=True), job(argv=["touch", str(path)])
        case kind:
            executor, made = PythonExecutor(handlers), job(path=str(path))
            made.handler = kind
    made.start_by = 0.0
    yield Begun(executor.execute, made, path)
    await executor.close()
    await runner.cleanup()


async def test_a_late_attempt_that_is_not_confirmed_has_no_effect(late: Begun) -> None:
    asked = asyncio.Event()

    async def confirm(_job: Job) -> None:
        asked.set()
        await asyncio.Event().wait()

    late.job.confirm = confirm
    running = asyncio.ensure_future(late.execute(late.job))
    async with asyncio.timeout(20):
        await asked.wait()
    assert late.job.effect is Effect.NONE
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert late.job.effect is Effect.NONE
    assert not late.path.exists()


async def test_a_late_attempt_that_is_confirmed_runs(late: Begun) -> None:
    asked: list[bool] = []

    async def confirm(job: Job) -> None:
        asked.append(late.path.exists())
        # The first permission is over before it can be used: it asks again.
        job.start_by = inf if len(asked) > 1 else time.monotonic() - 1

    late.job.confirm = confirm
    ended: Ended = await late.execute(late.job)
    assert ended.end is End.SUCCEEDED, ended.error
    assert asked == [False, False]
    assert late.path.exists()


async def test_an_attempt_in_time_asks_nobody(late: Begun) -> None:
    late.job.start_by = inf
    ended: Ended = await late.execute(late.job)
    assert ended.end is End.SUCCEEDED, ended.error
    assert late.path.exists()
