"""The promises that the engine keeps, one test each; each fails when its mechanism is removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fusee import Fusee, RetryPolicy, current_run
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order
from fusee.errors import StoreUnavailable
from tests.chaos.inside import FixedPace, Journal, all_ended, lose_lease, until, working
from tests.chaos.inside import make_app as app_with

MANY = RetryPolicy(max_attempts=50, backoff="fixed", base=0.01, jitter=0)
WAYS: dict[str, dict[str, Any]] = {
    "usual": {},
    "short-heartbeat-one-connection": {
        "heartbeat_interval_seconds": 0.05,
        "database": {"max_connections": 3},
    },
}
"""A promise holds with every setting."""

MakeApp = Callable[..., Fusee]


@pytest.fixture(params=WAYS)
def make_app(request: pytest.FixtureRequest) -> MakeApp:
    return partial(app_with, **WAYS[request.param])


async def test_promise_1_accepted_is_never_lost(database_url: str, make_app: MakeApp) -> None:
    """Its worker dies with runs in its hands; asked again with the same keys, nothing is there twice."""
    app, journal = make_app(database_url), Journal()

    @app.handler("work", retry=MANY)
    async def work() -> None:
        journal.start()

    async with app:
        specs = [RunSpec(handler="work", idempotency_key=f"k{n}") for n in range(30)]
        handles = await app.enqueue_many(specs)
        again = await app.enqueue_many(specs)
        assert [handle.id for handle in again] == [handle.id for handle in handles]
        assert not any(handle.created for handle in again)
        # A worker that claims and is never heard of again.
        dead = app.worker()
        await dead.served.read()
        session = await app.store.sessions.open_session(dead.info, ttl=0.5)
        taken = (await app.store.claims.exchange(session, Finished(), Order(10, dead.served.free, 1))).claimed
        assert len(taken) == 10
        async with working(app):
            runs = await all_ended(app, handles, 15)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert {line.run for line in journal.starts()} == {handle.id for handle in handles}
    lost = {claimed.id for claimed in taken}
    assert {run.id for run in runs if run.attempt == 2} == lost


async def test_promise_2_each_attempt_starts_at_most_once(database_url: str, make_app: MakeApp) -> None:
    """Two workers compete for every run, and attempts fail: still no (run, attempt) starts twice."""
    apps, journal = [make_app(database_url), make_app(database_url)], Journal()
    keys: dict[int, set[str]] = {}
    for app in apps:

        @app.handler("work", retry=MANY)
        async def work() -> None:
            run = current_run()
            journal.start()
            keys.setdefault(run.run_id, set()).add(run.idempotency_key)
            await asyncio.sleep(0.001)
            # Not by the attempt's number: one that a slow worker hands back has a number and no start.
            if len(journal.starts(run.run_id)) <= run.run_id % 3:
                raise ValueError("again")

    one, two = apps
    async with working(one) as first, working(two) as second:
        for worker in (first, second):
            worker.couriers.pace = FixedPace(50)
        handles = []
        for _ in range(10):
            handles += await one.enqueue_many([RunSpec(handler="work")] * 40)
        runs = await all_ended(one, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert not journal.started_twice
    # At least once, and one start for each attempt: numbers are never used again.
    starts = Counter(line.run for line in journal.starts())
    for run in runs:
        attempts = [line.attempt for line in journal.starts(run.id)]
        assert attempts == sorted(set(attempts))
        assert run.attempt == attempts[-1]
        assert starts[run.id] == 1 + run.id % 3
        assert keys[run.id] == {f"fusee-run-{run.id}"}, "the key is the same at every attempt"


@pytest.mark.parametrize("how", ["success", "failure"])
async def test_promise_3_a_worker_that_lost_its_lease_changes_nothing(
    database_url: str, make_app: MakeApp, how: str
) -> None:
    zombie = make_app(database_url)
    healthy, journal = make_app(database_url), Journal()
    let_go, hold = asyncio.Event(), asyncio.Event()

    @zombie.handler("work", retry=MANY)
    async def work_late() -> str:
        journal.start()
        await let_go.wait()
        journal.write("late")
        if how == "failure":
            raise ValueError("from the zombie")
        return "from the zombie"

    @healthy.handler("work", retry=MANY)
    async def work() -> str:
        journal.start()
        await hold.wait()
        return "from the living"

    async with working(zombie, dispatcher=False) as worker:
        handle = await zombie.enqueue("work")
        await until(lambda: journal.started(handle))
        await lose_lease(zombie, worker.session)
        async with working(healthy):
            await until(lambda: len(journal.starts()) == 2)
            let_go.set()  # the zombie reports while the next attempt runs
            await until(lambda: journal.of(handle, "late") and not worker.pool.busy)

            async def noted() -> bool:
                return (await healthy.store.runs.attempts(handle.id))[0].late_end is not None

            await until(noted)
            run = await healthy.store.runs.run(handle.id)
            assert (run.status, run.attempt, run.result) == (RunStatus.RUNNING, 2, None)
            hold.set()
            run = await handle.wait(10)
    assert (run.status, run.attempt, run.result) == (RunStatus.SUCCEEDED, 2, "from the living")
    assert [line.attempt for line in journal.starts()] == [1, 2]


async def test_promise_4_a_worker_trusts_its_own_clock_less_a_margin(
    database_url: str, make_app: MakeApp
) -> None:
    """Cut off, it has stopped its work by itself before the database's clock lets another begin."""
    cut_off = make_app(database_url, lease_ttl=3.0)
    healthy, journal = make_app(database_url, dispatcher={"recover_interval": 0.01}), Journal()

    @cut_off.handler("work", retry=MANY)
    async def work_forever() -> None:
        journal.start()
        try:
            await asyncio.sleep(60)
        finally:
            journal.end()

    @healthy.handler("work", retry=MANY)
    async def work() -> None:
        journal.start()

    async with working(cut_off, dispatcher=False):

        async def unreachable(*_: Any) -> None:
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


