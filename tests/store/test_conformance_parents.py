"""Runs that start a workflow and wait for its end: neither outlives the other unnoticed."""

from __future__ import annotations

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.tables import tickets
from fusee.errors import Conflict, LeaseLost
from fusee.workflows.store.queries import WorkflowRunFilter
from fusee.workflows.store.start import MOST_NESTED, ParentRun
from tests.store.flows import ONCE, Flow, leftovers, node, notices, workflow
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Asking:
    """A run whose attempt has started a workflow of two nodes."""

    def __init__(self, claimed: Claimed, flow: Flow) -> None:
        self.claimed = claimed
        self.flow = flow
        self.world = flow.world

    @classmethod
    async def begin(cls, world: World, *nodes: object) -> Asking:
        await world.store.workflows.definitions.create_workflow(workflow(node("a"), node("b", "a")))
        session = await world.session(ttl=36_000)
        claimed = await world.enqueue_and_claim(session, handler="fusee.workflow")
        started = await world.store.workflows.starts.start_workflow(
            "nightly", parent=ParentRun(claimed.id, claimed.attempt)
        )
        return cls(claimed, Flow(world, session, started.id))

    async def wait(self) -> None:
        await self.world.settle(self.flow.session, self.claimed, end=End.ACCEPTED)
        await self.flow.drain()

    async def through(self, end: End = End.SUCCEEDED) -> None:
        await self.flow.claim()
        await self.flow.finish("a")
        await self.flow.claim()
        if end is End.SUCCEEDED:
            await self.flow.finish("b")
        else:
            await self.flow.end("b", end=end)

    async def status(self) -> str:
        return str((await self.world.run(self.claimed.id)).status)


async def test_a_run_waits_for_the_workflow_it_started_and_ends_with_it(world: World) -> None:
    asking = await Asking.begin(world)
    await asking.wait()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.reason) == ("waiting", f"waits for workflow run {asking.flow.id}")
    await asking.through()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.effect) == ("succeeded", "applied")
    assert run.result == {"workflow_run_id": asking.flow.id, "status": "succeeded"}
    assert set((await leftovers(world)).values()) == {0}


async def test_a_failed_workflow_fails_the_run_for_good(world: World) -> None:
    asking = await Asking.begin(world)
    await asking.wait()
    await asking.through(End.FAILED)
    run = await world.run(asking.claimed.id)
    assert (run.status, run.reason) == ("failed", f"workflow run {asking.flow.id} failed")
    assert run.error == f"workflow run {asking.flow.id} failed: node b failed"
    assert run.result["status"] == "failed"


async def test_a_workflow_that_ends_first_is_noticed_when_the_run_waits(world: World) -> None:
    asking = await Asking.begin(world)
    await asking.through()
    assert await asking.status() == "running"
    assert ("parent", asking.claimed.id) in await notices(world)  # looked at again, and not in a circle
    await asking.wait()
    assert await asking.status() == "succeeded" and await notices(world) == []


async def test_an_attempt_that_is_repeated_finds_the_same_workflow_run(world: World) -> None:
    asking = await Asking.begin(world)
    await world.settle(asking.flow.session, asking.claimed, end=End.FAILED)  # it never said that it waits
    await asking.flow.drain()
    await world.clock.tick(3600)
    await world.store.ready_queue.promote()
    lanes = await world.lane_ids(handler="fusee.workflow")
    (again,) = await world.claim(asking.flow.session, lanes=lanes)
    with pytest.raises(LeaseLost):  # the first attempt comes late
        await world.store.workflows.starts.start_workflow(
            "nightly", parent=ParentRun(again.id, again.attempt - 1)
        )
    started = await world.store.workflows.starts.start_workflow(
        "nightly", parent=ParentRun(again.id, again.attempt)
    )
    assert started == (asking.flow.id, False)
    asking.claimed = again
    await asking.wait()
    await asking.through()
    assert await asking.status() == "succeeded"


