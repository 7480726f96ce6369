"""At default settings, all parts in one process are back at work within 30 s of a silent death of every
connection to the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from fusee import Fusee, RetryPolicy
from fusee.config import load
from fusee.engine.model.states import RunStatus
from fusee.events import SessionExpired
from fusee.surfaces.rest.serving import ApiServer
from fusee.tasks.store.history import FireFilter
from tests.chaos.inside import Journal, Seen, all_ended, until
from tests.chaos.silence import proxied

pytestmark = pytest.mark.chaos

BACK = 30.0
LONG = 50.0


async def stopped(parts: Sequence[Any], tasks: Sequence[asyncio.Task[Any]]) -> None:
    for part in parts:
        part.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_everything_is_back_within_30_seconds(engine: str, request: pytest.FixtureRequest) -> None:
    direct: str = request.getfixturevalue(f"{engine}_url")
    journal, let_go = Journal(), asyncio.Event()
    async with proxied(direct) as (proxy, url):
        overrides: dict[str, Any] = {"database": {"url": url}, "api": {"bind_address": "127.0.0.1:0"}}
        app = Fusee(config=load(env={}, overrides=overrides))
        outside = Fusee(config=load(env={}, overrides={"database": {"url": direct}}))
        seen = Seen(app.bus, SessionExpired)

        @app.handler("hang", retry=RetryPolicy(max_attempts=1))
        async def hang() -> None:
            journal.start()
            await let_go.wait()

        @app.handler("work")
        async def work() -> None:
            journal.start()

        async with app, outside, AsyncExitStack() as stack:
            server = ApiServer(app.api())
            worker = app.worker()
            parts: list[Any] = [server, app.dispatcher(), worker]
            tasks = [asyncio.create_task(part.run()) for part in parts]
            stack.push_async_callback(stopped, parts, tasks)
            await asyncio.wait_for(asyncio.gather(server.started.wait(), worker.started.wait()), 30)
            await outside.tasks.create({"name": "tick", "handler": "work", "every": 1}, allow_unknown=True)
            held = await outside.enqueue("hang")
            await until(lambda: journal.started(held), 30)
            async with aiohttp.ClientSession(server.url) as client:
                # Busy in every part, so that the silence meets statements under way.
                for _ in range(20):
                    async with client.post("/api/v1/runs", json={"handler": "work"}) as answer:
                        assert answer.status == 201
                assert proxy.go_silent() >= 4
                began = time.monotonic()
                wall = await outside.store.database.read(outside.store.database.read_clock)

                async def accepted() -> bool:
                    async with client.post("/api/v1/runs", json={"handler": "work"}) as answer:
                        return answer.status == 201

                async def fired() -> bool:
                    fires = await outside.tasks.fires("tick", FireFilter(since=wall, limit=1))
                    return bool(fires)

                async def timed(what: str, done: Any) -> tuple[str, float]:
                    await done
                    return what, time.monotonic() - began

                taken = await asyncio.gather(
                    timed("the API", until(accepted, 120)),
                    timed("a fire", until(fired, 120)),
                    timed("a run", all_ended(outside, [await outside.enqueue("work")], 120)),
                    timed("a delayed run", all_ended(outside, [await outside.enqueue("work", delay=1)], 120)),
                    timed(
                        "a new queue", all_ended(outside, [await outside.enqueue("work", queue="new")], 120)
                    ),
                )
            let_go.set()
            (run,) = await all_ended(outside, [held], 60)
    assert run.status is RunStatus.SUCCEEDED and not seen.events
    assert max(seconds for _, seconds in taken) < BACK, taken
