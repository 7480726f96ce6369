"""Bulk jobs on workers without a database: an item that kills its process, and rows of a query by key."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from tests.broker.cluster import NOWHERE, Cluster
from tests.chaos.inside import until

KILLER = 13
ITEMS = 40
WORKER = """
import asyncio, json, os, signal, sys
from fusee import Fusee
from fusee.config import load

app = Fusee(config=load(env={}, overrides=json.loads(sys.argv[1])))

@app.bulk("risky", concurrency=4)
async def risky(item: int) -> None:
    with open(sys.argv[2], "a") as journal:
        journal.write(f"{item}\\n")
    if item == int(sys.argv[3]):
        os._exit(9)

async def main() -> None:
    await app.open(store=False)
    worker = app.worker()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()
    await app.close()

asyncio.run(main())
"""


async def test_an_item_that_kills_its_process_is_isolated_and_quarantined(
    rabbit: Cluster, tmp_path: Path
) -> None:
    @rabbit.app.bulk("risky", concurrency=4)
    async def risky(item: int) -> None: ...

    journal, deaths = tmp_path / "journal", 0
    settings = {
        "database": {"url": NOWHERE},
        "worker": {"heartbeat_interval_seconds": 0.3, "lease_ttl": 3.0, "poll_interval": 0.05},
        "broker": {"type": "rabbitmq", **rabbit.broker_settings},
    }
    words = [sys.executable, "-c", WORKER, json.dumps(settings), str(journal), str(KILLER)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )

    job, _ = await rabbit.app.bulk_jobs.create(
        {"name": "r", "business": "risky", "source": ITEMS, "segments": 1}, start=True
    )
    process = start()
    try:
        async with asyncio.timeout(150):
            while (found := await rabbit.app.bulk_jobs.get(job.id)).status == "running":
                if (code := process.poll()) is not None:
                    assert code == 9, "only the item ends it"
                    deaths += 1
                    process = start()
                await asyncio.sleep(0.05)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        # In a thread: the dispatcher that the worker says goodbye to lives on this loop.
        await asyncio.to_thread(process.wait, 40)
    (bad,) = await rabbit.app.bulk_jobs.quarantine(job.id)
    assert (found.status, found.ended, found.quarantined) == ("finished", ITEMS, 1)
    assert bad.index == KILLER and "workers were lost while they worked on it" in bad.error
    times = Counter(int(line) for line in journal.read_text().split())
    assert set(times) == set(range(ITEMS)), "every other item was worked on"
    assert times[KILLER] == deaths == bad.attempts, "it was not started again after it was found"


@pytest.mark.parametrize("by", ["url", "variable"])
async def test_rows_by_key_are_read_by_a_worker_without_a_database(
    rabbit: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Also undone, and run again from the quarantine: both read the other job's rows over the broker."""
    with sqlite3.connect(tmp_path / "people.db") as people:
        people.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
        people.executemany("INSERT INTO people VALUES (?, ?)", [(7 * n, f"p{n}") for n in range(1, 301)])
    url = f"sqlite:///{tmp_path}/people.db"
    monkeypatch.setenv("PEOPLE", url)
    done: list[str] = []
    undone: list[int] = []
    sick = {"p5", "p200"}

    def businesses(app: Fusee) -> None:
        async def undo(item: Any, index: int) -> None:
            undone.append(index)

        @app.bulk("greet", concurrency=8, item_attempts=1, undo=undo)
        async def greet(item: dict[str, Any], index: int) -> None:
            assert index == item["id"]
            if item["name"] in sick:
                raise RuntimeError("not today")
            done.append(item["name"])

    businesses(rabbit.app)
    jobs = rabbit.app.bulk_jobs

    async def finished(job_id: int) -> Any:
        async def there() -> Any:
            job = await jobs.get(job_id)
            return job if str(job.status) not in ("running", "stopping") else None

        job = await until(there, 60, f"the end of job {job_id}")
        assert str(job.status) == "finished", job.reason
        return job

    async with rabbit.start_worker(prepare=businesses):
        source = {
            "kind": "sql",
            "url": url if by == "url" else "env:PEOPLE",
            "query": "SELECT id, name FROM people",
            "key": "id",
        }
        fields = {"name": "g", "business": "greet", "source": source, "segments": 2}
        job, _ = await jobs.create(fields, start=True)
        job = await finished(job.id)
        assert (job.total, job.ended, job.quarantined) == (300, 300, 2)
        assert sorted(done) == sorted(f"p{n}" for n in range(1, 301) if f"p{n}" not in sick)
        assert [one.index for one in await jobs.quarantine(job.id)] == [35, 1400]
        sick.clear()
        done.clear()
        again = await jobs.rerun_quarantine(job.id, start=True)
        await finished(again.id)
        assert sorted(done) == ["p200", "p5"]
        back = await jobs.undo(job.id, start=True)
        await finished(back.id)
    assert sorted(undone) == [7 * n for n in range(1, 301) if n not in (5, 200)]
