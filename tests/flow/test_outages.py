"""What an outage of the database costs, and what it does not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fusee import RetryPolicy
from fusee.engine.model.states import RunStatus
from fusee.events import SessionExpired
from tests.chaos.inside import Journal, Seen, all_ended, make_app, until, working
from tests.chaos.silence import proxied

LEASE = 12.0


@pytest.mark.parametrize("engine", ["postgres", "mysql"])
async def test_an_outage_shorter_than_the_lease_costs_nothing_at_the_worst_moment(
    engine: str, request: pytest.FixtureRequest
) -> None:
    """It begins with a renewal, so that the last one that succeeded is as old as it can be."""
    direct: str = request.getfixturevalue(f"{engine}_url")
    journal, let_go = Journal(), asyncio.Event()
    async with proxied(direct) as (proxy, url):
        app, outside = make_app(url, lease_ttl=LEASE, heartbeat_interval_seconds=4.0), make_app(direct)
        seen = Seen(app.bus, SessionExpired)

        @app.handler("hang", retry=RetryPolicy(max_attempts=1))
        async def hang() -> str:
            journal.start()
            await let_go.wait()
            return "kept"

        async with outside:
            dispatcher = outside.dispatcher()  # it looks for dead sessions all the while
            dispatching = asyncio.create_task(dispatcher.run())
            async with working(app, dispatcher=False) as worker:
                held = await outside.enqueue("hang")
                await until(lambda: journal.started(held), 30)
                session, silent = worker.session, asyncio.Event()
                renew = app.store.sessions.renew

                async def renewing(*args: Any) -> None:
                    if not silent.is_set():
                        proxy.flowing.clear()
                        asyncio.get_running_loop().call_later(0.8 * LEASE, proxy.flowing.set)
                        silent.set()
                    await renew(*args)

                app.store.sessions.renew = renewing  # type: ignore[method-assign]
                await asyncio.wait_for(silent.wait(), 30)
                let_go.set()  # it ends while nobody can be told
                (run,) = await all_ended(outside, [held], 60)
                assert worker.session == session
            dispatcher.stop()
            await dispatching
    assert (run.status, run.attempt, run.result) == (RunStatus.SUCCEEDED, 1, "kept")
    assert not seen.events


async def test_a_process_that_stands_still_for_less_than_its_lease_keeps_it(database_url: str) -> None:
    """As when it is stopped or its machine is moved; the worst moment is that of a renewal."""
    app, journal, let_go = make_app(database_url, lease_ttl=LEASE), Journal(), asyncio.Event()
    seen = Seen(app.bus, SessionExpired)

    @app.handler("hang", retry=RetryPolicy(max_attempts=1))
    async def hang() -> None:
        journal.start()
        await let_go.wait()

    async with working(app) as worker:
        held = await app.enqueue("hang")
        await until(lambda: journal.started(held), 30)
        session, stood_still, renew = worker.session, asyncio.Event(), app.store.sessions.renew

        async def renewing(*args: Any) -> None:
            if not stood_still.is_set():
                time.sleep(0.8 * LEASE)  # noqa: ASYNC251  the whole process, with its event loop
                stood_still.set()
            await renew(*args)

        app.store.sessions.renew = renewing  # type: ignore[method-assign]
        await asyncio.wait_for(stood_still.wait(), 60)
        let_go.set()
        (run,) = await all_ended(app, [held], 60)
        assert worker.session == session
    assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 1)
    assert not seen.events
