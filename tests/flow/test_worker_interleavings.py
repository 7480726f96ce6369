"""Rare orders of events: a commit later than its lost answer, a session that changes in the middle of a trip.

The store is the real one. What is made up is when its answers arrive, and whether they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from fusee import Fusee, current_run
from fusee.engine.model.outcome import End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Order
from fusee.engine.store.tables import lanes
from fusee.engine.worker.claims import LostClaims
from fusee.engine.worker.couriers import MOST_A_TRIP
from fusee.errors import StoreUnavailable
from fusee.events import RunRefused, SessionStarted
from fusee.runs.handle import RunHandle
from tests.chaos.inside import Journal, Seen, all_ended, make_app, part_with, until, working


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fusee.db"


def interpose(app: Fusee, name: str, around: Callable[..., Awaitable[Any]]) -> None:
    """`around(real, *arguments)` is called in place of that method of the store."""
    part = part_with(app.store, name)
    real = getattr(part, name)
    setattr(part, name, lambda *arguments: around(real, *arguments))


@dataclass
class Reports:
    """Under which session each attempt's end was told to the store."""

    told: list[tuple[int, int, int]] = field(default_factory=list)

    def follow(self, app: Fusee) -> None:
        async def exchange(real: Any, session: int, finished: Any, order: Any) -> Any:
            self.told += [(session, *end) for end in zip(finished.ids, finished.attempts, strict=True)]
            return await real(session, finished, order)

        async def settle(real: Any, session: int, settlements: Any) -> Any:
            self.told += [(session, s.run_id, s.attempt) for s in settlements]
            return await real(session, settlements)

        interpose(app, "exchange", exchange)
        interpose(app, "settle", settle)

    def sessions_of(self, run: Any, attempt: int) -> set[int]:
        return {session for session, *end in self.told if end == [int(run), attempt]}


# --- a claim that commits after its connection was lost ----------------------------------------------


