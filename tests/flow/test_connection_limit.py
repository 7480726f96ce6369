"""`database.max_connections` is the most that a process holds, all counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee import Fusee
from fusee.config import load
from fusee.engine.model.run import RunSpec
from fusee.errors import ConfigError
from tests.chaos.inside import all_ended, working
from tests.chaos.silence import proxied


@pytest.mark.parametrize("limit", [3, 5])
@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_a_process_holds_no_more_connections_than_it_may(
    engine: str, limit: int, request: pytest.FixtureRequest
) -> None:
    """Worker, dispatcher and callers in one process, all busy at once."""
    async with proxied(request.getfixturevalue(f"{engine}_url")) as (proxy, url):
        settings: dict[str, Any] = {
            "database": {"url": url, "max_connections": limit},
            "worker": {"poll_interval": 0.05},
            "dispatcher": {"schedule_interval_seconds": 0.05, "recover_interval": 0.05},
        }
        app = Fusee(config=load(env={}, overrides=settings))

        @app.handler("work")
        async def work() -> None: ...

        async with working(app):
            asked = (app.enqueue_many([RunSpec(handler="work")] * 50) for _ in range(10))
            handles = [handle for some in await asyncio.gather(*asked) for handle in some]
            pings = (app.store.ping() for _ in range(30))
            await asyncio.gather(all_ended(app, handles, 60), *pings)
            await asyncio.sleep(0.3)  # the proxy counts a moment after each connect
            assert 1 < proxy.peak <= limit


@pytest.mark.parametrize("limit", [1, 2])
def test_fewer_than_it_needs_are_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match="max_connections"):
        load(env={}, overrides={"database": {"max_connections": limit}})