async def test_an_attempt_that_was_told_to_stop_starts_nothing(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    session = await world.session()
    claimed = await world.enqueue_and_claim(session, handler="fusee.workflow")
    await world.store.runs.cancel(claimed.id, "enough")
    with pytest.raises(LeaseLost, match="told to stop"):
        await world.store.workflows.starts.start_workflow(
            "nightly", parent=ParentRun(claimed.id, claimed.attempt)
        )
    assert await world.store.workflows.queries.workflow_runs(WorkflowRunFilter()) == []


@pytest.mark.parametrize("when", ["waiting", "running", "between attempts"])
async def test_canceling_the_run_cancels_the_workflow_it_started(world: World, when: str) -> None:
    asking = await Asking.begin(world)
    if when == "waiting":
        await asking.wait()
    if when == "between attempts":
        await world.settle(asking.flow.session, asking.claimed, end=End.FAILED)
        await asking.flow.drain()
    await world.store.runs.cancel(asking.claimed.id, "enough")
    if when == "running":
        await asking.flow.drain()
        assert (await asking.flow.look()).status == "running"  # its attempt may still say that it waits
        await asking.wait()
    await asking.flow.drain()
    assert await asking.status() == "canceled"
    run = await asking.flow.look()
    assert (run.status, run.canceled) == ("canceled", 2)
    assert run.reason == f"run {asking.claimed.id}, which started it, ended canceled"
    assert set((await leftovers(world)).values()) == {0}


async def test_a_run_that_fails_after_all_takes_its_workflow_with_it(world: World) -> None:
    asking = await Asking.begin(world)
    await world.settle(asking.flow.session, asking.claimed, end=End.TIMED_OUT, policy=ONCE)
    await asking.flow.drain()
    assert (await asking.flow.look()).status == "canceled"


async def test_canceling_the_workflow_cancels_the_run_that_waits(world: World) -> None:
    asking = await Asking.begin(world)
    await asking.wait()
    await world.store.workflows.cancels.cancel_workflow_run(asking.flow.id, "enough")
    await asking.flow.drain()
    run = await world.run(asking.claimed.id)
    assert (run.status, run.reason) == ("canceled", f"workflow run {asking.flow.id} was canceled")


async def test_a_run_that_waits_takes_no_place_in_its_queue(world: World) -> None:
    """Its nodes may be in the same queue, and would wait for it as it waits for them."""
    await world.store.queues.set_limits("default", QueueLimits(concurrency=1))
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    session = await world.session(ttl=36_000)
    await world.enqueue(handler="fusee.workflow")
    (claimed,) = await world.claim_limited(session)
    started = await world.store.workflows.starts.start_workflow(
        "nightly", parent=ParentRun(claimed.id, claimed.attempt)
    )
    assert await world.claim_limited(session) == []
    await world.settle(session, claimed, end=End.ACCEPTED)
    while await world.store.aggregation.aggregate():
        pass
    assert await world.rows(tickets) == []
    (inner,) = await world.claim_limited(session)
    await world.settle(session, inner, end=End.SUCCEEDED)
    while await world.store.aggregation.aggregate():
        pass
    assert (await world.store.workflows.queries.workflow_run(started.id)).status == "succeeded"
    assert (await world.run(claimed.id)).status == "succeeded"


async def test_a_node_may_be_a_workflow(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("x"), name="inner"))
    await world.store.workflows.definitions.create_workflow(
        workflow(node("in", workflow="inner"), node("after", "in"))
    )
    session = await world.session(ttl=36_000)
    outer = Flow(world, session, (await world.store.workflows.starts.start_workflow("nightly")).id)
    await outer.claim()
    (held,) = outer.held.values()
    started = await world.store.workflows.starts.start_workflow(
        "inner", parent=ParentRun(held.id, held.attempt)
    )
    await world.settle(session, *await outer._take(["in"]), end=End.ACCEPTED)
    inner = Flow(world, session, started.id)
    assert await inner.claim() == ["x"]
    await inner.finish("x")
    assert (await outer.nodes())["in"] == "succeeded"
    assert await outer.claim() == ["after"]


async def test_workflows_do_not_start_each_other_without_end(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("again", workflow="nightly")))
    session = await world.session(ttl=36_000)
    await world.store.workflows.starts.start_workflow("nightly")
    deep = 0
    while True:
        claimed = await world.claim_one(session)
        try:
            await world.store.workflows.starts.start_workflow(
                "nightly", parent=ParentRun(claimed.id, claimed.attempt)
            )
        except Conflict as error:
            assert "does one start itself" in str(error)
            break
        await world.settle(session, claimed, end=End.ACCEPTED)
        deep += 1
    assert deep == MOST_NESTED
    await world.settle(session, claimed, end=End.ABANDONED, policy=RetryPolicy())
    while await world.store.aggregation.aggregate():
        pass
    listed = await world.store.workflows.queries.workflow_runs(WorkflowRunFilter(limit=100))
    assert {str(run.status) for run in listed} == {"failed"}  # all the way up
