"""SIGSTOP past the lease, then SIGCONT: a zombie's outcomes are refused and kept as stale.

Not on SQLite: a process stopped inside a transaction keeps the one write lock, and everyone waits for it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.run import RunSpec
from tests.chaos.harness import fleet, judge, some_runs


@pytest.fixture(params=["postgres", "mysql"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.mark.chaos
async def test_a_worker_that_wakes_after_its_lease_changes_nothing(server_url: str, tmp_path: Path) -> None:
    async with fleet(server_url, tmp_path, workers=3) as crew:
        for _ in range(3):
            handles = [*await crew.app.enqueue_many(some_runs(crew, 60))]
            (frozen,) = await crew.app.enqueue_many([RunSpec(handler="freezes")])
            handles += await crew.app.enqueue_many(some_runs(crew, 60))
            # Others find its session dead and do what was in its hands, the frozen run too.
            runs = {run.id: run for run in await crew.all_ended([frozen, *handles], 30)}
            done = runs[frozen.id]
            lines = [line for line in crew.journal.lines() if line.run == frozen.id]
            zombie = next(line.pid for line in lines if line.attempt == 1)
            assert [(line.attempt, line.what) for line in lines] == [(1, "start"), (2, "start"), (2, "end")]
            assert done.attempt == 2
            assert done.result != zombie

            (member,) = [m for m in crew.of("worker") if m.pid == zombie]
            member.process.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + 20
            while (first := (await crew.app.store.runs.attempts(frozen.id))[0]).late_end is None:
                assert time.monotonic() < deadline, f"seed {crew.seed}: its late outcome was never noted"
                await asyncio.sleep(0.02)
            assert (first.end, first.late_end) == (End.LOST, "succeeded")
            assert (await crew.app.store.runs.run(frozen.id)) == done, "the zombie changed the run"

            # It comes back to life as a new session, and works on.
            more = await crew.app.enqueue_many(some_runs(crew, 60))
            runs |= {run.id: run for run in await crew.all_ended(more, 30)}
            again = await crew.all_ended([frozen, *handles, *more], 5)
            assert again == [runs[run.id] for run in again]
            crew.judged += again
        judge(crew, crew.judged)
        sessions = await crew.app.store.sessions.sessions(all_states=True)
        assert sum(session.state == "lost" for session in sessions) >= 3


@pytest.mark.chaos
async def test_stopping_workers_at_random(server_url: str, tmp_path: Path) -> None:
    async with fleet(server_url, tmp_path, workers=3) as crew:
        handles = []
        for _ in range(5):
            before = crew.journal.count()
            handles += await crew.app.enqueue_many(some_runs(crew, 120))
            wanted = before + crew.chance.randrange(200)
            await crew.until(lambda at=wanted: crew.journal.count() >= at, 20)  # type: ignore[misc]
            member = crew.chance.choice(crew.of("worker"))
            member.process.send_signal(signal.SIGSTOP)
            await crew.all_ended(handles, 30)
            member.process.send_signal(signal.SIGCONT)
        judge(crew, await crew.all_ended(handles, 30))
