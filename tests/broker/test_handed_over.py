"""A worker that lost trust in its lease and comes back: what it ran goes on before the old lease is over."""

from __future__ import annotations

import asyncio

from fusee import Fusee, RetryPolicy
from fusee.model import RunStatus, SessionState
from tests.broker.fabric import Fabric
from tests.chaos.inside import until

LONG = {"lease_ttl": 600.0, "heartbeat_interval_seconds": 1.0}
"""Nobody waits for this in a test: what comes back was handed over."""


async def test_runs_of_the_old_session_go_on_when_the_same_process_has_a_new_one(fabric: Fabric) -> None:
    async with fabric.hire("steady", **LONG) as hired:
        old = hired.worker.session
        handle = await fabric.app.enqueue("hang")
        await until(lambda: fabric.journal.started(handle))
        hired.worker._expire()  # as its own clock says after a silence
        await until(lambda: len(fabric.journal.starts(handle.id)) == 2, 30)
        assert hired.worker.session not in (None, old)
        fabric.let_go.set()
        (run,) = await fabric.ended(handle)
        known = {session.id: session for session in await fabric.app.store.sessions(all_states=True)}
        assert known[old].state is SessionState.ENDED
    assert run.status is RunStatus.SUCCEEDED
    # Not by the attempt's number: one that a slow worker hands back has a number and no start.
    assert [line.what for line in fabric.journal.of(handle)] == ["start", "end", "start", "end"]


async def test_nothing_is_handed_over_while_an_old_attempt_still_runs(fabric: Fabric) -> None:
    """The new attempt would run beside it."""
    stopped = asyncio.Event()

    def add(app: Fusee) -> None:
        @app.handler("stubborn", retry=RetryPolicy(max_attempts=3, base=0.01))
        async def stubborn() -> None:
            fabric.journal.start()
            while len(fabric.journal.starts()) == 1 and not stopped.is_set():
                try:
                    await stopped.wait()
                except asyncio.CancelledError:
                    fabric.journal.write("told")
            fabric.journal.end()

    async with fabric.hire("steady", prepare=add, **LONG) as hired:
        worker, old = hired.worker, hired.worker.session
        handle = await fabric.app.enqueue("stubborn", allow_unknown=True)
        await until(lambda: fabric.journal.started(handle))
        worker._expire()
        await until(lambda: worker.session not in (None, old), 30)
        # A run that is made now ends in the new session, several looks later nothing has been handed over.
        await fabric.ended(await fabric.app.enqueue("work"))
        known = {session.id: session for session in await fabric.app.store.sessions(all_states=True)}
        assert known[old].state is SessionState.ALIVE
        stopped.set()
        (run,) = await fabric.ended(handle)
    assert run.status is RunStatus.SUCCEEDED
    told = [line.what for line in fabric.journal.of(handle) if line.what != "told"]
    assert told == ["start", "end", "start", "end"]
