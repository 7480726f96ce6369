"""The engine's promises for handlers in processes, which begin later and end harder than others."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fusee import RetryPolicy
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.errors import Conflict, StoreUnavailable
from tests.chaos.inside import all_ended, make_app, until, working
from tests.flow.process_work import read, work

MANY = RetryPolicy(max_attempts=50, backoff="fixed", base=0.01, jitter=0)
SHORT: dict[str, Any] = {"heartbeat_interval_seconds": 0.1, "max_concurrent_tasks": 3}


async def test_promise_2_each_attempt_in_a_process_starts_at_most_once(
    database_url: str, tmp_path: Path
) -> None:
    """Two workers compete, and attempts fail."""
    apps = [make_app(database_url, **SHORT) for _ in range(2)]
    for app in apps:
        app.handler("work", isolation="process", retry=MANY)(work)
    journal = tmp_path / "journal"
    payload = {"journal": str(journal), "fail": 1}
    async with working(apps[0]), working(apps[1]):
        handles = await apps[0].enqueue_many([RunSpec(handler="work", payload=payload)] * 20)
        runs = await all_ended(apps[0], handles, 60)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    starts = Counter((line.run, line.attempt) for line in read(journal) if line.what == "start")
    assert set(starts.values()) == {1}
    assert {run for run, _ in starts} == {run.id for run in runs}


async def test_promise_4_a_process_is_gone_before_another_worker_starts(
    database_url: str, tmp_path: Path
) -> None:
    """Cut off, a worker kills its process by its own clock before the database's lets another begin."""
    cut_off = make_app(database_url, lease_ttl=3.0)
    healthy = make_app(database_url, dispatcher={"recover_interval": 0.01})
    for app in (cut_off, healthy):
        app.handler("work", isolation="process", retry=MANY)(work)
    journal = tmp_path / "journal"
    async with working(cut_off, dispatcher=False):

        async def unreachable(*_: Any) -> None:
            raise StoreUnavailable("cut off by the test")

        handle = await cut_off.enqueue("work", {"journal": str(journal), "seconds": 60.0})
        await until(lambda: read(journal))
        cut_off.store.sessions.renew = unreachable  # type: ignore[method-assign]
        cut_off.store.sessions.open_session = unreachable  # type: ignore[method-assign, assignment]
        async with working(healthy):
            await until(lambda: len(read(journal)) == 3, 30)
            await healthy.runs.cancel(handle.id)
            await handle.wait(20)
    told = [(line.attempt, line.what) for line in read(journal)]
    # The first may have been killed in the middle of its last line; the second comes after all of it.
    assert told[:3] == [(1, "start"), (1, "end"), (2, "start")]


async def test_promise_7_after_a_cancel_is_acknowledged_no_process_starts_its_handler(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold processes and warm ones, cancels at any moment; a worker that looks for cancels once a second."""
    monkeypatch.setenv("FUSEE_TEST_SLOWEST_IMPORT", "3")
    app = make_app(database_url, max_concurrent_tasks=8, heartbeat_interval_seconds=10)
    elsewhere = make_app(database_url)
    app.handler("work", isolation="process")(work)
    journal = tmp_path / "journal"
    acknowledged: dict[int, float] = {}
    chance = random.Random(28)
    async with working(app), elsewhere:

        async def submit_and_cancel() -> int:
            handle = await app.enqueue("work", {"journal": str(journal), "seconds": 0.2})
            await asyncio.sleep(chance.uniform(0, 6.0))
            try:
                await elsewhere.runs.cancel(handle.id)
            except Conflict:
                return handle.id  # it had ended
            acknowledged[handle.id] = time.monotonic()
            return handle.id

        ids = await asyncio.gather(*[submit_and_cancel() for _ in range(40)])

        async def ended() -> bool:
            return len(await app.store.runs.ended(list(ids))) == len(ids)

        await until(ended, 60)
    late = [
        line.at - acknowledged[line.run]
        for line in read(journal)
        if line.what == "start" and line.at > acknowledged.get(line.run, float("inf"))
    ]
    assert not late, f"started so many seconds after the cancel was acknowledged: {late}"
    assert acknowledged


async def test_promise_10_limits_are_global_for_processes(database_url: str, tmp_path: Path) -> None:
    apps = [make_app(database_url, **SHORT) for _ in range(2)]
    for app in apps:
        app.handler("work", isolation="process")(work)
    journal = tmp_path / "journal"
    payload = {"journal": str(journal), "seconds": 0.1}
    async with apps[0]:
        await apps[0].queues.limit("narrow", QueueLimits(concurrency=2))
        spec = RunSpec(handler="work", queue="narrow", payload=payload)
        handles = await apps[0].enqueue_many([spec] * 16)
        async with working(apps[0]), working(apps[1], dispatcher=False):
            runs = await all_ended(apps[0], handles, 60)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    now = most = 0
    for line in sorted(read(journal), key=lambda line: (line.at, line.what)):
        now += 1 if line.what == "start" else -1
        most = max(most, now)
    assert 1 <= most <= 2
