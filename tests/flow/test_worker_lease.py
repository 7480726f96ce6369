"""Leases that are lost, answers that are lost, and a database that goes away."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from fusee import Fusee, RetryPolicy, current_run
from fusee.engine.model.outcome import End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order
from fusee.engine.store.tables import sessions
from fusee.errors import StoreUnavailable
from fusee.events import RunRefused, SessionExpired
from tests.chaos.inside import Journal, Seen, all_ended, lose_lease, make_app, part_with, until, working
from tools import servers

MANY = RetryPolicy(max_attempts=50, backoff="fixed", base=0.01, jitter=0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fusee.db"


async def test_a_late_result_is_refused_and_kept_as_stale(database_url: str) -> None:
    zombie = make_app(database_url)
    healthy, journal = make_app(database_url), Journal()
    let_go, seen = asyncio.Event(), Seen(zombie.bus, RunRefused)

    @zombie.handler("work")
    async def work_forever() -> str:
        journal.start()
        await let_go.wait()
        return "from the zombie"

    @healthy.handler("work")
    async def work() -> str:
        journal.start()
        return f"attempt {current_run().attempt}"

    async with working(zombie, dispatcher=False) as worker:
        handle = await zombie.enqueue("work")
        await until(lambda: journal.started(handle))
        await lose_lease(zombie, worker.session)
        async with working(healthy):
            run = await handle.wait(15)
            assert (run.status, run.result, run.attempt) == (RunStatus.SUCCEEDED, "attempt 2", 2)
            let_go.set()
            await until(lambda: seen.events)

            async def noted() -> bool:
                return (await healthy.store.runs.attempts(handle.id))[0].late_end is not None

            await until(noted)
            (first,) = await healthy.store.runs.attempts(handle.id)
            run = await healthy.store.runs.run(handle.id)
    assert (first.attempt, first.end, first.late_end) == (1, End.LOST, "succeeded")
    assert [(e.run_id, e.attempt, e.end) for e in seen.of(RunRefused)] == [(run.id, 1, End.SUCCEEDED)]
    assert (run.result, run.attempt, run.spent) == ("attempt 2", 2, 1)


async def test_a_worker_that_cannot_renew_stops_before_others_may_start(url: str) -> None:
    """By its own clock, less a margin: the attempt here has ended when the next one starts elsewhere."""
    cut_off = make_app(url, lease_ttl=3.0)
    healthy, journal = make_app(url), Journal()
    seen = Seen(cut_off.bus, SessionExpired)

    @cut_off.handler("work")
    async def work_forever() -> None:
        journal.start()
        try:
            await asyncio.sleep(60)
        finally:
            journal.end()

    @healthy.handler("work")
    async def work() -> None:
        journal.start()

    async with working(cut_off, dispatcher=False):

        async def unreachable(*_: object) -> None:
            raise StoreUnavailable("cut off by the test")

        handle = await cut_off.enqueue("work")
        await until(lambda: journal.started(handle))
        cut_off.store.sessions.renew = unreachable  # type: ignore[method-assign]
        cut_off.store.sessions.open_session = unreachable  # type: ignore[method-assign, assignment]
        async with working(healthy):
            await handle.wait(15)
    assert [(line.attempt, line.what) for line in journal.of(handle)] == [
        (1, "start"),
        (1, "end"),
        (2, "start"),
    ]
    assert len(seen.events) == 1


def lose_answers(app: Fusee, name: str, which: set[int]) -> Counter[str]:
    """The calls of that method of the store with these numbers are carried out, but their answer is lost."""
    part = part_with(app.store, name)
    real, calls = getattr(part, name), Counter[str]()

    async def lossy(*args: Any) -> Any:
        answer = await real(*args)
        if getattr(answer, "claimed", answer):
            calls["claims"] += 1
            if calls["claims"] in which:
                calls["lost"] += 1
                raise StoreUnavailable("the answer was lost on its way")
        return answer

    setattr(part, name, lossy)
    return calls


async def test_a_claim_whose_answer_was_lost_strands_nothing(database_url: str) -> None:
    app, journal = make_app(database_url, max_concurrent_tasks=8, lease_ttl=30), Journal()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.002)
        journal.end()

    async with working(app):
        calls = lose_answers(app, "exchange", {1, 2, 4, 7})
        handles = await app.enqueue_many([RunSpec(handler="work")] * 100)
        runs = await all_ended(app, handles, 15)  # well before the lease could expire
        assert calls["lost"] == 4
    assert {(run.status, run.spent) for run in runs} == {(RunStatus.SUCCEEDED, 0)}
    assert sorted(line.run for line in journal.starts()) == sorted(handle.id for handle in handles)


async def test_a_limited_claim_whose_answer_was_lost_gives_back_its_places(database_url: str) -> None:
    app, journal = make_app(database_url, max_concurrent_tasks=8, lease_ttl=30), Journal()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.002)
        journal.end()

    async with app:
        await app.queues.limit("narrow", QueueLimits(concurrency=2))
        async with working(app):
            lose_answers(app, "claim_limited", {1, 3})
            handles = await app.enqueue_many([RunSpec(handler="work", queue="narrow")] * 12)
            runs = await all_ended(app, handles, 15)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert len(journal.starts()) == 12
    assert journal.most_at_once() <= 2


async def test_a_written_success_whose_answer_was_lost_is_no_late_result(database_url: str) -> None:
    app, journal = make_app(database_url, max_concurrent_tasks=4, lease_ttl=30), Journal()
    seen = Seen(app.bus, RunRefused)

    @app.handler("work")
    async def work() -> None:
        journal.start()

    async with working(app):
        real, lost = app.store.claims.exchange, 0

        async def lossy(session: int, finished: Any, order: Any) -> Any:
            nonlocal lost
            answer = await real(session, finished, order)
            if finished.ids and lost < 3:
                lost += 1
                raise StoreUnavailable("the answer was lost on its way")
            return answer

        app.store.claims.exchange = lossy  # type: ignore[method-assign]
        handles = await app.enqueue_many([RunSpec(handler="work")] * 40)
        runs = await all_ended(app, handles)
    assert lost == 3
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice
    assert len(journal.starts()) == 40
    assert not seen.events


async def test_while_it_asks_what_it_owns_nothing_new_is_taken_for_a_stranger(url: str) -> None:
    """One courier reconciles; a limited claim of the other, under way, must not be handed back."""
    app, journal = make_app(url, max_concurrent_tasks=8, lease_ttl=30), Journal()
    claimed = asyncio.Event()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.2)
        journal.end()

    async with app:
        await app.queues.limit("narrow", QueueLimits(concurrency=4))
        async with working(app):
            real_owned, real_claim = app.store.runs.owned, app.store.queues.claim_limited
            asked = asyncio.Event()

            async def slow_owned(session: int) -> list[tuple[int, int]]:
                asked.set()
                try:
                    await asyncio.wait_for(claimed.wait(), 0.5)
                except TimeoutError:
                    pass
                return await real_owned(session)

            async def slow_claim(*args: Any) -> Any:
                answer = await real_claim(*args)
                if answer:
                    claimed.set()
                    await asyncio.sleep(0.1)  # the answer is on its way while the other courier asks
                return answer

            app.store.runs.owned = slow_owned  # type: ignore[method-assign]
            app.store.queues.claim_limited = slow_claim  # type: ignore[method-assign]
            lose_answers(app, "exchange", {1})
            free = await app.enqueue_many([RunSpec(handler="work")])
            await asked.wait()
            narrow = await app.enqueue_many([RunSpec(handler="work", queue="narrow")] * 4)
            runs = await all_ended(app, [*free, *narrow])
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    for handle in narrow:
        assert len(journal.starts(handle.id)) == 1, "handed back though it was in our hands"


async def test_while_it_asks_what_it_owns_an_outcome_on_its_way_is_no_stranger(url: str) -> None:
    app, journal = make_app(url, max_concurrent_tasks=2, lease_ttl=30), Journal()
    let_go, collected = asyncio.Event(), asyncio.Event()

    @app.handler("work")
    async def work(wait: bool = False) -> None:
        journal.start()
        if wait:
            await let_go.wait()
        journal.end()

    async with working(app):
        long = await app.enqueue("work", {"wait": True})
        await until(lambda: journal.started(long))
        real_owned, real_exchange = app.store.runs.owned, app.store.claims.exchange
        reconciled = asyncio.Event()

        async def owned(session: int) -> list[tuple[int, int]]:
            answer = await real_owned(session)
            let_go.set()  # it ends just now, and the other courier takes its outcome
            try:
                await asyncio.wait_for(collected.wait(), 0.5)
            except TimeoutError:
                pass
            return answer

        async def exchange(session: int, finished: Any, order: Any) -> Any:
            if finished.ids and not collected.is_set():
                collected.set()
                try:
                    await asyncio.wait_for(reconciled.wait(), 0.3)
                except TimeoutError:
                    pass
            return await real_exchange(session, finished, order)

        app.store.runs.owned = owned  # type: ignore[method-assign]
        app.store.claims.exchange = exchange  # type: ignore[method-assign]
        lose_answers(app, "exchange", {1})
        other = await app.enqueue("work")
        runs = await all_ended(app, [long, other])
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert len(journal.starts(long.id)) == 1, "handed back though it had been done"


@pytest.mark.heavy
@pytest.mark.parametrize("lease", [20.0, 1.5], ids=["lease-kept", "lease-lost"])
@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_the_store_goes_away_for_three_seconds_under_load(
    engine: str, lease: float, request: pytest.FixtureRequest
) -> None:
    server: servers.Database = request.getfixturevalue(f"{engine}_server")
    if not server.pids:
        pytest.skip("the server is not ours to kill")
    app = make_app(request.getfixturevalue(f"{engine}_url"), lease_ttl=lease, heartbeat_interval_seconds=0.4)
    journal = Journal()

    @app.handler("work", retry=MANY)
    async def work() -> None:
        journal.start()
        await asyncio.sleep(0.01)
        journal.end()

    async with working(app):
        handles = await app.enqueue_many([RunSpec(handler="work")] * 3000)
        await until(lambda: len(journal.starts()) > 200)
        await asyncio.to_thread(server.halt, kill=True)
        loop = asyncio.get_running_loop()
        back_at = loop.time() + 3.0
        await until(lambda: loop.time() > back_at)
        await asyncio.to_thread(server.start)
        runs = await all_ended(app, handles, 60)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice
    ended = {line.run for line in journal.lines if line.what == "end"}
    assert ended == {handle.id for handle in handles}


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_a_live_session_is_not_taken_for_dead_while_its_row_is_locked(
    engine: str, request: pytest.FixtureRequest
) -> None:
    """A heartbeat under way holds the lock just when a dispatcher looks for orphaned receipts."""
    app = make_app(request.getfixturevalue(f"{engine}_url"))

    @app.handler("work")
    async def work() -> None:
        pass

    async with app:
        handles = await app.enqueue_many([RunSpec(handler="work")] * 3)
        worker = app.worker()
        await app.store.lanes.read_new_lanes()
        session = await app.store.sessions.open_session(worker.info, ttl=60)
        order = Order(3, sorted(app.store.lane_map.lanes), 1)
        claimed = (await app.store.claims.exchange(session, Finished(), order)).claimed
        assert len(claimed) == 3
        database: Any = app.store.database
        async with database.engine.connect() as heartbeat, heartbeat.begin() as renewal:
            await heartbeat.execute(update(sessions).where(sessions.c.id == session).values(running=3))
            recovered = await app.store.recovery.recover()
            await renewal.rollback()
        runs = [await app.store.runs.run(handle.id) for handle in handles]
    assert not recovered
    assert {run.status for run in runs} == {RunStatus.RUNNING}
