"""Every Python block of README and docs is run, page by page, at default settings.

The blocks of a page share their names, as a reader who follows the page has them. What a page takes as given
is in `BEFORE`, by how the block begins. Tasks that a page declares are created and fired, and its `main` is
run. A block that is not ours says so in its fence: ```` ```python not-run: another project ````. Those marked
```` ```python runs ```` are whole programs, and are run by the tests of the docs.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import socket
import types
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from fusee import Fusee
from fusee.bulk.model.job import BulkStatus
from tests.flow.test_pages_run import PAGES, Block, blocks

ELSEWHERE = {"postgresql://fusee@db.internal/fusee": "sqlite:///fusee.db"}
"""Addresses of pages that nobody has."""
REASONS = {"not-run: another project"}
WITHIN = "async with engine.begin() as connection:"
"""Needs an async driver: run on PostgreSQL, below."""
BEFORE = {
    "from fusee import QueueLimits": """
await app.open()
await app.enqueue_each("sync_stock", [{"shop": "open"}] * 41)
await app.enqueue("charge", {"order": 7}, delay=3600)
""",
    "@app.task(every=": "from fusee import Fusee\napp = Fusee()",
    "from fusee import current_run\n\n\n@app.task": """
from types import SimpleNamespace
from fusee import Fusee
app, seen = Fusee(), []
async def customers(): return [SimpleNamespace(id=id) for id in range(20)]
async def reindex_one(customer): seen.append(customer.id)
""",
    "from fusee import ApiServer": "from fusee import Fusee\napp = Fusee()",
    "task = await app.tasks.create": """
@app.handler()
async def poll(full: bool = False) -> None: ...
platform = app.running()
await platform.__aenter__()
""",
}


def python(page: str) -> list[Block]:
    return [block for block in blocks(page, "python") if "runs" not in block.marks.split()]


PYTHON = {page: found for page in PAGES if (found := python(page))}


def test_few_python_blocks_are_not_run() -> None:
    marked = [block.marks for found in PYTHON.values() for block in found if block.marks]
    assert set(marked) <= REASONS
    assert len(marked) <= 2


class Reader:
    """Runs one block after the other."""

    def __init__(self, runner: asyncio.Runner, **given: Any) -> None:
        self.runner = runner
        self.names: dict[str, Any] = {"__name__": "page", **given}

    def run(self, code: str, where: str, *beside: Any) -> None:
        for theirs, ours in ELSEWHERE.items():
            code = code.replace(theirs, ours)
        compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        call = types.FunctionType(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            self.wait(call(), *beside)
        else:
            call()

    def wait(self, *work: Any) -> None:
        async def within() -> None:
            async with asyncio.timeout(60):
                await asyncio.gather(*work)

        self.runner.run(within())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("FUSEE_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(page: str) -> None:
    with asyncio.Runner() as runner:
        reader = Reader(runner)
        names, apps = reader.names, dict[int, Fusee]()
        for block in PYTHON[page]:
            if block.marks or block.code.startswith(WITHIN):
                continue
            where = f"{page}:{block.line}"
            names.pop("main", None)
            for begins, before in BEFORE.items():
                if block.code.startswith(begins):
                    reader.run(before, f"before {where}")
            beside = [stop_server(names)] if "await server.run()" in block.code else []
            reader.run(block.code, where, *beside)
            if "main" in names and "asyncio.run(main())" not in block.code:
                reader.wait(names["main"]())
            if isinstance(app := names.get("app"), Fusee):
                apps[id(app)] = app
        for app in apps.values():
            if app.declared:
                reader.wait(fire_all(app))
        CHECKS.get(page, lambda reader: None)(reader)
        if "platform" in names:
            runner.run(names["platform"].__aexit__(None, None, None))
        for app in apps.values():
            while app._opened:
                runner.run(app.close())


async def stop_server(names: dict[str, Any]) -> None:
    while "server" not in names:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    server = names["server"]
    await server.started.wait()
    async with aiohttp.ClientSession() as client, client.get(f"{server.url}/api/v1/runs") as answer:
        assert answer.status == 200
    server.stop()


async def fire_all(app: Fusee) -> None:
    """The tasks that the page declares are good tasks, and their handlers can be called."""
    async with app.running():
        for fields in app.declared:
            fired = await app.tasks.trigger(fields["name"])
            for run_id in fired.run_ids:
                run = await app.runs.wait(run_id, 30)
                assert run.status == "succeeded", (fields["name"], run)


# -- what the page said would happen


def bulk(reader: Reader) -> None:
    async def look() -> None:
        app = reader.names["app"]
        async with app:
            [job] = await app.bulk_jobs.list()
            assert (job.spec.name, job.status, job.rate) == ("newsletter", BulkStatus.RUNNING, 2000)

    reader.wait(look())


def embedding(reader: Reader) -> None:
    async def look() -> None:
        app = reader.names["app"]
        again = (await app.runs.get(43)).run
        assert ((await app.runs.get(42)).run.status, again.origin_id) == ("canceled", 42)
        mail = (await app.queues.get("mail")).limits
        assert (mail.paused, mail.concurrency, mail.rate) == (True, 5, 20)

    reader.wait(look())


def rest(reader: Reader) -> None:
    async def look() -> None:
        server = uvicorn.Server(uvicorn.Config(reader.names["web"], lifespan="on", log_config=None))
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve([listening]))
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
                for path in ("/jobs/api/v1/runs", "/jobs/docs", "/jobs/healthz"):
                    async with client.get(path) as answer:
                        assert answer.status == 200, path
            server.should_exit = True
            await serving

    reader.wait(look())


def sharding(reader: Reader) -> None:
    assert sorted(reader.names["seen"]) == list(range(20)), "each customer once"


def tasks(reader: Reader) -> None:
    async def look() -> None:
        app = reader.names["app"]
        task = await app.tasks.get("poll")
        assert (task.status, task.spec.every, task.reason) == ("paused", 30, "on holiday")

    reader.wait(look())


def workflows(reader: Reader) -> None:
    async def look() -> None:
        app = reader.names["app"]
        async with app:
            [run] = await app.workflows.runs()
            assert (run.status, run.succeeded, run.params) == ("succeeded", 2, {"day": "2026-11-15"})

    reader.wait(look())


CHECKS = {
    "docs/bulk.md": bulk,
    "docs/embedding.md": embedding,
    "docs/policies/sharding.md": sharding,
    "docs/rest.md": rest,
    "docs/tasks.md": tasks,
    "docs/workflows.md": workflows,
}

WITHIN_BLOCKS = [block for found in PYTHON.values() for block in found if block.code.startswith(WITHIN)]


@pytest.mark.parametrize("block", WITHIN_BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_run_is_enqueued_in_the_transaction_of_the_page(block: Block, postgres_url: str) -> None:
    given = """
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import create_async_engine
app = Fusee(url)
await app.open()
engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
orders = Table("orders", MetaData(), Column("id", Integer))
async with engine.begin() as connection:
    await connection.run_sync(orders.metadata.create_all)
"""
    after = """
from fusee import RunFilter
assert [run.handler for run in await app.runs.list(RunFilter())] == ["send_mail"]
await engine.dispose()
await app.close()
"""
    with asyncio.Runner() as runner:
        reader = Reader(runner, Fusee=Fusee, url=postgres_url)
        reader.run(given, "before")
        reader.run(block.code, f"{block.page}:{block.line}")
        reader.run(after, "after")
