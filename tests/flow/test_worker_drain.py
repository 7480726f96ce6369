"""Stopping a worker under load: what runs is finished, what has not started goes back, nothing is spent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fusee import RetryPolicy
from fusee.engine.model.outcome import End
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus, SessionState
from tests.chaos.inside import FixedPace, Journal, all_ended, make_app, until, working

WARM = 300


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fusee.db"


async def test_a_drain_finishes_what_runs_and_hands_back_the_rest(database_url: str) -> None:
    app, journal = make_app(database_url, max_concurrent_tasks=2), Journal()
    let_go = asyncio.Event()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await let_go.wait()
        journal.end()

    async with app:
        async with working(app) as worker:
            worker.couriers.pace = FixedPace(20)
            handles = await app.enqueue_many([RunSpec(handler="work")] * 12)
            await until(lambda: len(worker.pool.ready) == 10 and worker.pool.busy == 2)
            worker.stop()

            async def handed_back() -> bool:
                return [(await app.store.runs.run(h.id)).status for h in handles].count(
                    RunStatus.PENDING
                ) == 10

            await until(handed_back)
            assert worker.pool.busy == 2, "what runs goes on"
            let_go.set()
        runs = [await app.store.runs.run(handle.id) for handle in handles]
        started = {line.run for line in journal.starts()}
        assert {run.id for run in runs if run.status is RunStatus.SUCCEEDED} == started
        assert len(started) == 2
        assert {run.spent for run in runs} == {0} or all(
            run.spent == 0 for run in runs if run.status is RunStatus.PENDING
        )
        (session,) = await app.store.sessions.sessions(all_states=True)
        assert session.state is SessionState.ENDED
        # Another life of the worker does the rest.
        async with working(app):
            runs = await all_ended(app, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice
    assert sorted(line.run for line in journal.starts()) == sorted(handle.id for handle in handles)


async def test_a_drain_that_takes_too_long_hands_back_what_still_runs(database_url: str) -> None:
    app, journal = make_app(database_url, drain_timeout=0.2), Journal()
    second_life = False

    @app.handler("long", retry=RetryPolicy(max_attempts=2))
    async def long() -> None:
        journal.start()
        try:
            if not second_life:
                await asyncio.sleep(60)
        finally:
            journal.end()

    async with app:
        async with working(app):
            handle = await app.enqueue("long")
            await until(lambda: journal.started(handle))
        run = await app.store.runs.run(handle.id)
        (kept,) = await app.store.runs.attempts(handle.id)
        # It may have been claimed once more, and handed back at once, while the drain began.
        assert (run.status, run.spent) == (RunStatus.PENDING, 0)
        assert (kept.end, kept.attempt) == (End.RETURNED, 1)
        second_life = True
        async with working(app):
            await handle.result(10)
    assert [line.what for line in journal.of(handle)] == ["start", "end", "start", "end"]
    assert not journal.started_twice


async def test_a_drain_never_starts_a_second_attempt_where_the_policy_allows_one(database_url: str) -> None:
    app, journal = make_app(database_url, drain_timeout=0.2), Journal()

    @app.handler("once", retry=RetryPolicy(max_attempts=1))
    async def once() -> None:
        journal.start()
        await asyncio.sleep(60)

    async with app:
        async with working(app):
            handle = await app.enqueue("once")
            await until(lambda: journal.started(handle))
        run = await app.store.runs.run(handle.id)
    assert (run.status, run.effect, run.attempt) == (RunStatus.FAILED, "unknown", 1)
    assert "allows one attempt" in (run.reason or "")


async def test_what_has_waited_too_long_at_a_slow_worker_goes_to_another(database_url: str) -> None:
    """The worker has claimed ahead at its pace, then meets a slow run: it must not keep the rest."""
    slow, quick = make_app(database_url, max_concurrent_tasks=1, prefetch=1.0), make_app(database_url)
    journal, let_go = Journal(), asyncio.Event()

    @slow.handler("work")
    async def work_slowly(n: int) -> str:
        journal.start()
        if n == WARM:
            await let_go.wait()
        journal.end()
        return "slow"

    @quick.handler("work")
    async def work(n: int) -> str:
        journal.start()
        journal.end()
        return "quick"

    async with working(slow) as slow_worker:
        handles = await slow.enqueue_many(
            [RunSpec(handler="work", payload={"n": n}) for n in range(WARM + 1 + 40)]
        )
        warm, first, rest = handles[:WARM], handles[WARM], handles[WARM + 1 :]
        await until(lambda: journal.started(first) and slow_worker.pool.ready)
        async with working(quick, dispatcher=False):
            await all_ended(slow, rest, 6)
            assert slow_worker.pool.busy == 1, "the slow one is still at its first"
            let_go.set()
            runs = await all_ended(slow, [first, *rest])
    assert [run.result for run in runs] == ["slow", *["quick"] * 40]
    assert {run.spent for run in runs} == {0}
    assert not journal.started_twice
    assert len(journal.starts()) == len(warm) + 1 + 40


async def test_many_short_runs_survive_a_stop_in_their_middle(database_url: str) -> None:
    app, journal = make_app(database_url), Journal()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.001)
        journal.end()

    async with app:
        handles = await app.enqueue_many([RunSpec(handler="work")] * 600)
        for stop_at in (50, 150, 300):
            async with working(app) as worker:
                await until(lambda at=stop_at: len(journal.lines) > 2 * at)  # type: ignore[misc]
                worker.stop()
        async with working(app):
            runs = await all_ended(app, handles)
    assert {(run.status, run.spent) for run in runs} == {(RunStatus.SUCCEEDED, 0)}
    assert not journal.started_twice
    assert len(journal.starts()) == 600, "what was handed back had not started"
