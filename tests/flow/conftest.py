"""An app behind a real socket, for the tests of its surfaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from fusee import Fusee
from fusee.api import ApiServer
from fusee.config import load
from fusee.operations import RunFilter


@dataclass
class Served:
    """The app, its address, and a client whose paths are relative to it."""

    app: Fusee
    server: ApiServer
    client: aiohttp.ClientSession
    hanging: asyncio.Event
    """Set when the handler `hang` has begun."""

    @property
    def url(self) -> str:
        return self.server.url

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        """(status, body, headers)."""
        async with self.client.request(method, path, **options) as answer:
            kind = answer.headers.get("Content-Type", "")
            body = await answer.json(content_type=None) if "json" in kind else await answer.text()
            return answer.status, body, answer.headers

    async def count(self) -> int:
        """Runs in the store."""
        return len(await self.app.store.runs(RunFilter(limit=100_000)))


@asynccontextmanager
async def serve(*, working: bool = False, **sections: Any) -> AsyncIterator[Served]:
    """An app on a database in memory, served on a free port; `working` also runs a worker."""
    api = {"bind_address": "127.0.0.1:0", **sections.pop("api", {})}
    hanging = asyncio.Event()
    app = Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}, "api": api, **sections}))

    @app.handler("greet")
    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    @app.handler("fail")
    async def fail() -> None:
        raise RuntimeError("no luck")

    @app.handler("hang")
    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        server = ApiServer(app.api())
        if working:
            await stack.enter_async_context(app.running())
        task = asyncio.create_task(server.run())
        started = asyncio.create_task(server.started.wait())
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            started.cancel()
            task.result()
        client = aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(30))
        try:
            yield Served(app, server, client, hanging)
        finally:
            await client.close()
            server.stop()
            await task


@pytest.fixture(scope="session")
def serving() -> Any:
    """`async with serving(api={...}) as served`, for tests that need their own configuration."""
    return serve


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Open (loopback, no keys), nothing executes."""
    async with serve() as it:
        yield it


@pytest.fixture
async def working() -> AsyncIterator[Served]:
    """Open, with a worker and a dispatcher."""
    async with serve(working=True) as it:
        yield it