@pytest.mark.parametrize("slow", [0.5, 2.0], ids=["starts-before-the-answer", "never-starts"])
async def test_promise_7_after_a_cancel_is_acknowledged_no_attempt_starts(
    database_url: str, make_app: MakeApp, slow: float
) -> None:
    """The canceled run waits in a worker's hands behind a slow one, and the worker hears of no cancel."""
    app, elsewhere = make_app(database_url, max_concurrent_tasks=1), make_app(database_url)
    journal = Journal()
    acknowledged: dict[int, float] = {}

    @app.handler("work")
    async def work(seconds: float = 0.0) -> None:
        journal.start()
        await asyncio.sleep(seconds)

    async with working(app) as worker, elsewhere:

        async def deaf(*_: object) -> list[tuple[int, int]]:
            return []

        app.store.runs.cancel_requests = deaf  # type: ignore[method-assign]
        worker.couriers.pace = FixedPace(10)
        first = RunSpec(handler="work", payload={"seconds": slow}, priority=1)
        handles = await app.enqueue_many([first, *[RunSpec(handler="work")] * 4])
        await until(lambda: worker.pool.busy == 1 and len(worker.pool.ready) == 4)

        async def cancel(run_id: int) -> None:
            await elsewhere.runs.cancel(run_id)
            acknowledged[run_id] = asyncio.get_running_loop().time()

        await asyncio.gather(*[cancel(handle.id) for handle in handles[1:]])
        await all_ended(app, handles)
    for handle in handles[1:]:
        for line in journal.starts(handle.id):
            assert line.at < acknowledged[handle.id], "an attempt started after the cancel was acknowledged"


async def test_promise_10_limits_are_global(database_url: str, make_app: MakeApp) -> None:
    """Two workers with room for ten each; their handlers count."""
    journal = Journal()
    apps = [make_app(database_url, max_concurrent_tasks=10) for _ in range(2)]
    for app in apps:

        @app.handler("work")
        async def work() -> None:
            journal.start()
            await asyncio.sleep(0.03)
            journal.end()

    one, two = apps
    async with one:
        await one.queues.limit("narrow", QueueLimits(concurrency=3))
        handles = await one.enqueue_many([RunSpec(handler="work", queue="narrow")] * 60)
        async with working(one), working(two, dispatcher=False):
            runs = await all_ended(one, handles)
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert len(journal.starts()) == 60
    assert journal.most_at_once() == 3
