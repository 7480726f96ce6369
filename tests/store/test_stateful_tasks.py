"""A few tasks, random policies, and anything that can happen, in any order.

At each step: the invariants hold, no cap is passed, every due time has its row and none is invented. At the
end, when everything succeeds from then on, nothing is left that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import Connection, select

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.tables import runs
from fusee.errors import Conflict
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap, Policy
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.tables import fires, tasks
from tests.store.clockwork import MINUTE, Clockwork, spec
from tests.store.harness import broken_invariants

T = TypeVar("T")

POLICIES = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from([Overlap.ALLOW, Overlap.ALLOW, *Overlap]),
        "concurrency": st.sampled_from([Concurrency.QUEUE, Concurrency.QUEUE, *Concurrency]),
        "failure": st.sampled_from(FailureAction),
        "catch_up": st.sampled_from(CatchUp),
        "max_concurrency": st.sampled_from([1, 1, 2]),
        "queue_depth": st.sampled_from([1, 3]),
        "rate": st.sampled_from([None, None, 1 / 90]),
    }
)
SHAPES: dict[str, dict[str, Any]] = {
    "root": {"every": 60},
    "sharded": {"every": 60, "shards": 2},
    "same": {"cron": "* * * * *", "after": ("minutely",)},
    "minutely": {"cron": "* * * * *"},
    "mixed": {"every": 90, "after": ("root", "minutely"), "trigger_rule": TriggerRule.ALL_DONE},
    "follows": {"after": ("root", "sharded"), "trigger_rule": TriggerRule.ANY_SUCCESS},
}
UPSTREAM = ("root", "sharded", "minutely")
"""They wait for nobody."""


@dataclass
class Naive:
    """What is known of a task without asking for it: since when it fires, and when it was due."""

    since: int
    enabled: bool = True
    due: set[int] = field(default_factory=set)


class TasksInAnyOrder(RuleBasedStateMachine):
    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.loop = asyncio.Runner()
        self.works = self.do(Clockwork.in_memory())
        self.naive: dict[str, Naive] = {}
        for name in sorted(SHAPES, key=lambda name: len(SHAPES[name].get("after", ()))):
            self.define(name, data.draw(POLICIES, f"policies of {name}"))

    def do(self, work: Awaitable[T]) -> T:
        async def go() -> T:
            return await work

        return self.loop.run(go())

    def define(self, name: str, policies: dict[str, Any]) -> None:
        retry = RetryPolicy(max_attempts=2, base=30, jitter=0)
        made = spec(name, retry=retry, **SHAPES[name], **policies)
        if name in self.naive:
            self.do(self.works.store.tasks.steering.update_task(name, made, None))
        else:
            self.do(self.works.store.tasks.definitions.create_task(made))
            self.naive[name] = Naive(self.now)

    @property
    def now(self) -> int:
        return self.do(self.works.world.clock.now())

    def look(self, query: Any) -> list[Any]:
        read = self.works.store.database.read
        return list(self.do(read(lambda connection: connection.execute(query).all())))

    def some_run(self, data: st.DataObject, *statuses: str) -> int | None:
        ids = [row.id for row in self.look(select(runs.c.id, runs.c.status)) if row.status in statuses]
        return data.draw(st.sampled_from(ids), "run") if ids else None

    # -- what may happen

    @rule(seconds=st.sampled_from([1, 10, 30, 59, 60, 61, 125, 400]))
    def time_passes(self, seconds: int) -> None:
        self.do(self.works.world.clock.tick(seconds))

    @rule()
    def scan(self) -> None:
        before = {name for name, one in self.naive.items() if one.enabled}
        self.do(self.works.store.tasks.firing.fire_due())
        for name in before:
            self.account(name)

    @rule(seconds=st.sampled_from([20, 60, 90, 125]))
    def a_dispatcher_passes(self, seconds: int) -> None:
        self.do(self.works.world.clock.tick(seconds))
        self.aggregate(500)
        self.nothing_is_wrong()
        self.scan()

    @rule(limit=st.sampled_from([1, 500]))
    def aggregate(self, limit: int) -> None:
        self.do(self.works.store.aggregation.aggregate(limit))

    @rule(want=st.integers(1, 4))
    def claim(self, want: int) -> None:
        works = self.works
        self.do(works.store.ready_queue.promote())
        if mine := self.do(works.world.lane_ids(handler="work")):
            claimed = self.do(works.world.claim(works.session, want, lanes=mine))
            works.held |= {run.id: run for run in claimed}

    @rule(data=st.data())
    def a_worker_works(self, data: st.DataObject) -> None:
        self.claim(5)
        for run_id in sorted(self.works.held):
            end = data.draw(st.sampled_from([End.SUCCEEDED, End.FAILED, None]), "end")
            if end is not None:
                self.stop(run_id, end)

    @precondition(lambda self: self.works.held)
    @rule(
        data=st.data(),
        end=st.sampled_from([End.SUCCEEDED, End.SUCCEEDED, End.FAILED, End.ABANDONED, End.SKIPPED]),
    )
    def end(self, data: st.DataObject, end: End) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.works.held)), "run")
        self.stop(run_id, end)

    def stop(self, run_id: int, end: End) -> None:
        works = self.works
        run = works.held.pop(run_id)
        if end is End.SUCCEEDED:
            assert not self.do(works.world.finish(works.session, run))
        else:
            policy = RetryPolicy(max_attempts=2, base=30, jitter=0)
            assert not self.do(works.world.settle(works.session, run, end=end, policy=policy))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run_id = self.some_run(data, "blocked", "pending", "delayed", "running")
        if run_id is not None:
            self.do(self.works.store.runs.cancel(run_id, "no"))

    @rule()
    def workers_heed_cancels(self) -> None:
        for run_id, _ in self.do(
            self.works.store.runs.cancel_requests(self.works.session, list(self.works.held))
        ):
            self.stop(run_id, End.CANCELED)

    @rule(name=st.sampled_from(sorted(SHAPES)))
    def trigger(self, name: str) -> None:
        try:
            self.do(self.works.store.tasks.triggers.trigger(name))
        except Conflict:
            assert self.status(name) is TaskStatus.DISABLED

    @rule(
        name=st.sampled_from(sorted(SHAPES)),
        verb=st.sampled_from(["pause", "resume", "resume", "disable", "enable", "enable"]),
    )
    def steer(self, name: str, verb: str) -> None:
        try:
            self.do(self.works.store.tasks.steering.steer_task(name, verb))
        except Conflict:
            assert self.status(name) is TaskStatus.DISABLED
        if self.status(name) is TaskStatus.DISABLED:
            assert not self.waiting(name), f"{name} is disabled, and something of it waits"

    @rule(name=st.sampled_from(sorted(SHAPES)))
    def clear_queue(self, name: str) -> None:
        self.do(self.works.store.tasks.steering.clear_queue(name, "enough"))
        assert not self.waiting(name) & {"queue", "previous"}

    def status(self, name: str) -> TaskStatus:
        return self.do(self.works.task(name)).status

    def waiting(self, name: str) -> set[str]:
        """In which ways fires of this task wait."""
        query = select(fires.c.held).join(tasks, tasks.c.id == fires.c.task_id)
        return {row.held for row in self.look(query.where(tasks.c.name == name, fires.c.held.is_not(None)))}

    @rule(name=st.sampled_from(sorted(SHAPES)), policies=POLICIES)
    def edit(self, name: str, policies: dict[str, Any]) -> None:
        self.define(name, policies)

    @rule(name=st.sampled_from(sorted(SHAPES)), back=st.integers(1, 4), concurrency=st.integers(1, 2))
    def backfill(self, name: str, back: int, concurrency: int) -> None:
        begin = self.now - back * MINUTE
        try:
            self.do(self.works.store.tasks.backfills.start(name, begin, self.now, concurrency=concurrency))
        except Conflict:
            assert name == "follows" or self.status(name) is TaskStatus.DISABLED, "it has a schedule"

    # -- what must hold

    def account(self, name: str) -> None:
        """Whatever was due by now has been decided."""
        one, shape, now = self.naive[name], SHAPES[name], self.now
        if "every" in shape:
            row = self.do(self.works.task(name))
            every = shape["every"] * 1_000_000
            times = range(row.anchor + every, now + 1, every)
        elif "cron" in shape:
            times = range((one.since // MINUTE + 1) * MINUTE, now + 1, MINUTE)
        else:
            return
        one.due |= {time for time in times if time > one.since}

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "naive") or len(self.naive) < len(SHAPES):
            return
        assert self.do(self.works.store.database.read(broken_invariants)) == []
        for row in self.look(select(tasks.c.name, tasks.c.status, tasks.c.anchor)):
            one = self.naive[row.name]
            enabled = row.status == TaskStatus.ENABLED
            if one.enabled and not enabled:
                self.account(row.name)  # by a person, or by a failure: nothing that was due goes unrecorded
            if enabled and not one.enabled:
                one.since = row.anchor
            one.enabled = enabled
        self.every_due_time_has_its_row()
        self.no_cap_is_passed()

    def every_due_time_has_its_row(self) -> None:
        record: dict[str, dict[int, str]] = {name: {} for name in SHAPES}
        query = select(tasks.c.name, fires.c.fire_time, fires.c.cause).where(tasks.c.id == fires.c.task_id)
        for row in self.look(query):
            record[row.name][row.fire_time] = row.cause
        for name, one in self.naive.items():
            assert one.due <= record[name].keys(), (
                f"{name} leaves no row at {sorted(one.due - record[name].keys())}"
            )
            scheduled = {time for time, cause in record[name].items() if cause == "schedule"}
            assert scheduled <= one.due, f"{name} was not due at {sorted(scheduled - one.due)}"

    def no_cap_is_passed(self) -> None:
        for row in self.look(select(tasks.c.id, tasks.c.name)):
            policy = self.do(self.works.task(row.name)).spec.policy
            line, under_way = self.do(self.works.store.database.read(lambda c, id=row.id: _open(c, id)))  # type: ignore[misc]
            known = getattr(self, "widest", {}).get(row.name, 0)
            if _capped(policy):
                # An edit may have lowered it: what was under way by then goes on.
                assert under_way <= max(policy.max_concurrency, known), f"{row.name}: {under_way} under way"
            self.widest = {**getattr(self, "widest", {}), row.name: under_way}
            # A paused task also holds those whose upstreams have ended meanwhile.
            self.peak = {**getattr(self, "peak", {})}
            self.peak[row.name] = max(self.peak.get(row.name, 0), under_way)
            assert line <= max(policy.queue_depth, 3) + self.peak[row.name], f"{row.name}: {line} in line"

    # -- the end

    def teardown(self) -> None:
        try:
            if hasattr(self, "naive") and len(self.naive) == len(SHAPES):
                self.everything_ends()
        finally:
            if hasattr(self, "works"):
                self.do(self.works.world.close())
            if hasattr(self, "loop"):
                self.loop.close()

    def everything_ends(self) -> None:
        """From now on all goes well; first nothing waits for others any more, then nothing fires."""
        for name in SHAPES:
            self.do(self.works.store.tasks.steering.steer_task(name, "enable"))
            if name not in UPSTREAM:
                self.do(self.works.store.tasks.steering.steer_task(name, "pause"))
        for name in UPSTREAM:
            self.define(name, {})  # policies under which they run
        for _ in range(3):
            self.tick_in_peace(120)
            self.scan()
            self.drain()
        for name in UPSTREAM:
            self.do(self.works.store.tasks.steering.steer_task(name, "pause"))
        for name in SHAPES:
            self.do(self.works.store.tasks.steering.clear_queue(name, "a paused task holds its queue"))
        self.drain()
        left = self.look(select(runs.c.id, runs.c.status, runs.c.reason).where(runs.c.finished_at.is_(None)))
        assert not left, f"not ended: {left}"

    def drain(self) -> None:
        works = self.works
        for _ in range(100):
            self.do(works.react())
            self.workers_heed_cancels()
            self.claim(1000)
            for run_id in sorted(works.held):
                self.stop(run_id, End.SUCCEEDED)
            self.do(works.react())
            waiting = self.look(select(runs.c.status).where(runs.c.finished_at.is_(None)))
            if not any(row.status in ("pending", "running", "delayed") for row in waiting):
                return
            if any(row.status == "delayed" for row in waiting):
                self.tick_in_peace(600)
        raise AssertionError("it goes on and on")

    def tick_in_peace(self, seconds: float) -> None:
        self.nothing_is_wrong()
        self.do(self.works.world.clock.tick(seconds))


def _capped(policy: Policy) -> bool:
    return policy.overlap is not Overlap.PARALLEL and policy.concurrency is not Concurrency.PARALLEL


def _open(connection: Connection, task_id: int) -> tuple[int, int]:
    """(in line, under way) of a task's fires, backfills apart, as their runs tell."""
    query = (
        select(fires.c.fire_time, fires.c.held, runs.c.status)
        .join(runs, runs.c.id == fires.c.run_id)
        .where(fires.c.task_id == task_id, fires.c.backfill_id.is_(None))
    )
    going = [row for row in connection.execute(query) if RunStatus(row.status) not in TERMINAL]
    line = {row.fire_time for row in going if row.held in ("queue", "previous")}
    return len(line), len({row.fire_time for row in going} - line)


TestTasksInAnyOrder = TasksInAnyOrder.TestCase
TestTasksInAnyOrder.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
