"""One cluster, everything at once, and everybody dies: afterwards the promises hold by the journals."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fusee.batches.model.batch import BatchPhase
from fusee.bulk.model.job import BulkStatus
from fusee.contrib.cdc.control_plane import Plane, plane_running
from fusee.engine.model.states import RunStatus
from tests.chaos.cluster import BAD_ITEM, Cluster, cluster
from tests.chaos.harness import Line
from tests.chaos.inside import read_runs
from tests.chaos.test_batches import _judge as judge_batch
from tests.chaos.test_dispatchers import _judge as judge_tasks
from tools import servers

pytestmark = pytest.mark.chaos

SECONDS = 60.0
TARGETS = 400
ITEMS = 300_000
NARROW = 3


class Client:
    """Someone who uses the cluster all the time, through its servers."""

    def __init__(self, crew: Cluster, http: aiohttp.ClientSession) -> None:
        self.crew = crew
        self.http = http
        self.accepted: list[int] = []
        self.to_cancel: set[int] = set()
        self.canceled: dict[int, int] = {}
        """Run → lines in the journal when its cancel was acknowledged."""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await self.crew.ask(self.http, method, path, body)

    async def make_everything(self) -> tuple[list[int], int, int]:
        await self.ask("PUT", "queues/narrow", {"concurrency": NARROW})
        tasks = [
            await self.ask(
                "POST",
                "tasks",
                {
                    "name": f"every-second-{n}",
                    "cron": "* * * * * *",
                    "handler": "note",
                    "catch_up_mode": "FULL",
                    "max_concurrency": 0,
                },
            )
            for n in range(20)
        ]
        batch = await self.ask(
            "POST",
            "batches",
            {
                "batch_name": "switch all",
                "batch_type": "cdc_switch_az",
                "target_type": "cdc",
                "concurrency": 16,
                "timeout": 8,
                "apply": True,
                "targets": [{"target_id": f"job-{n + 1}", "after": {"az": "sg-2"}} for n in range(TARGETS)],
            },
        )
        job = await self.ask(
            "POST",
            "bulk-jobs",
            {
                "name": "all",
                "business": "items",
                "source": ITEMS,
                "concurrency": 48,
                "rate": 8000,
                "start": True,
            },
        )
        return [task["id"] for task in tasks], batch["batch_id"], job["id"]

    async def keep_asking(self) -> None:
        chance = self.crew.chance
        while True:
            many = [
                {
                    "handler": "note",
                    "payload": {"ms": chance.choice((0, 5, 40, 300))},
                    "queue": chance.choice(("default", "default", "narrow")),
                    "priority": chance.choice((0, 0, 5)),
                }
                for _ in range(15)
            ]
            made = await self.ask("POST", "runs", many)
            ids = [run["id"] for run in made]
            self.accepted += ids
            if chance.random() < 0.5:
                chosen = chance.choice(ids)
                self.to_cancel.add(chosen)  # we may be stopped before we hear of it
                await self.ask("POST", f"runs/{chosen}/cancel")
                self.canceled[chosen] = self.crew.journal.count()
            await asyncio.sleep(0.25)


async def test_a_cluster_keeps_its_promises_while_everybody_dies(
    postgres_url: str, rabbitmq_server: servers.Server, tmp_path: Path
) -> None:
    if not rabbitmq_server.pids:
        pytest.skip("RabbitMQ is not ours to kill")
    async with (
        plane_running(tmp_path / "plane.jsonl", "--jobs", str(TARGETS)) as plane,
        cluster(postgres_url, rabbitmq_server, plane, tmp_path) as crew,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http,
    ):
        client = Client(crew, http)
        tasks, batch, job = await client.make_everything()
        asking = asyncio.create_task(client.keep_asking())
        await crew.fire(SECONDS)
        if asking.done():
            asking.result()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        print(f"{len(crew.deaths)} kills, {crew.outages} outages of RabbitMQ, {len(client.accepted)} runs")
        assert len(crew.deaths) > 10 and crew.outages == 2 and len(client.accepted) > 300
        await _judge_runs(crew, client)
        print("tasks:", await judge_tasks(crew, [await crew.app.tasks.get(task) for task in tasks]))
        await _judge_bulk(crew, job)
        await _judge_batch(crew, plane, batch)
        _judge_limit(crew, await _narrow(crew, client))


async def _judge_runs(crew: Cluster, client: Client) -> None:
    """Promises 1, 2, 3 and 7."""
    why = f"seed {crew.seed}"
    await _until(crew, lambda: _all_ended(crew, client.accepted), "every accepted run to end")
    runs = await read_runs(crew.app.store, client.accepted)
    lines = crew.journal.lines()
    starts = Counter((line.run, line.attempt) for line in lines if line.what == "start")
    twice = [pair for pair, count in starts.items() if count > 1]
    assert not twice, f"{why}: started twice: {twice[:5]}"
    ends = {(line.run, line.attempt) for line in lines if line.what == "end"}
    for run in runs:
        if run.id in client.to_cancel:
            assert run.status in (RunStatus.CANCELED, RunStatus.SUCCEEDED), f"{why}: {run}"
        else:
            assert run.status is RunStatus.SUCCEEDED, f"{why}: {run}"
        if run.status is RunStatus.SUCCEEDED:
            assert (run.id, run.attempt) in ends, f"{why}: {run} succeeded, but never ended by the journal"
    for run_id, known in client.canceled.items():
        later = [line for line in lines[known:] if line.run == run_id and line.what == "start"]
        assert not later, f"{why}: run {run_id} started after its cancel was acknowledged: {later}"


async def _all_ended(crew: Cluster, ids: list[int]) -> bool:
    parts = (ids[at : at + 500] for at in range(0, len(ids), 500))
    return all([len(await crew.app.store.runs.ended(part)) == len(part) for part in parts])


async def _judge_bulk(crew: Cluster, job_id: int) -> None:
    """Promise 8, as far as the order of many journals tells it."""
    why = f"seed {crew.seed}"

    async def over() -> bool:
        return (await crew.app.bulk_jobs.get(job_id)).status not in ("running", "stopping")

    await _until(crew, over, "the bulk job to end")
    job = await crew.app.bulk_jobs.get(job_id)
    assert job.status is BulkStatus.FINISHED and job.ended == ITEMS, f"{why}: {job}"
    done = {line.attempt for line in crew.journal.lines() if line.run == 0 and line.what == "done"}
    bad = {one.index async for one in crew.app.bulk_jobs.quarantined(job_id)}
    assert bad == set(range(0, ITEMS, BAD_ITEM)), why
    assert done == set(range(ITEMS)) - bad, f"{why}: {ITEMS - len(bad) - len(done)} items were left out"
    print(f"bulk: {job.replayed} of {ITEMS} replayed")


async def _judge_batch(crew: Cluster, plane: Plane, batch_id: int) -> None:
    """Promise 9: applied as it says, then undone as it says."""

    async def over() -> bool:
        return (await crew.app.batches.get(batch_id)).phase is BatchPhase.DONE

    await _until(crew, over, "the batch to end")
    await plane.quiet()
    print("batch:", await judge_batch(crew, plane, await crew.app.batches.get(batch_id), rolled_back=False))
    await crew.app.batches.roll_back(batch_id)
    await _until(crew, over, "the rollback to end")
    await plane.quiet()
    print("rollback:", await judge_batch(crew, plane, await crew.app.batches.get(batch_id), rolled_back=True))


async def _narrow(crew: Cluster, client: Client) -> set[int]:
    runs = await read_runs(crew.app.store, client.accepted)
    return {run.id for run in runs if run.queue == "narrow"}


def _judge_limit(crew: Cluster, narrow: set[int]) -> None:
    """Promise 10: never more at once than the queue's limit, over all workers; who is dead runs nothing."""
    deaths = sorted(crew.deaths)
    running: dict[tuple[int, int], int] = {}
    most: dict[tuple[int, int], int] = {}
    when = 0
    for number, line in enumerate(crew.journal.lines()):
        while deaths and deaths[0][0] <= number:
            _, pid = deaths.pop(0)
            running = {pair: owner for pair, owner in running.items() if owner != pid}
        if _count(running, line, narrow) > len(most):
            most, when = dict(running), number
    print(f"narrow: {len(narrow)} runs, at most {len(most)} at once")
    told = f"seed {crew.seed}: {len(most)} at once at line {when}, (run, attempt) of pid: {most}"
    assert len(most) <= NARROW, f"{told}; deaths, (line, pid): {sorted(crew.deaths)}"


def _count(running: dict[tuple[int, int], int], line: Line, narrow: set[int]) -> int:
    if line.run in narrow:
        if line.what == "start":
            running[(line.run, line.attempt)] = line.pid
        else:
            running.pop((line.run, line.attempt), None)
    return len(running)


async def _until(crew: Cluster, condition: Any, what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert not crew.crashed(), f"seed {crew.seed}: {crew.crashed()[0]}"
        assert time.monotonic() < deadline, f"seed {crew.seed}: waited {seconds:g} s for {what}"
        await asyncio.sleep(0.2)