@pytest.mark.parametrize("looks", [1, 7], ids=["after-one-look", "after-seven-looks"])
@pytest.mark.parametrize("claim", ["exchange", "claim_limited"])
async def test_a_claim_that_commits_after_the_worker_looked_is_handed_back_at_a_renewal(
    database_url: str, claim: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the lease could end, and by this worker: a dispatcher would count the attempt as lost."""
    monkeypatch.setattr("fusee.engine.worker.couriers.LostClaims", lambda _lease_ttl: LostClaims(0.1))
    app, journal = make_app(database_url, lease_ttl=60, heartbeat_interval_seconds=0.05), Journal()
    under_way: list[tuple[Any, ...]] = []
    committed = asyncio.Event()
    seen: list[str] = []

    @app.handler("work")
    async def work() -> None:
        journal.start()

    async def lose(real: Any, session: int, what: Any, order: Order) -> Any:
        if not under_way and order.want:
            under_way.append((session, what, order))
            raise StoreUnavailable("the connection was lost; the server goes on with the statement")
        if under_way and not committed.is_set():
            order = replace(order, want=0)  # the statement under way holds the lock: others pass over it
        return await real(session, what, order)

    async def look_too_early(real: Any, session: int) -> Any:
        answer = await real(session)
        seen.append("look")
        if seen.count("look") == looks and not committed.is_set():
            late = await claim_for_real(*under_way[0])
            assert len(getattr(late, "claimed", late)) == 1
            seen.append("commit")
            committed.set()
        return answer

    async def renew(real: Any, *arguments: Any) -> None:
        await real(*arguments)
        seen.append("renewal")

    async with app:
        if claim == "claim_limited":
            await app.queues.limit("default", QueueLimits(concurrency=1))
        handle = await app.enqueue("work")
        claim_for_real = getattr(part_with(app.store, claim), claim)
        interpose(app, claim, lose)
        interpose(app, "owned", look_too_early)
        interpose(app, "renew", renew)
        async with working(app):
            (run,) = await all_ended(app, [handle], 30)
    assert committed.is_set()
    assert (run.status, run.attempt, run.spent) == (RunStatus.SUCCEEDED, 2, 0)
    assert [line.attempt for line in journal.starts(handle.id)] == [2]
    after = seen[seen.index("commit") :]
    assert after.index("renewal") < after.index("look"), "it was a renewal that made the worker look again"


# --- outcomes belong to the session they were reached in ---------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["succeeds", "fails"])
async def test_a_report_that_failed_while_the_session_changed_is_not_made_again_under_the_new_one(
    database_url: str, end: str
) -> None:
    app = make_app(database_url, lease_ttl=3.0)
    journal, reports, refused = Journal(), Reports(), Seen(app.bus, RunRefused)
    sessions: list[int] = []
    app.bus.subscribe(SessionStarted, lambda event: sessions.append(event.session))
    held = asyncio.Event()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        if current_run().attempt == 1 and end == "fails":
            raise RuntimeError("no luck")

    async def hold(real: Any, session: int, outcomes: Any, *rest: Any) -> Any:
        if len(outcomes) and not held.is_set():
            held.set()
            await until(lambda: len(sessions) == 2, what="the next session")
            raise StoreUnavailable("the report never arrived")
        return await real(session, outcomes, *rest)

    async def cut_off(real: Any, session: int, *rest: Any) -> None:
        if held.is_set() and session == sessions[0]:
            raise StoreUnavailable("cut off by the test")
        await real(session, *rest)

    async with working(app):
        interpose(app, "exchange" if end == "succeeds" else "settle", hold)
        interpose(app, "renew", cut_off)
        reports.follow(app)
        handle = await app.enqueue("work")
        (run,) = await all_ended(app, [handle])
        (first,) = await app.store.runs.attempts(handle.id)
    assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 2)
    assert reports.sessions_of(handle, 1) == {sessions[0]}
    assert reports.sessions_of(handle, 2) == {sessions[1]}
    assert (first.attempt, first.end) == (1, End.LOST)
    assert not refused.events, "the fence was not even asked"


async def test_what_had_ended_when_the_lease_was_lost_is_kept_as_stale(database_url: str) -> None:
    app = make_app(database_url, lease_ttl=3.0)
    journal, reports, refused = Journal(), Reports(), Seen(app.bus, RunRefused)
    sessions: list[int] = []
    app.bus.subscribe(SessionStarted, lambda event: sessions.append(event.session))

    @app.handler("work")
    async def work() -> None:
        journal.start()

    async def refuse_reports(real: Any, session: int, finished: Any, order: Any) -> Any:
        if len(finished) and session == sessions[0]:
            raise StoreUnavailable("cut off by the test")
        return await real(session, finished, order)

    async def refuse_renewals(real: Any, session: int, *rest: Any) -> None:
        if journal.starts() and session == sessions[0]:
            raise StoreUnavailable("cut off by the test")
        await real(session, *rest)

    async def after_the_recovery(real: Any, *arguments: Any) -> int:
        await until(lambda: app.store.runs.attempts(handle.id), what="the recovery of the old session's run")
        session: int = await real(*arguments)
        return session

    async with working(app):
        interpose(app, "exchange", refuse_reports)
        interpose(app, "renew", refuse_renewals)
        interpose(app, "open_session", after_the_recovery)
        reports.follow(app)
        handle = await app.enqueue("work")
        (run,) = await all_ended(app, [handle])

        async def noted() -> bool:
            return (await app.store.runs.attempts(handle.id))[0].late_end is not None

        await until(noted, what="the note of what came too late")
        (first,) = await app.store.runs.attempts(handle.id)
    assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 2)
    assert (first.attempt, first.end, first.late_end) == (1, End.LOST, "succeeded")
    assert reports.sessions_of(handle, 1) == {sessions[0]}
    assert not refused.events, "the fence was not even asked"


async def test_a_trip_begun_under_the_old_session_leaves_the_new_ones_outcomes_alone(url: str) -> None:
    """One courier asks for new lanes while its session is lost and the next one's first run ends."""
    app = make_app(url, lease_ttl=3.0)
    journal, reports, refused = Journal(), Reports(), Seen(app.bus, RunRefused)
    sessions: list[int] = []
    app.bus.subscribe(SessionStarted, lambda event: sessions.append(event.session))
    asked, answered = asyncio.Event(), asyncio.Event()
    started, end = asyncio.Event(), asyncio.Event()
    parked = asyncio.Event()

    @app.handler("work")
    async def work() -> None:
        journal.start()
        started.set()
        await end.wait()

    async def hold_the_first(real: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await answered.wait()
        return await real()

    async def cut_off(real: Any, session: int, *rest: Any) -> None:
        if session == sessions[0]:
            raise StoreUnavailable("cut off by the test")
        await real(session, *rest)

    async def park_the_other(real: Any, *arguments: Any) -> Any:
        if started.is_set() and not parked.is_set():
            parked.set()
            await answered.wait()
        return await real(*arguments)

    async with app:
        interpose(app, "renew", cut_off)
        interpose(app, "exchange", park_the_other)
        reports.follow(app)
        async with working(app) as worker:
            interpose(app, "read_new_lanes", hold_the_first)
            await asked.wait()
            await until(lambda: len(sessions) == 2, what="the next session")
            handle = await app.enqueue("work")  # the first lane of all: nothing was claimed before
            await parked.wait()
            end.set()
            await until(lambda: worker.pool.outcomes.finished.ids == [handle.id], what="its outcome")
            answered.set()
            (run,) = await all_ended(app, [handle])
    assert (run.status, run.attempt) == (RunStatus.SUCCEEDED, 1)
    assert reports.sessions_of(handle, 1) == {sessions[1]}
    assert not refused.events


# --- while an answer is missing, nothing new ---------------------------------------------------------


async def test_while_an_answer_is_missing_nothing_is_taken_from_queues_with_limits(database_url: str) -> None:
    """It would be found among what we own, but not in our hands as they were: handed back while it runs."""
    app, journal = make_app(database_url, max_concurrent_tasks=8, lease_ttl=60), Journal()
    lost, let_go = asyncio.Event(), asyncio.Event()
    narrow: list[RunHandle] = []
    took: list[bool] = []
    seen: list[str] = []

    @app.handler("work")
    async def work() -> None:
        journal.start()
        await let_go.wait()

    async def lose_one(real: Any, session: int, finished: Any, order: Any) -> Any:
        answer = await real(session, finished, order)
        if answer.claimed and not lost.is_set():
            lost.set()
            seen.append("lost")
            raise StoreUnavailable("the answer was lost on its way")
        return answer

    async def meanwhile(real: Any, session: int) -> Any:
        """New work comes, and with it the other courier, while this one asks."""
        seen.append("asked")
        if not narrow:
            narrow.extend(await app.enqueue_each("work", [None] * 4, queue="narrow"))
            took.append(await worker.couriers.claim_limited(session))
        answer = await real(session)
        seen.append("answered")
        return answer

    async def claim_limited(real: Any, *arguments: Any) -> Any:
        seen.append("limited")
        return await real(*arguments)

    async with app:
        await app.queues.limit("narrow", QueueLimits(concurrency=4))
        async with working(app) as worker:
            interpose(app, "exchange", lose_one)
            interpose(app, "owned", meanwhile)
            interpose(app, "claim_limited", claim_limited)
            free = await app.enqueue("work")
            await until(lambda: len(journal.starts()) >= 5, what="the start of all")
            let_go.set()
            runs = await all_ended(app, [free, *narrow])
    assert took == [False]
    assert seen[seen.index("lost") : seen.index("answered")] == ["lost", "asked"]
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert sorted(line.run for line in journal.starts()) == sorted(run.id for run in runs)


async def test_an_answer_lost_between_two_queues_with_limits_ends_the_round(database_url: str) -> None:
    """One courier has claimed from the first queue when the other one's answer turns out to be lost."""
    # Enough room for a whole trip of the one, and for queues with limits beside it.
    app, journal = make_app(database_url, max_concurrent_tasks=2 * MOST_A_TRIP, lease_ttl=60), Journal()
    under_way, between, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @app.handler("work")
    async def work() -> None:
        journal.start()

    async def lose_the_first(real: Any, *arguments: Any) -> Any:
        first = not under_way.is_set()
        under_way.set()
        answer = await real(*arguments)
        if first:
            assert len(answer.claimed) == 1
            await between.wait()
            seen.append("lost")
            lost.set()
            raise StoreUnavailable("the answer was lost on its way")
        return answer

    async def one_after_the_other(real: Any, session: int, queue: str, order: Any) -> Any:
        seen.append(queue)
        answer = await real(session, queue, order)
        between.set()
        await lost.wait()
        return answer

    async def look(real: Any, session: int) -> Any:
        answer = await real(session)
        seen.append("looked")
        return answer

    async with app:
        for queue in ("first", "second"):
            await app.queues.limit(queue, QueueLimits(concurrency=4))
        handles = [await app.enqueue("work", queue=queue) for queue in ("first", "second", "default")]
        interpose(app, "exchange", lose_the_first)
        interpose(app, "claim_limited", one_after_the_other)
        interpose(app, "owned", look)
        async with working(app):
            runs = await all_ended(app, handles)
    assert seen[: seen.index("looked")] == ["first", "lost"]
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert sorted(line.run for line in journal.starts()) == sorted(run.id for run in runs)


async def test_runs_of_a_lane_that_the_worker_could_not_read_yet_are_not_lost(url: str) -> None:
    """A dispatcher gave them to it, having read that lane before; when the worker wants to read it, the store
    does not answer."""
    app, other = make_app(url), make_app(url)
    refused: list[str] = []

    @app.handler("known")
    async def known() -> str:
        return "known"

    @app.handler("new")
    async def new() -> str:
        return "new"

    async def read_new_lanes(real: Any) -> Any:
        if not refused and len(app.store.lane_map.lanes) < await other.store.database.read(_count_lanes):
            refused.append("refused")
            raise StoreUnavailable("no answer")
        return await real()

    async with app, other, working(app, dispatcher=False):
        dispatching = asyncio.create_task(other.dispatcher().run())
        try:
            await other.store.queues.set_strategy("default", "round_robin")
            first = await other.enqueue("known", allow_unknown=True)
            assert await first.result(20) == "known"
            interpose(app, "read_new_lanes", read_new_lanes)
            second = await other.enqueue("new", allow_unknown=True)
            assert await second.result(20) == "new"
            assert refused
        finally:
            dispatching.cancel()
            await asyncio.gather(dispatching, return_exceptions=True)


def _count_lanes(connection: Connection) -> int:
    count: int = connection.execute(select(func.count()).select_from(lanes)).scalar_one()
    return count
