"""A worker that lost trust in its lease and comes back: what it ran goes on before the old lease is over."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fusee import Fusee, RetryPolicy
from fusee.engine.model.outcome import End
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.worker.worker import Worker
from fusee.events import RunStuck
from tests.broker.fabric import Fabric
from tests.chaos.inside import Seen, until

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


async def state_of(fabric: Fabric, session: int | None) -> SessionState:
    (known,) = [s for s in await fabric.app.store.sessions(all_states=True) if s.id == session]
    return known.state


async def two_beats(worker: Worker) -> None:
    """The worker looks once, from its beginning to its end, whether it can hand over what it ran."""
    real, beats = worker.work_source.renew, 0

    async def renew(session: int, ttl: float, running: int) -> None:
        nonlocal beats
        beats += 1
        await real(session, ttl, running)

    worker.work_source.renew = renew  # type: ignore[method-assign]
    await until(lambda: beats >= 2, 30)


@pytest.mark.parametrize("told_before", [None, End.TIMED_OUT, End.CANCELED])
async def test_nothing_is_handed_over_while_an_old_attempt_still_runs(
    fabric: Fabric, told_before: End | None
) -> None:
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
        if told_before is not None:
            worker.pool.stop_all(told_before, time.monotonic())
        worker._expire()
        await until(lambda: worker.session not in (None, old), 30)
        await two_beats(worker)
        assert await state_of(fabric, old) is SessionState.ALIVE
        assert len(fabric.journal.starts(handle.id)) == 1
        stopped.set()
        (run,) = await fabric.ended(handle)
    assert run.status is RunStatus.SUCCEEDED
    told = [line.what for line in fabric.journal.of(handle) if line.what != "told"]
    assert told == ["start", "end", "start", "end"]


async def test_nothing_is_handed_over_while_a_thread_that_cannot_be_stopped_goes_on(fabric: Fabric) -> None:
    let_go = threading.Event()

    def add(app: Fusee) -> None:
        @app.handler("deaf", retry=RetryPolicy(max_attempts=3, base=0.01))
        def deaf() -> None:
            fabric.journal.start()
            try:
                let_go.wait()
            finally:
                fabric.journal.end()

    try:
        async with fabric.hire("steady", prepare=add, **LONG) as hired:
            worker, old = hired.worker, hired.worker.session
            stuck = Seen(hired.app.bus, RunStuck)
            handle = await fabric.app.enqueue("deaf", allow_unknown=True)
            await until(lambda: fabric.journal.started(handle))
            worker._expire()
            await until(lambda: stuck.events and not worker.pool.slots, 30)
            await until(lambda: worker.session not in (None, old), 30)
            await two_beats(worker)
            assert await state_of(fabric, old) is SessionState.ALIVE
            assert len(fabric.journal.starts(handle.id)) == 1
            let_go.set()
            (run,) = await fabric.ended(handle)
            assert await state_of(fabric, old) is SessionState.ENDED
    finally:
        let_go.set()
    assert run.status is RunStatus.SUCCEEDED
    assert [line.what for line in fabric.journal.of(handle)] == ["start", "end", "start", "end"]
