"""A dispatcher or worker with `status.bind_address`: its health and metrics, until the last run has ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fusee import Fusee
from fusee.app.cli.node import Node, Parts, Started
from fusee.config import load
from fusee.engine.model.session import WorkerInfo
from fusee.errors import ConfigError


def app_on(path: Path, bind: str) -> Fusee:
    database = {"url": f"sqlite:///{path}/fusee.db"}
    return Fusee(config=load(env={}, overrides={"database": database, "status": {"bind_address": bind}}))


@asynccontextmanager
async def running(app: Fusee, parts: Parts) -> AsyncIterator[tuple[Node, Started]]:
    told: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
    node = Node(app, parts, told.set_result)
    task = asyncio.create_task(node.run())
    try:
        await asyncio.wait({told, task}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if task.done():
            await task
        yield node, told.result()
    finally:
        node.stop()
        await asyncio.wait({task}, timeout=30)
    await task


async def get(url: str, key: str | None = None) -> tuple[int, str]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("parts", [Parts(dispatcher=True), Parts(worker=True)], ids=["dispatcher", "worker"])
async def test_a_process_without_the_api_tells_how_it_is(tmp_path: Path, parts: Parts) -> None:
    async with running(app_on(tmp_path, "127.0.0.1:0"), parts) as (_, started):
        assert started.status is not None and started.address is None
        assert (await get(started.status + "/healthz"))[0] == 200
        assert (await get(started.status + "/readyz"))[0] == 200
        status, text = await get(started.status + "/metrics")
        assert status == 200 and f"fusee_workers {int(parts.worker)}.0" in text


async def test_it_serves_nothing_of_the_api(tmp_path: Path) -> None:
    async with running(app_on(tmp_path, "127.0.0.1:0"), Parts(worker=True)) as (_, started):
        assert (await get(f"{started.status}/api/v1/runs"))[0] == 404


async def test_its_counts_are_of_its_own_work(tmp_path: Path) -> None:
    app = app_on(tmp_path, "127.0.0.1:0")

    @app.handler()
    async def greet() -> str:
        return "hello"

    async with running(app, Parts(worker=True)) as (_, started):
        assert await (await app.enqueue("greet")).result() == "hello"
        _, text = await get(f"{started.status}/metrics")
        assert 'fusee_runs_finished_total{handler="greet",status="succeeded"} 1.0' in text


async def test_while_it_drains_it_is_alive_and_not_ready(tmp_path: Path) -> None:
    app = app_on(tmp_path, "127.0.0.1:0")
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.handler()
    async def hold() -> None:
        begun.set()
        await may_end.wait()

    async with running(app, Parts(worker=True)) as (node, started):
        await app.enqueue("hold")
        await begun.wait()
        node.stop()
        assert (await get(f"{started.status}/healthz"))[0] == 200
        status, text = await get(f"{started.status}/readyz")
        assert status == 503 and "shutting down" in text
        may_end.set()


async def test_open_to_others_the_metrics_need_a_key_and_health_does_not(tmp_path: Path) -> None:
    app = app_on(tmp_path, "0.0.0.0:0")
    async with running(app, Parts(dispatcher=True)) as (_, started):
        assert started.status is not None
        port = started.status.rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        assert (await get(f"{url}/readyz"))[0] == 200
        assert (await get(f"{url}/metrics"))[0] == 401
        _, key = await app.keys.create("prometheus", role="viewer")
        assert (await get(f"{url}/metrics", key))[0] == 200


async def test_the_api_answers_for_itself(tmp_path: Path) -> None:
    app = app_on(tmp_path, "127.0.0.1:0")
    app.config = load(
        env={},
        overrides={**app.config.model_dump(exclude_unset=True), "api": {"bind_address": "127.0.0.1:0"}},
    )
    async with running(app, Parts(api=True, dispatcher=True)) as (_, started):
        assert started.status is None and started.address is not None
        assert (await get(f"{started.address}/metrics"))[0] == 200


async def test_a_port_in_use_is_told_by_its_setting(tmp_path: Path) -> None:
    listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        with pytest.raises(ConfigError, match=r"status\.bind_address"):
            async with running(app_on(tmp_path, f"127.0.0.1:{port}"), Parts(dispatcher=True)):
                pass


@pytest.mark.heavy
async def test_losses_are_the_same_wherever_they_are_scraped(database_url: str, tmp_path: Path) -> None:
    """A dispatcher and a server in processes of their own; the dispatcher finds two dead workers."""
    app = Fusee(config=load(env={}, overrides={"database": {"url": database_url}}))
    info = WorkerInfo(
        name="doomed",
        host="here",
        pid=1,
        version="1.0",
        capacity=1,
        executors=("python",),
        handlers=("work",),
        queues=("*",),
    )
    async with app:
        for _ in range(2):
            await app.store.sessions.open_session(info, 0.001)
        async with (
            process(tmp_path, database_url, "server", "--bind", "127.0.0.1:0") as server,
            process(tmp_path, database_url, "dispatcher") as dispatcher,
        ):
            for address in (server["address"], dispatcher["status"]):
                await scraped(address, "fusee_sessions_lost_total 2.0")
        async with process(tmp_path, database_url, "server", "--bind", "127.0.0.1:0") as server:
            # Nor does it begin again with a new process.
            await scraped(server["address"], "fusee_sessions_lost_total 2.0")


async def scraped(address: str, line: str) -> None:
    """Until the metrics of that process say so; it samples the database every five seconds."""
    for _ in range(300):
        text = (await get(f"{address}/metrics"))[1]
        if line in text:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(text)


@asynccontextmanager
async def process(folder: Path, database: str, *words: str) -> AsyncIterator[dict[str, Any]]:
    """A role of the platform in a process of its own, and what it said when it had started."""
    command = [sys.executable, "-c", "from fusee.app.cli import main; main()", *words, "--json"]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FUSEE_")}
    kept |= {"FUSEE_DATABASE__URL": database, "FUSEE_STATUS__BIND_ADDRESS": "127.0.0.1:0"}
    child = await asyncio.create_subprocess_exec(*command, cwd=folder, env=kept, stdout=PIPE, stderr=PIPE)
    try:
        assert child.stdout is not None
        line = await child.stdout.readline()
        assert line, (await child.communicate())[1].decode()
        yield json.loads(line)
    finally:
        child.kill()
        await child.communicate()
