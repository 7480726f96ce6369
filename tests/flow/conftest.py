"""An app behind a real socket, for the tests of its surfaces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from fusee import Fusee
from fusee.app.cli.root import cli as root
from fusee.config import load
from fusee.engine.store.runs import RunFilter
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.rest.serving import ApiServer

pytest.register_assert_rewrite("tests.flow.sdk_platform", "tests.flow.sdk_work")


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
        return len(await self.app.store.runs.runs(RunFilter(limit=100_000)))


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
            async with asyncio.timeout(20):
                while not await app.workers.list():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
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


class Cli:
    """`fusee` in a folder of its own: `cli("task", "list")`."""

    def __init__(self, *shared: str) -> None:
        self.shared = shared

    def __call__(self, *words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(root, [*self.shared, *words], input=stdin)

    def text(self, *words: str, stdin: str | None = None) -> str:
        """What a person reads, when all went well."""
        done = self(*words, stdin=stdin)
        assert done.exit_code == 0, done.output
        return str(done.output)

    def json(self, *words: str, stdin: str | None = None) -> Any:
        """What a program reads, when all went well."""
        done = CliRunner().invoke(root, [*self.shared, "--json", *words], input=stdin)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def refused(self, *words: str, code: Exit = Exit.REFUSED, stdin: str | None = None) -> str:
        """The message, when it did not; the same for people and for programs."""
        told = CliRunner().invoke(root, [*self.shared, "--json", *words], input=stdin)
        assert told.exit_code == code, told.output
        assert told.stdout == ""
        error = json.loads(told.stderr)["error"]
        assert error["exit"] == code
        shown = self(*words, stdin=stdin)
        assert shown.exit_code == code and "Traceback" not in shown.stderr
        return str(error["message"])


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli()


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
