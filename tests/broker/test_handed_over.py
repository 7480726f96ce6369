"""A worker that gave up its lease and has a new one releases its old runs before the old lease expires."""

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
from tests.broker.cluster import Cluster
from tests.chaos.inside import Seen, until

LONG = {"lease_ttl": 600.0, "heartbeat_interval_seconds": 1.0}
"""Nobody waits for this in a test: what comes back was handed over."""


async def test_runs_of_the_old_session_go_on_when_the_same_process_has_a_new_one(cluster: Cluster) -> None:
    async with cluster.start_worker("steady", **LONG) as node:
        old = node.worker.session
        handle = await cluster.app.enqueue("hang")
        await until(lambda: cluster.journal.started(handle))
        node.worker._expire()  # as its own clock says after a silence
        await until(lambda: len(cluster.journal.starts(handle.id)) == 2, 30)
        assert node.worker.session not in (None, old)
        cluster.let_go.set()
        (run,) = await cluster.ended(handle)
        known = {
            session.id: session for session in await cluster.app.store.sessions.sessions(all_states=True)
        }
        assert known[old].state is SessionState.ENDED
    assert run.status is RunStatus.SUCCEEDED
    # Not by the attempt's number: one that a slow worker hands back has a number and no start.
    assert [line.what for line in cluster.journal.of(handle)] == ["start", "end", "start", "end"]


async def state_of(cluster: Cluster, session: int | None) -> SessionState:
    (known,) = [s for s in await cluster.app.store.sessions.sessions(all_states=True) if s.id == session]
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
    cluster: Cluster, told_before: End | None
) -> None:
    """The new attempt would run beside it."""
    stopped = asyncio.Event()

    def add(app: Fusee) -> None:
        @app.handler("stubborn", retry=RetryPolicy(max_attempts=3, base=0.01))
        async def stubborn() -> None:
            cluster.journal.start()
            while len(cluster.journal.starts()) == 1 and not stopped.is_set():
                try:
                    await stopped.wait()
                except asyncio.CancelledError:
                    cluster.journal.write("told")
            cluster.journal.end()

    async with cluster.start_worker("steady", prepare=add, **LONG) as node:
        worker, old = node.worker, node.worker.session
        handle = await cluster.app.enqueue("stubborn", allow_unknown=True)
        await until(lambda: cluster.journal.started(handle))
        if told_before is not None:
            worker.pool.stop_all(told_before, time.monotonic())
        worker._expire()
        await until(lambda: worker.session not in (None, old), 30)
        await two_beats(worker)
        assert await state_of(cluster, old) is SessionState.ALIVE
        assert len(cluster.journal.starts(handle.id)) == 1
        stopped.set()
        (run,) = await cluster.ended(handle)
    assert run.status is RunStatus.SUCCEEDED
    told = [line.what for line in cluster.journal.of(handle) if line.what != "told"]
    assert told == ["start", "end", "start", "end"]


async def test_nothing_is_handed_over_while_a_thread_that_cannot_be_stopped_goes_on(cluster: Cluster) -> None:
    let_go = threading.Event()

    def add(app: Fusee) -> None:
        @app.handler("deaf", retry=RetryPolicy(max_attempts=3, base=0.01))
        def deaf() -> None:
            cluster.journal.start()
            try:
                let_go.wait()
            finally:
                cluster.journal.end()

    try:
        async with cluster.start_worker("steady", prepare=add, **LONG) as node:
            worker, old = node.worker, node.worker.session
            stuck = Seen(node.app.bus, RunStuck)
            handle = await cluster.app.enqueue("deaf", allow_unknown=True)
            await until(lambda: cluster.journal.started(handle))
            worker._expire()
            await until(lambda: stuck.events and not worker.pool.slots, 30)
            await until(lambda: worker.session not in (None, old), 30)
            await two_beats(worker)
            assert await state_of(cluster, old) is SessionState.ALIVE
            assert len(cluster.journal.starts(handle.id)) == 1
            let_go.set()
            (run,) = await cluster.ended(handle)
            assert await state_of(cluster, old) is SessionState.ENDED
    finally:
        let_go.set()
    assert run.status is RunStatus.SUCCEEDED
    assert [line.what for line in cluster.journal.of(handle)] == ["start", "end", "start", "end"]
