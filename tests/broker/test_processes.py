"""The real programs: a dispatcher with the database, a worker that has none, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner

from fusee import Fusee
from fusee.app.cli.root import cli
from fusee.config import load
from tests.chaos.inside import until
from tools import servers

JOBS = """
import os
from fusee import Fusee
app = Fusee()

@app.handler("where")
async def where() -> dict:
    return {"pid": os.getpid(), "database": os.path.exists("fusee.db")}
"""


@contextmanager
def program(folder: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    folder.mkdir(exist_ok=True)
    (folder / "brokerjobs.py").write_text(JOBS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEE_")}
    path = os.pathsep.join([str(folder), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", "from fusee.app.cli import main; main()", *words, "--json"],
        cwd=folder,
        env={**kept, **env, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=40)
        assert process.returncode == 0, output


async def test_a_worker_needs_no_database(tmp_path: Path, rabbitmq: dict[str, Any]) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    env = {
        "FUSEE_BROKER__TYPE": "rabbitmq",
        "FUSEE_BROKER__URL": rabbitmq["url"],
        "FUSEE_BROKER__PREFIX": rabbitmq["prefix"],
    }
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))
    port = servers.free_port()
    async with app:
        with (
            program(tmp_path / "dispatcher", "dispatcher", FUSEE_DATABASE__URL=url, **env),
            program(
                tmp_path / "worker",
                "worker",
                "--app",
                "brokerjobs:app",
                FUSEE_STATUS__BIND_ADDRESS=f"127.0.0.1:{port}",
                **env,
            ) as worker,
        ):
            handle = await app.enqueue("where", allow_unknown=True)
            result = await handle.result(60)
            (session,) = await app.workers.list()
            assert (session.info.broker, session.info.pid) == ("rabbitmq/2", worker.pid)
            assert result == {"pid": worker.pid, "database": False}
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                async with client.get("/readyz") as ready:
                    assert ready.status == 200, await ready.text()
                async with client.get("/metrics") as metrics:
                    assert "fusee_broker_connected 1.0" in await metrics.text()

        async def gone() -> bool:
            return not await app.workers.list()

        await until(gone, 10, "the worker's goodbye")
    assert not (tmp_path / "worker" / "fusee.db").exists()


def test_dead_letters_are_listed_shown_requeued_and_dropped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def bury() -> list[int]:
        async with Fusee(config=load(env={}, overrides={"database": {"url": url}})) as app:
            runs = [int(await app.enqueue("work", allow_unknown=True)) for _ in range(2)]
            lanes = await app.store.lanes.all_lanes()
            for run in await app.store.dispatches.dispatch(dict.fromkeys(lanes, 10)):
                await app.store.dead_letters.keep(
                    "fusee.v1.runs.1.normal", "rejected", b"?", [(run.id, 1)], str(run.id)
                )
            await app.store.dead_letters.keep("fusee.v1.status", "rejected", b"\xff", [], "t")
            return runs

    def fusee(*words: str) -> Any:
        done = CliRunner().invoke(cli, ["--database", url, "--json", "broker", "dead", *words])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    first, second = asyncio.run(bury())
    letters = fusee("list")["items"]
    assert [letter["run_ids"] for letter in letters] == [[first], [second], []]
    assert fusee("show", "3")["body"] == "/w==" and fusee("show", "3")["binary"]
    assert fusee("requeue", "1") == {"id": 1, "runs": 1}
    assert fusee("drop", "2") == {"id": 2, "canceled": 1}
    assert fusee("drop", "3") == {"id": 3, "canceled": 0}
    assert fusee("list")["items"] == []
    shown = CliRunner().invoke(cli, ["--database", url, "broker", "dead", "show", "9"])
    assert shown.exit_code != 0 and "no dead letter 9" in shown.output
