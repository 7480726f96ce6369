"""CANCEL_PREV and a handler that does not stop: the new run starts when the old one has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fusee.engine.worker import pool
from fusee.events import RunStuck
from tests.chaos.inside import make_app, until


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_the_new_run_does_not_start_beside_a_handler_that_swallows_its_cancellation(
    database_url: str, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "STUCK_AFTER", 0.1)
    app = make_app(database_url, grace=0.1, dispatcher={"schedule_interval_seconds": 0.05})
    going: list[int] = []
    most: list[int] = []
    let_go = threading.Event()
    stuck = asyncio.Event()
    app.bus.subscribe(RunStuck, lambda _: stuck.set())

    def begin() -> None:
        going.append(1)
        most.append(len(going))

    if isolation == "async":

        @app.handler("deaf")
        async def deaf() -> None:
            begin()
            while not let_go.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass
            going.pop()
            raise RuntimeError("half done")
    else:

        @app.handler("deaf")
        def deaf() -> None:
            begin()
            while not let_go.is_set():
                try:
                    let_go.wait(0.01)
                except BaseException:
                    pass
            going.pop()
            raise RuntimeError("half done")

    async with app.running():
        task = {"name": "t", "handler": "deaf", "retry": {"max_attempts": 1}, "overlap_action": "CANCEL_PREV"}
        await app.tasks.create(task)
        first = (await app.tasks.trigger("t")).run_ids[0]
        await until(lambda: len(going) == 1)
        second = (await app.tasks.trigger("t")).run_ids[0]
        await asyncio.wait_for(stuck.wait(), 30)
        try:
            # The worker has seen that it does not stop, and looks at it still; so does a dispatcher.
            for _ in range(20):
                await app.store.aggregation.aggregate()
                await asyncio.sleep(0.02)
            assert (await app.store.runs.run(first)).status == "running"
            assert (await app.store.runs.run(second)).status == "blocked"
        finally:
            let_go.set()
        await until(_has(app, first, "canceled"), 30, "the old run to end")
        await until(_has(app, second, "failed"), 30, "the new run to run")
    assert max(most) == 1, "never side by side"
    assert len(most) == 2


def _has(app: Any, run_id: int, status: str) -> Callable[[], Any]:
    async def look() -> bool:
        return bool((await app.store.runs.run(run_id)).status == status)

    return look
