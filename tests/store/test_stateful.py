"""Three sessions do anything in any order; after each step the store is what a naive model says it is."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from fusee.clock import ManualClock
from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.callbacks import Fate, KnownCallback, token_digest
from fusee.engine.store.contract import Finished, Order, Settlement
from fusee.engine.store.tables import callbacks, metadata, runs, sessions
from fusee.errors import Conflict, LeaseLost
from fusee.stores import open_store
from tests.store.harness import START, broken_invariants

T = TypeVar("T")
TTL = 30.0
LIVE = ("alive", "draining")


@dataclass
class NaiveCall:
    """A service may answer for an attempt."""

    timeout: int
    deadline: int | None = None
    used: bool = False
    kept: Ended | None = None


@dataclass
class NaiveRun:
    priority: int
    due: int
    policy: RetryPolicy
    status: str
    attempt: int = 0
    spent: int = 0
    session: int | None = None
    cancel: bool = False
    calls: dict[int, NaiveCall] = field(default_factory=dict)

    @property
    def call(self) -> NaiveCall | None:
        return self.calls.get(self.attempt)


@dataclass
class NaiveSession:
    expires: int
    state: str = "alive"


class AnythingInAnyOrder(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.loop = asyncio.Runner()
        self.clock = ManualClock(START)
        self.store = open_store("sqlite://", clock=self.clock)
        self.do(self.store.open())
        self.do(self.store.database.write(metadata.create_all))
        self.runs: dict[int, NaiveRun] = {}
        self.sessions: dict[int, NaiveSession] = {}
        self.receipts = itertools.count(1)
        for _ in range(3):
            self.open_session()

    def do(self, work: Awaitable[T]) -> T:
        async def go() -> T:
            return await work

        return self.loop.run(go())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.do(self.store.close())
            self.loop.close()

    @property
    def now(self) -> int:
        return self.clock.now_us()

    def some_session(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.sessions)[-4:]), "session")

    def some_run(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.runs)), "run")

    # -- what may happen

    @precondition(lambda self: sum(s.state in LIVE for s in self.sessions.values()) < 3)
    @rule()
    def open_session(self) -> None:
        info = WorkerInfo(
            name="w", host="h", pid=1, version="1", capacity=1, executors=(), handlers=(), queues=()
        )
        session = self.do(self.store.sessions.open_session(info, TTL))
        self.sessions[session] = NaiveSession(self.now + round(TTL * 1e6))

    @rule(
        priority=st.integers(-1, 1),
        delay=st.sampled_from([0, 0, 0, 5, 40]),
        attempts=st.integers(1, 3),
        count=st.integers(1, 3),
    )
    def enqueue(self, priority: int, delay: int, attempts: int, count: int) -> None:
        policy = RetryPolicy(max_attempts=attempts, base=7, jitter=0)
        spec = RunSpec(handler="work", priority=priority, delay=delay, retry=policy)
        status = "delayed" if delay else "pending"
        for run in self.do(self.store.run_writer.enqueue([spec] * count)):
            self.runs[run.id] = NaiveRun(priority, self.now + delay * 1_000_000, policy, status)

    @rule(data=st.data(), want=st.integers(1, 4))
    def claim(self, data: st.DataObject, want: int) -> None:
        session = self.some_session(data)
        order = Order(want, list(self.store.lane_map.lanes), next(self.receipts))
        claimed = self.do(self.store.claims.exchange(session, Finished(), order)).claimed
        waiting = sorted((-r.priority, r.due, i) for i, r in self.runs.items() if r.status == "pending")
        due = [i for _, _, i in waiting[:want]] if self.sessions[session].state == "alive" else []
        assert [run.id for run in claimed] == due
        for run in claimed:
            naive = self.runs[run.id]
            naive.status, naive.session = "running", session
            naive.attempt += 1
            assert (run.attempt, run.spent) == (naive.attempt, naive.spent)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), behind=st.sampled_from([0, 0, 0, 1]), right=st.sampled_from([True, True, False]))
    def finish(self, data: st.DataObject, behind: int, right: bool) -> None:
        run_id = self.some_run(data)
        run = self.runs[run_id]
        session = run.session if right and run.session is not None else self.some_session(data)
        attempt = run.attempt - behind
        assume(run.call is None)  # a call that a service answers for never just succeeds
        finished = Finished()
        finished.add(run_id, attempt, None)
        refused = self.do(self.store.claims.exchange(session, finished, Order())).refused
        mine = (session, attempt) == (run.session, run.attempt)
        if mine and run.status == "running":
            run.status = "succeeded"
        assert refused == ([] if mine and run.status == "succeeded" else [(run_id, attempt)])

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        end=st.sampled_from(End),
        behind=st.sampled_from([0, 0, 0, 1]),
        right=st.sampled_from([True, True, False]),
    )
    def settle(self, data: st.DataObject, end: End, behind: int, right: bool) -> None:
        run_id = self.some_run(data)
        run = self.runs[run_id]
        session = run.session if right and run.session is not None else self.some_session(data)
        attempt = run.attempt - behind
        assume(run.call is None or end is not End.SUCCEEDED)
        ended = Ended(end, effect=Effect.UNKNOWN)
        verdict = decide(ended, run.policy, run.spent)
        refused = self.do(self.store.outcomes.settle(session, [Settlement(run_id, attempt, ended, verdict)]))
        mine = (session, attempt) == (run.session, run.attempt)
        assert refused == ([] if mine else [(run_id, attempt)])
        if mine and run.status == "running":
            self.judge(run, ended)

    def judge(self, run: NaiveRun, ended: Ended) -> None:
        call = run.call
        if call is not None and call.kept is not None:
            ended, call.kept = call.kept, None
        verdict = decide(ended, run.policy, run.spent)
        run.status = str(verdict.status)
        run.spent += verdict.counted
        if verdict.status is RunStatus.DELAYED and not run.cancel:
            run.due = self.now + round(verdict.delay * 1e6)
        if run.cancel and verdict.status not in TERMINAL:
            run.status = "canceled"
        if ended.end is End.LOST:
            run.session = None
        if call is not None:
            call.deadline = self.now + call.timeout if run.status == "waiting" else None

    @precondition(lambda self: any(r.status == "running" for r in self.runs.values()))
    @rule(data=st.data(), timeout=st.sampled_from([3, 15, 100]), right=st.sampled_from([True, True, False]))
    def open_call(self, data: st.DataObject, timeout: int, right: bool) -> None:
        running = sorted(i for i, r in self.runs.items() if r.status == "running" and r.call is None)
        assume(running)
        run_id = data.draw(st.sampled_from(running), "run")
        run = self.runs[run_id]
        session = run.session if right and run.session is not None else self.some_session(data)
        opening = self.store.callbacks.open_callback(
            session,
            run_id,
            run.attempt,
            token_digest(f"{run_id}/{run.attempt}"),
            timeout=timeout,
            signed=False,
        )
        if session != run.session:
            with pytest.raises(LeaseLost):
                self.do(opening)
            return
        self.do(opening)
        run.calls[run.attempt] = NaiveCall(timeout * 1_000_000)

    @precondition(lambda self: any(r.calls for r in self.runs.values()))
    @rule(data=st.data(), end=st.sampled_from([End.SUCCEEDED, End.FAILED, End.ABANDONED]))
    def answer(self, data: st.DataObject, end: End) -> None:
        called = sorted((i, attempt) for i, r in self.runs.items() for attempt in r.calls)
        run_id, attempt = data.draw(st.sampled_from(called), "call")
        run, call = self.runs[run_id], self.runs[run_id].calls[attempt]
        known = self.do(self.store.callbacks.known_callback(run_id, token_digest(f"{run_id}/{attempt}")))
        assert known == KnownCallback(run_id, attempt, signed=False)
        ended = Ended(end, effect=Effect.UNKNOWN)
        answered = self.do(self.store.callbacks.answer(known, ended))
        if call.used:
            assert answered.fate is Fate.REPEATED
        elif attempt != run.attempt or run.status not in ("running", "waiting"):
            assert answered.fate is Fate.LATE
        elif run.status == "running":
            assert answered.fate is Fate.KEPT
            call.used, call.kept = True, ended
        else:
            assert answered.fate is Fate.APPLIED
            call.used = True
            self.judge(run, ended)
        assert answered.status == run.status

    @rule()
    def expire(self) -> None:
        expired = self.do(self.store.callbacks.expire(limit=10_000))
        due = [i for i, r in self.runs.items() if r.call and r.call.deadline and r.call.deadline <= self.now]
        for run_id in due:
            self.judge(self.runs[run_id], Ended(End.TIMED_OUT))
        assert sorted((one.run_id, str(one.status)) for one in expired) == [
            (run_id, self.runs[run_id].status) for run_id in sorted(due)
        ]

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = self.some_run(data)
        run = self.runs[run_id]
        if run.status in TERMINAL - {RunStatus.CANCELED}:
            with pytest.raises(Conflict):
                self.do(self.store.runs.cancel(run_id, "no"))
            return
        answer = self.do(self.store.runs.cancel(run_id, "no"))
        run.cancel = True
        if run.status != "running":
            run.status = "canceled"
            if run.call is not None:
                run.call.deadline = None
        assert answer == run.status

    @rule(seconds=st.sampled_from([1, 5, 10, 20]))
    def time_passes(self, seconds: int) -> None:
        self.clock.tick(seconds=seconds)

    @rule(data=st.data(), verb=st.sampled_from(["renew", "renew", "drain", "end"]))
    def a_session_speaks(self, data: st.DataObject, verb: str) -> None:
        session = self.some_session(data)
        naive = self.sessions[session]
        match verb:
            case "renew":
                call = self.store.sessions.renew(session, TTL, 0)
            case "drain":
                call = self.store.sessions.drain_session(session)
            case _:
                call = self.store.sessions.end_session(session)
        if naive.state not in LIVE:
            with pytest.raises(LeaseLost):
                self.do(call)
            return
        self.do(call)
        match verb:
            case "renew":
                naive.expires = self.now + round(TTL * 1e6)
            case "drain":
                naive.state = "draining"
            case _:
                naive.state = "ended"

    @rule()
    def recover(self) -> None:
        recovered = self.do(self.store.recovery.recover(limit=10_000))
        taken = [i for i, s in self.sessions.items() if s.state in LIVE and s.expires < self.now]
        for session in taken:
            self.sessions[session].state = "lost"
        assert sorted(session for session, _ in recovered.sessions) == taken
        back: Counter[str] = Counter()
        for run in self.runs.values():
            if run.status == "running" and self.sessions[run.session or 0].state not in LIVE:
                self.judge(run, Ended(End.LOST))
                back[run.status] += 1
        told = {"pending": recovered.requeued, "failed": recovered.failed, "canceled": recovered.canceled}
        # What a service had answered for may also have succeeded, or wait for its next attempt.
        assert told == {status: back[status] for status in told}

    @rule(limit=st.integers(1, 5))
    def promote(self, limit: int) -> None:
        promoted = self.do(self.store.ready_queue.promote(limit))
        delayed = sorted((r.due, i) for i, r in self.runs.items() if r.status == "delayed")
        due = [i for at, i in delayed if at <= self.now][:limit]
        for run_id in due:
            self.runs[run_id].status = "pending"
        left = [at for at, i in delayed if i not in due]
        next_in = max(0.0, (left[0] - self.now) / 1e6) if left else None
        assert (promoted.count, promoted.next_in) == (len(due), next_in)

    # -- what must hold

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return

        def look(connection):  # type: ignore[no-untyped-def]
            columns = (
                runs.c.id,
                runs.c.status,
                runs.c.attempt,
                runs.c.spent,
                runs.c.session_id,
                runs.c.due_at,
            )
            seen = {row[0]: tuple(row[1:]) for row in connection.execute(select(*columns))}
            states = {row.id: row.state for row in connection.execute(select(sessions))}
            calls = {
                (row.run_id, row.attempt): (row.deadline, row.used_at is not None, row.outcome is not None)
                for row in connection.execute(select(callbacks))
            }
            return broken_invariants(connection), seen, states, calls

        wrong, seen, states, calls = self.do(self.store.database.read(look))
        assert wrong == []
        assert seen == {i: (r.status, r.attempt, r.spent, r.session, r.due) for i, r in self.runs.items()}
        assert states == {i: s.state for i, s in self.sessions.items()}
        assert calls == {
            (i, attempt): (call.deadline, call.used, call.kept is not None)
            for i, r in self.runs.items()
            for attempt, call in r.calls.items()
        }


TestAnythingInAnyOrder = AnythingInAnyOrder.TestCase
TestAnythingInAnyOrder.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
