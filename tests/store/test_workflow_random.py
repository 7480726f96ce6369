"""Any graph, any rules, any ends, in any order: every node ends as the rules say."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from fusee.clock import ManualClock
from fusee.engine.model.gate import GateState, TriggerRule, judge
from fusee.engine.model.outcome import End
from fusee.engine.model.run import Claimed
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order
from fusee.engine.store.tables import metadata, outbox
from fusee.errors import Conflict
from fusee.stores import Store, open_store
from fusee.workflows.model.workflow_run import workflow_status
from tests.store.flows import ONCE, node, workflow
from tests.store.harness import broken_invariants, settlement

ENDS = {
    End.SUCCEEDED: RunStatus.SUCCEEDED,
    End.FAILED: RunStatus.FAILED,
    End.TIMED_OUT: RunStatus.TIMED_OUT,
    End.SKIPPED: RunStatus.SKIPPED,
}


@dataclass(frozen=True)
class Plan:
    """A graph whose nodes are after earlier ones, and how each ends should it run."""

    after: list[list[int]]
    rules: list[TriggerRule]
    ends: list[End]
    seed: int
    cancel_at: int | None

    def expected(self) -> list[RunStatus]:
        """By the rules alone, without a database."""
        stands: list[RunStatus] = []
        for upstreams, rule, end in zip(self.after, self.rules, self.ends, strict=True):
            good = sum(stands[up] is RunStatus.SUCCEEDED for up in upstreams)
            runs = not upstreams or judge(rule, len(upstreams), good, len(upstreams)) is GateState.OPEN
            stands.append(ENDS[end] if runs else RunStatus.SKIPPED)
        return stands


@st.composite
def plans(draw: st.DrawFn, *, cancel: bool) -> Plan:
    size = draw(st.integers(1, 9))
    after = [sorted(draw(st.sets(st.integers(0, n - 1), max_size=4))) if n else [] for n in range(size)]
    many = {"min_size": size, "max_size": size}
    return Plan(
        after,
        draw(st.lists(st.sampled_from(TriggerRule), **many)),
        draw(st.lists(st.sampled_from([End.SUCCEEDED, End.SUCCEEDED, *ENDS]), **many)),
        draw(st.integers(0, 2**32)),
        draw(st.integers(0, 2 * size)) if cancel else None,
    )


class Drive:
    """Executes a plan with a worker, an aggregator that takes a few notices at a time, and chance."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self.store = store
        self.plan = plan
        self.chance = random.Random(plan.seed)
        self.held: list[Claimed] = []
        self.receipt = 0
        self.started: set[int] = set()
        """Positions of nodes that were claimed."""

    async def run(self) -> None:
        nodes = [
            node(f"n{place}", *(f"n{up}" for up in upstreams), rule=rule)
            for place, (upstreams, rule) in enumerate(zip(self.plan.after, self.plan.rules, strict=True))
        ]
        await self.store.workflows.definitions.create_workflow(workflow(*nodes))
        self.id = (await self.store.workflows.starts.start_workflow("nightly")).id
        page = await self.store.workflows.queries.workflow_graph(self.id)
        self.place = {one.run_id: one.position for one in page.nodes}
        info = WorkerInfo(
            name="w", host="h", pid=1, version="1", capacity=9, executors=("python",), handlers=("work",),
            queues=("default",), region="", labels={}, policies={},
        )  # fmt: skip
        self.session = await self.store.sessions.open_session(info, 3600)
        idle = step = 0
        while idle < 3:
            if self.plan.cancel_at == step:
                await self.store.workflows.cancels.cancel_workflow_run(self.id, "enough")
                self.before_cancel = set(self.started)
            did = [await action() for action in self.chance.sample([self.claim, self.finish, self.count], 3)]
            idle = 0 if any(did) or (self.plan.cancel_at or 0) > step else idle + 1
            step += 1

    async def claim(self) -> bool:
        self.receipt += 1
        order = Order(self.chance.randint(1, 3), list(self.store.lane_map.lanes), self.receipt)
        claimed = (await self.store.claims.exchange(self.session, Finished(), order)).claimed
        self.held += claimed
        self.started |= {self.place[run.id] for run in claimed}
        return bool(claimed)

    async def finish(self) -> bool:
        if not self.held:
            return False
        run = self.held.pop(self.chance.randrange(len(self.held)))
        end = self.plan.ends[self.place[run.id]]
        if end is End.SUCCEEDED:
            finished = Finished()
            finished.add(run.id, run.attempt, None, run.receipt, run.kind)
            await self.store.claims.exchange(self.session, finished, Order())
        else:
            await self.store.outcomes.settle(self.session, [settlement(run, end, ONCE)])
        if self.chance.random() < 0.3:  # and someone says it again
            again = insert(outbox).values(kind="workflow", run_id=run.id)
            await self.store.database.write(lambda connection: connection.execute(again).close())
        return True

    async def count(self) -> bool:
        return bool(await self.store.aggregation.aggregate(limit=self.chance.randint(1, 3)))


async def driven(plan: Plan) -> tuple[Drive, list[RunStatus]]:
    store = open_store("sqlite://", clock=ManualClock())
    await store.open()
    try:
        await store.database.write(metadata.create_all)
        drive = Drive(store, plan)
        await drive.run()
        stands = [one.status for one in (await store.workflows.queries.workflow_graph(drive.id)).nodes]
        run = await store.workflows.queries.workflow_run(drive.id)
        counts = Counter(stands)
        counted = {
            "total": len(stands),
            "ended": len(stands),
            "succeeded": counts[RunStatus.SUCCEEDED],
            "skipped": counts[RunStatus.SKIPPED],
            "canceled": counts[RunStatus.CANCELED],
        }
        assert {name: getattr(run, name) for name in counted} == counted
        canceled = run.cancel_requested_at is not None
        assert run.status is workflow_status(**counted, cancel_requested=canceled) and run.over
        assert await store.database.read(broken_invariants) == []
        return drive, stands
    finally:
        await store.close()


unhurried = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


@given(plans(cancel=False))
@unhurried
def test_every_node_ends_as_the_rules_say(plan: Plan) -> None:
    _, stands = asyncio.run(driven(plan))
    assert stands == plan.expected()


@given(plans(cancel=True))
@unhurried
def test_a_cancel_at_any_moment_ends_everything_and_lets_nothing_start(plan: Plan) -> None:
    drive, stands = asyncio.run(driven_or_over(plan))
    if drive is None:
        return
    assert drive.started == drive.before_cancel
    for place, status in enumerate(stands):
        if place in drive.started:
            assert status in (ENDS[drive.plan.ends[place]], RunStatus.CANCELED)
        else:
            assert status in (RunStatus.CANCELED, RunStatus.SKIPPED)


async def driven_or_over(plan: Plan) -> tuple[Drive | None, list[RunStatus]]:
    """Nothing, when the cancel came after the end."""
    try:
        return await driven(plan)
    except Conflict as late:
        assert "there is nothing to cancel" in str(late)
        return None, []
