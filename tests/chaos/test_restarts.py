"""The database crashes, or every worker is replaced in turn, under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fusee import RunHandle
from fusee.errors import StoreUnavailable
from tests.chaos.harness import Fleet, fleet, judge, some_runs
from tools import servers


@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_the_database_is_killed_under_load(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: servers.Database = request.getfixturevalue(f"{engine}_server")
    if not server.pids:
        pytest.skip("the server is not ours to kill")
    async with fleet(request.getfixturevalue(f"{engine}_url"), tmp_path) as crew:
        handles: list[RunHandle] = []
        feeder = asyncio.create_task(_feed(crew, handles, portions=30))
        for _ in range(3):
            before = crew.journal.count()
            wanted = before + crew.chance.randrange(100, 300)
            await crew.until(lambda at=wanted: crew.journal.count() >= at, 60)  # type: ignore[misc]
            await asyncio.to_thread(server.restart, kill=True)
        await feeder
        told = judge(crew, await crew.all_ended(handles, 90))
    print(told)
    assert told["runs"] == 30 * 50


async def _feed(crew: Fleet, handles: list[RunHandle], portions: int) -> None:
    """A caller that asks again with the same keys until it is answered: what it is told counts."""
    for portion in range(portions):
        specs = [
            type(spec)(**{name: getattr(spec, name) for name in KEPT}, idempotency_key=f"{portion}-{n}")
            for n, spec in enumerate(some_runs(crew, 50, shell=0.0))
        ]
        # From before: a portion whose answer was lost may be done by the time it is accepted.
        goal = crew.journal.count() + 40
        while True:
            try:
                handles += await crew.app.enqueue_many(specs, allow_unknown=True)
                break
            except StoreUnavailable:
                await asyncio.sleep(0.05)
        await crew.until(lambda at=goal: crew.journal.count() >= at, 60)  # type: ignore[misc]


KEPT = ("handler", "payload", "executor", "retry")


@pytest.mark.chaos
async def test_a_rolling_restart_burns_no_attempt(database_url: str, tmp_path: Path) -> None:
    async with fleet(database_url, tmp_path, dispatchers=1, worker={"lease_ttl": 5.0}) as crew:
        handles: list[RunHandle] = []
        for _ in range(5):
            for member in crew.of("worker"):
                before = crew.journal.count()
                handles += await crew.app.enqueue_many(some_runs(crew, 100))
                wanted = before + crew.chance.randrange(100)
                await crew.until(lambda at=wanted: crew.journal.count() >= at, 20)  # type: ignore[misc]
                crew.start("worker")
                code = await crew.terminate(member)
                assert code == 0, f"seed {crew.seed}: exit code {code}\n{member.log.read_text()[-3000:]}"
        told = judge(crew, await crew.all_ended(handles, 60), burnt=False)
        sessions = await crew.app.store.sessions.sessions(all_states=True)
        assert not [s for s in sessions if s.state == "lost"], f"seed {crew.seed}"
    assert told["cut_short"] == 0, "a drained worker lets its runs end"
