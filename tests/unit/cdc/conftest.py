"""Control planes behind real sockets, in this process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from fusee.batches.operation import Target
from fusee.contrib.cdc import ControlPlaneDriver, KafkaConnectDriver
from fusee.contrib.cdc.control_plane.faults import Faults
from fusee.contrib.cdc.control_plane.jobs import Jobs
from fusee.contrib.cdc.control_plane.journal import Entry, Journal, read_journal
from fusee.contrib.cdc.control_plane.server import control_plane
from tests.unit.cdc.connect import Connect


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class Here:
    """The reference control plane in this process, with a driver."""

    url: str
    jobs: Jobs
    faults: Faults
    path: Path
    driver: ControlPlaneDriver

    def entries(self) -> list[Entry]:
        return read_journal(self.path)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    path = tmp_path / "journal"
    journal = Journal(path)
    jobs, faults = Jobs(journal), Faults(seed=1)
    for nr in (1, 2, 3):
        jobs.add(f"job-{nr}", {})
    jobs.add("panama-1", {"kind": "panama", "gtid": "0-1-7"})
    async with listening(control_plane(jobs, faults)) as url:
        driver = ControlPlaneDriver(url)
        yield Here(url, jobs, faults, path, driver)
        await driver.close()
    journal.close()


@pytest.fixture
async def connect() -> AsyncIterator[tuple[Connect, KafkaConnectDriver]]:
    there = Connect()
    there.add("orders")
    async with listening(there.app()) as url:
        driver = KafkaConnectDriver(
            url,
            zones={
                "a": {"database.hostname": "db-a"},
                "b": {"database.hostname": "db-b"},
            },
            look_every=0.001,
        )
        yield there, driver
        await driver.close()


_runs = itertools.count(1)


def target(job: str, *, run: int = 0, attempt: int = 1, **fields: object) -> Target:
    """In a run of its own, unless one is named."""
    number = run or next(_runs)
    return Target(batch_id=1, position=0, id=job, run_id=number, attempt=attempt, **fields)  # type: ignore[arg-type]
