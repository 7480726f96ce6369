"""One worker is asked to leave by command: it goes as with SIGTERM, and everything it had is done."""

from __future__ import annotations

import asyncio
import time

import pytest

from fusee import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus, SessionState
from tests.chaos.inside import FixedPace, Journal, all_ended, make_app, until, working

pytestmark = pytest.mark.heavy


async def test_a_worker_leaves_by_command_and_another_does_the_rest(database_url: str) -> None:
    one, two, journal = make_app(database_url, worker_id="one"), make_app(database_url), Journal()
    let_go = asyncio.Event()
    for app in (one, two):

        @app.handler("work")
        async def work() -> None:
            journal.start()
            await let_go.wait()
            journal.end()

    async with one, two:
        async with working(one) as leaving:
            leaving.couriers.pace = FixedPace(10)
            specs = [RunSpec(handler="work", retry=RetryPolicy(max_attempts=1))] * 40
            handles = await one.enqueue_many(specs)
            await until(lambda: leaving.pool.busy == 32)
            asked = time.monotonic()
            await two.workers.drain("one")
            await until(lambda: leaving.drained, 5)
            assert time.monotonic() - asked < 2.0
            async with working(two, dispatcher=False):
                await until(lambda: len({line.run for line in journal.starts()}) == 40)
                assert leaving.pool.busy == 32, "what runs goes on"
                let_go.set()
                runs = await all_ended(one, handles)
                left = await two.workers.wait_until_down([await two.workers.get("one")], 10)
        assert not left
        states = {session.info.name: session.state for session in await two.workers.list(all_states=True)}
    assert states["one"] is SessionState.ENDED
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert {run.spent for run in runs} == {0}, "no attempt was burnt"
    assert not journal.started_twice


async def test_what_outlasts_the_drain_is_handed_back_unspent(database_url: str) -> None:
    app = make_app(database_url, worker_id="one", drain_timeout=0.2, grace=0.1)

    @app.handler("work")
    async def work() -> None:
        await asyncio.sleep(600)

    async with app, working(app) as leaving:
        handle = await app.enqueue("work", retry=RetryPolicy(max_attempts=2))
        await until(lambda: leaving.pool.busy == 1)
        asked = await app.workers.drain("one")
        assert not await app.workers.wait_until_down(asked, 10)
        run = await app.store.runs.run(handle.id)
    assert (run.status, run.spent) == (RunStatus.PENDING, 0)


async def test_a_worker_that_lost_its_session_meanwhile_leaves_all_the_same(database_url: str) -> None:
    """The wish is the worker's, not that of one session: it survives a lost lease."""
    app = make_app(database_url, worker_id="one")
    async with app, working(app) as leaving:
        first = leaving.session
        assert first is not None
        heed, leaving.work_source.drain_asked = leaving.work_source.drain_asked, _nobody  # type: ignore[method-assign]
        await app.workers.drain("one")
        leaving._expire()
        await until(lambda: leaving.session not in (None, first))
        leaving.work_source.drain_asked = heed  # type: ignore[method-assign]
        await until(lambda: leaving.drained)


async def _nobody(session_ids: object) -> bool:
    return False
