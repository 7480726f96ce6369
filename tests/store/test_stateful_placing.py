"""Workers come, go, die and drain in any order while runs are given to them: nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import func, select

from fusee.clock import ManualClock
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.queue import QueueLimits, Strategy
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import TERMINAL
from fusee.engine.store.contract import Finished, Order
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.tables import assigned, metadata, runs
from fusee.errors import Conflict, LeaseLost
from fusee.stores import open_store
from tests.store.harness import START, broken_invariants, finished_of, settlement

T = TypeVar("T")
TTL = 30.0
CPU = 3.0
UNFINISHED = select(func.count()).select_from(runs).where(runs.c.finished_at.is_(None))
PATIENT = RetryPolicy(max_attempts=1000, base=1, jitter=0)


class WorkersComeAndGo(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.loop = asyncio.Runner()
        self.clock = ManualClock(START)
        self.store = open_store("sqlite://", clock=self.clock)
        self.do(self.store.open())
        self.do(self.store.database.write(metadata.create_all))
        self.live: dict[int, list[Claimed]] = {}
        self.receipts = itertools.count(1)
        self.names = itertools.cycle("abcd")
        self.accepted = 0
        self.come()

    def do(self, work: Awaitable[T]) -> T:
        async def go() -> T:
            return await work

        return self.loop.run(go())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.finish_everything()
            self.do(self.store.close())
            self.loop.close()

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.live)), "session")

    # -- what may happen

    @precondition(lambda self: len(self.live) < 3)
    @rule()
    def come(self) -> None:
        info = WorkerInfo(
            name=next(self.names),
            host="h",
            pid=1,
            version="1",
            capacity=3,
            executors=("python",),
            handlers=("work",),
            queues=("*",),
            cpu=CPU,
        )
        self.live[self.do(self.store.sessions.open_session(info, TTL))] = []

    @rule(
        strategy=st.sampled_from([s for s in Strategy if s is not Strategy.SHARED]),
        cpu=st.sampled_from([None, 1.0, 2.0]),
        priority=st.integers(-1, 1),
        count=st.integers(1, 5),
    )
    def enqueue(self, strategy: str, cpu: float | None, priority: int, count: int) -> None:
        spec = RunSpec(handler="work", strategy=str(strategy), cpu=cpu, priority=priority, retry=PATIENT)
        self.do(self.store.run_writer.enqueue([spec] * count))
        self.accepted += count

    @rule(strategy=st.sampled_from([None, "round_robin", "affinity"]), count=st.integers(0, 3))
    def change_the_queue(self, strategy: str | None, count: int) -> None:
        self.do(self.store.queues.set_strategy("default", strategy))
        if count:
            self.do(self.store.run_writer.enqueue([RunSpec(handler="work", retry=PATIENT)] * count))
            self.accepted += count

    @rule(concurrency=st.sampled_from([None, 1, 3]))
    def limit(self, concurrency: int | None) -> None:
        self.do(self.store.queues.set_limits("default", QueueLimits(concurrency=concurrency)))

    @rule()
    def assign(self) -> None:
        self.do(self.store.assignments.assign())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), want=st.integers(1, 4))
    def claim(self, data: st.DataObject, want: int) -> None:
        """As a worker does: its own lane, or that and the shared ones; within limits where there are some."""
        session = self.some(data)
        self.do(self.store.queues.read_limits())
        limits = self.store.lane_map.limits.get("default")
        if limits is not None and limits.limited:
            order = Order(want, [], next(self.receipts))
            self.live[session] += self.do(
                self.store.assigned_claims.claim_assigned(session, ["default"], order)
            )
            return
        order = Order(want, [*self._free_lanes(), own_lane(session)], next(self.receipts))
        self.live[session] += self.do(self.store.claims.exchange(session, Finished(), order)).claimed

    def _free_lanes(self) -> list[int]:
        known = self.store.lane_map
        return [n for n, lane in known.lanes.items() if known.strategy_of(lane) == Strategy.SHARED]

    @precondition(lambda self: any(self.live.values()))
    @rule(data=st.data(), end=st.sampled_from([End.SUCCEEDED, End.SUCCEEDED, End.FAILED, End.RETURNED]))
    def end(self, data: st.DataObject, end: End) -> None:
        session = data.draw(st.sampled_from(sorted(s for s, held in self.live.items() if held)), "session")
        self._end(session, self.live[session].pop(), end)

    def _end(self, session: int, run: Claimed, end: End) -> None:
        if end is End.SUCCEEDED and not run.ticket:
            self.do(self.store.claims.exchange(session, finished_of([run]), Order()))
        else:
            effect = Effect.NONE if end is End.RETURNED else Effect.APPLIED
            self.do(self.store.outcomes.settle(session, [settlement(run, end, PATIENT, effect=effect)]))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = data.draw(st.integers(1, self.accepted), "run")
        try:
            self.do(self.store.runs.cancel(run_id, "no"))
        except Conflict:
            pass

    @precondition(lambda self: self.live)
    @rule(data=st.data(), goes=st.booleans())
    def drain(self, data: st.DataObject, goes: bool) -> None:
        session = self.some(data)
        self.do(self.store.sessions.drain_session(session))
        if goes:
            for run in self.live.pop(session):
                self._end(session, run, End.SUCCEEDED)
            self.do(self.store.sessions.end_session(session))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Without a word; nobody knows until its lease is over."""
        self.live.pop(self.some(data))

    @rule(seconds=st.sampled_from([1, 9, 31]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.clock.tick(seconds=min(10, seconds))
            for session in list(self.live):
                try:
                    self.do(self.store.sessions.renew(session, TTL, len(self.live[session])))
                except LeaseLost:
                    del self.live[session]
        self.do(self.store.recovery.recover())
        self.do(self.store.ready_queue.promote())

    # -- what must hold

    @invariant()
    def the_store_is_sound(self) -> None:
        if hasattr(self, "store"):
            assert not self.do(self.store.database.read(broken_invariants))

    @invariant()
    def nobody_is_given_more_cpu_than_it_has(self) -> None:
        if hasattr(self, "store"):
            over = select(assigned.c.session_id).group_by(assigned.c.session_id)
            over = over.having(func.sum(assigned.c.cpu) > CPU)
            assert not self.do(self.store.database.read(lambda c: c.execute(over).all()))

    def finish_everything(self) -> None:
        """Whatever happened: with workers that stay, every run comes to its end."""
        for session in list(self.live):
            for run in self.live.pop(session):
                self._end(session, run, End.SUCCEEDED)
            self.do(self.store.sessions.end_session(session))
        self.do(self.store.queues.set_limits("default", QueueLimits()))
        self.do(self.store.lanes.read_new_lanes())
        for _ in range(2):
            self.come()
        for _ in range(400):
            self.clock.tick(seconds=5)
            for session in self.live:
                self.do(self.store.sessions.renew(session, TTL, 0))
            self.do(self.store.recovery.recover())
            self.do(self.store.ready_queue.promote())
            self.do(self.store.assignments.assign())
            for session in self.live:
                order = Order(50, [*self._free_lanes(), own_lane(session)], next(self.receipts))
                for run in self.do(self.store.claims.exchange(session, Finished(), order)).claimed:
                    self._end(session, run, End.SUCCEEDED)
            if not self.do(self.store.database.read(lambda c: c.execute(UNFINISHED).scalar_one())):
                break
        listed = self.do(self.store.runs.runs(RunFilter(limit=1000)))
        assert {run.status for run in listed} <= TERMINAL, [run for run in listed if not run.ended]
        assert not self.do(self.store.database.read(broken_invariants))


WorkersComeAndGo.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWorkersComeAndGo = WorkersComeAndGo.TestCase
