"""Workflows: started as one, unblocked by completion, ended by a total function of their nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.engine.model.outcome import End
from fusee.engine.store.tables import outbox
from fusee.errors import Conflict, Invalid, NotFound
from fusee.tasks.model.task import TaskSpec
from fusee.workflows.model.workflow import WorkflowSpec
from fusee.workflows.store.definitions import WorkflowFilter
from fusee.workflows.store.queries import WorkflowRunFilter
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows
from tests.store.flows import DIAMOND, NOTHING, ONCE, Flow, leftovers, node, workflow
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


# --- definitions -------------------------------------------------------------------------------------


async def test_a_definition_comes_back_as_it_was_written(world: World) -> None:
    spec = workflow(*DIAMOND, day="2026-11-15")
    made = await world.store.workflows.definitions.create_workflow(spec)
    found = await world.store.workflows.definitions.workflow("nightly")
    assert found == made and found.spec == spec
    assert (found.version, found.nodes) == (1, 4)


async def test_a_name_is_taken_once_in_each_namespace(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    with pytest.raises(Conflict, match="'nightly' already"):
        await world.store.workflows.definitions.create_workflow(workflow(node("b")))
    other = world.store.for_namespace("tenant")
    await other.workflows.definitions.create_workflow(workflow(node("c")))
    assert [n.name for n in (await other.workflows.definitions.workflow("nightly")).spec.nodes] == ["c"]


async def test_an_edit_names_the_version_it_was_made_on(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    changed = await world.store.workflows.definitions.update_workflow(
        "nightly", workflow(node("a"), node("b")), 1
    )
    assert (changed.version, changed.nodes) == (2, 2)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await world.store.workflows.definitions.update_workflow("nightly", workflow(node("c")), 1)
    with pytest.raises(Conflict, match="keeps its name"):
        await world.store.workflows.definitions.update_workflow("nightly", workflow(node("c"), name="other"))


async def test_of_two_edits_of_one_version_one_is_refused(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    edits = [
        world.store.workflows.definitions.update_workflow("nightly", workflow(node("a"), node(f"b{n}")), 1)
        for n in range(2)
    ]
    done = await asyncio.gather(*edits, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Workflow"]


async def test_the_same_definition_again_is_no_new_version(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(*DIAMOND))
    assert (
        await world.store.workflows.definitions.update_workflow("nightly", workflow(*DIAMOND))
    ).version == 1


async def test_a_deleted_workflow_starts_no_more_and_frees_its_name(world: World) -> None:
    flow = await Flow.start(world, node("a"))
    with pytest.raises(Conflict, match="at version 1, not 7"):
        await world.store.workflows.definitions.delete_workflow("nightly", 7)
    await world.store.workflows.definitions.delete_workflow("nightly", 1)
    with pytest.raises(NotFound):
        await world.store.workflows.starts.start_workflow("nightly")
    assert (await flow.look()).workflow == "nightly"  # what was started goes on
    await world.store.workflows.definitions.create_workflow(workflow(node("b")))


async def test_workflows_are_listed_by_name_without_their_nodes(world: World) -> None:
    for name in ("b", "a", "c-1", "c-2"):
        await world.store.workflows.definitions.create_workflow(workflow(node("x"), name=name))
    assert [w.name for w in await world.store.workflows.definitions.workflows(WorkflowFilter(limit=2))] == [
        "a",
        "b",
    ]
    assert [w.name for w in await world.store.workflows.definitions.workflows(WorkflowFilter(after="b"))] == [
        "c-1",
        "c-2",
    ]
    assert [
        w.name for w in await world.store.workflows.definitions.workflows(WorkflowFilter(prefix="c-"))
    ] == ["c-1", "c-2"]


# --- starting ----------------------------------------------------------------------------------------


async def test_a_start_makes_every_run_at_once_and_only_the_first_may_be_claimed(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    assert await flow.nodes() == {
        "extract": "pending",
        "clean": "blocked",
        "check": "blocked",
        "load": "blocked",
    }
    reasons = await flow.reasons()
    assert reasons["load"] == "waits for 2 upstream nodes" and reasons["clean"] == "waits for 1 upstream node"
    run = await flow.look()
    assert (run.status, run.total, run.ended, run.version) == ("running", 4, 0, 1)
    assert await flow.claim() == ["extract"]


async def test_payloads_are_filled_in_with_parameters(world: World) -> None:
    payload = {
        "day": "{{param.day}}",
        "text": "day {{ param.day }} of {{node}}",
        "run": "{{workflow_run_id}}",
        "later": "{{run_id}}",
    }
    spec = workflow(node("a", payload=payload), day=None)
    await world.store.workflows.definitions.create_workflow(spec)
    started = await world.store.workflows.starts.start_workflow("nightly", {"day": 15})
    (found,) = (await world.store.workflows.queries.workflow_graph(started.id)).nodes
    run = await world.run(found.run_id)
    assert run.payload == {"day": 15, "text": "day 15 of a", "run": started.id, "later": "{{run_id}}"}
    assert (await world.store.workflows.queries.workflow_run(started.id)).params == {"day": 15}


async def test_a_start_without_what_is_required_is_refused(world: World) -> None:
    spec = WorkflowSpec.from_dict(
        {"name": "nightly", "params": {"day": {}}, "nodes": [{"name": "a", "handler": "work"}]}
    )
    await world.store.workflows.definitions.create_workflow(spec)
    with pytest.raises(Invalid, match="day must be given"):
        await world.store.workflows.starts.start_workflow("nightly")
    with pytest.raises(Invalid, match="no parameter 'dya'; did you mean 'day'"):
        await world.store.workflows.starts.start_workflow("nightly", {"dya": 1})
    assert await world.tally() == {}


async def test_a_node_runs_what_its_task_runs(world: World) -> None:
    await world.store.tasks.definitions.create_task(
        TaskSpec(
            name="tidy",
            handler="sweep",
            payload={"room": 1, "wet": True},
            queue="home",
            priority=7,
            timeout=9,
        )
    )
    await world.store.workflows.definitions.create_workflow(
        workflow(node("a", task="tidy", payload={"room": "{{param.n}}"}), n=4)
    )
    started = await world.store.workflows.starts.start_workflow("nightly")
    (found,) = (await world.store.workflows.queries.workflow_graph(started.id)).nodes
    run = await world.run(found.run_id)
    assert (run.handler, run.queue, run.priority, run.timeout) == ("sweep", "home", 7, 9)
    assert run.payload == {"room": 4, "wet": True}
    await world.store.tasks.steering.steer_task("tidy", "delete")
    with pytest.raises(Conflict, match="runs task 'tidy', which is not there"):
        await world.store.workflows.starts.start_workflow("nightly")


async def test_a_repeated_key_answers_the_same_workflow_run(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(*DIAMOND, day="x"))
    first = await world.store.workflows.starts.start_workflow("nightly", {"day": "y"}, idempotency_key="k")
    await world.store.workflows.definitions.update_workflow("nightly", workflow(node("other"), day="z"))
    again = await world.store.workflows.starts.start_workflow("nightly", {"day": "y"}, idempotency_key="k")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    with pytest.raises(Conflict, match="used for another request"):
        await world.store.workflows.starts.start_workflow("nightly", {"day": "x"}, idempotency_key="k")
    with pytest.raises(Conflict, match="used for another request"):
        await world.store.workflows.starts.start_workflow("nightly", {}, idempotency_key="k")
    assert (await world.tally()) == {"pending": 1, "blocked": 3}


async def test_many_callers_with_one_key_start_one_workflow_run(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(*DIAMOND))
    starts = [world.store.workflows.starts.start_workflow("nightly", idempotency_key="k") for _ in range(8)]
    done = await asyncio.gather(*starts)
    assert len({one.id for one in done}) == 1 and sum(one.created for one in done) == 1
    assert await world.tally() == {"pending": 1, "blocked": 3}


async def test_a_start_is_all_or_nothing(world: World) -> None:
    large = "x" * (600 * 1024)
    spec = workflow(*(node(f"n{n}", payload={"a": "{{param.a}}", "b": "{{param.a}}"}) for n in range(3)), a=0)
    await world.store.workflows.definitions.create_workflow(spec)
    with pytest.raises(Invalid, match="node n0: payload is"):
        await world.store.workflows.starts.start_workflow("nightly", {"a": large})
    assert (
        await world.tally() == {}
        and await world.store.workflows.queries.workflow_runs(WorkflowRunFilter()) == []
    )


# --- going through -----------------------------------------------------------------------------------


async def test_completion_unblocks(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    await flow.claim()
    await flow.finish("extract")
    assert await flow.claim() == ["check", "clean"]
    await flow.finish("clean")
    assert (await flow.nodes())["load"] == "blocked"
    await flow.finish("check")
    assert await flow.claim() == ["load"]
    assert (await flow.look()).finished_at is None
    await flow.finish("load")
    run = await flow.look()
    assert (run.status, run.ended, run.succeeded, run.failed) == ("succeeded", 4, 4, 0)
    assert run.finished_at is not None and await leftovers(world) == NOTHING


async def test_a_failure_skips_everything_behind_it_and_nothing_else(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND, node("tell", "load"), node("apart", "extract"))
    await flow.claim()
    await flow.finish("extract")
    await flow.claim()
    await flow.end("clean")
    assert await flow.nodes() == {
        "extract": "succeeded",
        "clean": "failed",
        "check": "running",
        "load": "skipped",
        "tell": "skipped",
        "apart": "running",
    }
    reasons = await flow.reasons()
    assert reasons["load"] == "trigger_rule all_success: clean did not succeed"
    assert reasons["tell"] == "trigger_rule all_success: load did not succeed"
    assert (await flow.look()).status == "running"
    await flow.finish("check", "apart")
    run = await flow.look()
    assert (run.status, run.succeeded, run.failed, run.skipped) == ("failed", 3, 1, 2)
    assert run.reason == "node clean failed" and await leftovers(world) == NOTHING


async def test_a_retried_node_holds_back_what_waits_for_it(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a"))
    await flow.claim()
    (claimed,) = flow.held.values()
    await world.settle(flow.session, claimed, end=End.FAILED)
    await flow.drain()
    assert await flow.nodes() == {"a": "delayed", "b": "blocked"}
    await world.clock.tick(3600)
    await world.store.ready_queue.promote()
    assert await flow.claim() == ["a"]
    await flow.finish("a")
    assert await flow.claim() == ["b"]


@pytest.mark.parametrize(
    ("rule", "ends", "stands"),
    [
        ("all_success", [End.SUCCEEDED, End.SUCCEEDED], "pending"),
        ("all_success", [End.FAILED], "skipped"),
        ("all_success", [End.SUCCEEDED, End.SKIPPED], "skipped"),
        ("all_done", [End.FAILED], "blocked"),
        ("all_done", [End.FAILED, End.TIMED_OUT], "pending"),
        ("all_done", [End.SKIPPED, End.SUCCEEDED], "pending"),
        ("any_success", [End.FAILED], "blocked"),
        ("any_success", [End.SUCCEEDED], "pending"),
        ("any_success", [End.FAILED, End.SUCCEEDED], "pending"),
        ("any_success", [End.FAILED, End.SKIPPED], "skipped"),
    ],
)
@pytest.mark.parametrize("together", [False, True], ids=["one-by-one", "at-once"])
async def test_trigger_rules(world: World, rule: str, ends: list[End], stands: str, together: bool) -> None:
    flow = await Flow.start(world, node("a"), node("b"), node("c", "a", "b", rule=rule))
    await flow.claim()
    for name, end in zip("ab", ends, strict=False):
        (claimed,) = await flow._take([name])
        if end is End.SUCCEEDED:
            await world.finish(flow.session, claimed)
        else:
            await flow.world.settle(flow.session, claimed, end=end, policy=ONCE)
        if not together:
            await flow.drain()
    await flow.drain()
    assert (await flow.nodes())["c"] == stands


async def test_a_node_that_was_let_go_early_is_not_counted_on_any_more(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b"), node("c", "a", "b", rule="any_success"))
    await flow.claim()
    await flow.finish("a")
    assert await flow.claim() == ["c"]
    await flow.finish("c")
    assert (await flow.look()).status == "running"
    await flow.end("b")
    run = await flow.look()
    assert (run.status, run.succeeded, run.failed) == ("failed", 2, 1) and await leftovers(world) == NOTHING


async def test_a_workflow_whose_nodes_have_nothing_to_do_succeeds(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a"))
    await flow.claim()
    await flow.end("a", end=End.SKIPPED)
    run = await flow.look()
    assert (run.status, run.skipped) == ("succeeded", 2)


async def test_a_chain_of_skips_needs_no_turn_for_each_of_them(world: World) -> None:
    chain = [node("n0"), *(node(f"n{n}", f"n{n - 1}") for n in range(1, 120))]
    flow = await Flow.start(world, *chain)
    await flow.claim()
    (claimed,) = flow.held.values()
    await world.settle(flow.session, claimed, end=End.FAILED, policy=ONCE)
    turns = 0
    while await world.store.aggregation.aggregate():
        turns += 1
    run = await flow.look()
    assert (run.status, run.skipped, run.failed) == ("failed", 119, 1)
    assert turns <= 4 and await leftovers(world) == NOTHING


# --- notices that come twice, early, or for nothing ---------------------------------------------------


async def test_a_notice_that_comes_twice_counts_once(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    ids = await flow.run_ids()
    await flow.claim()
    await world.sql(f"INSERT INTO fusee_outbox (kind, run_id) VALUES ('workflow', {ids['extract']})")
    await flow.drain()  # early: it still runs
    assert (await flow.nodes())["clean"] == "blocked"
    await flow.finish("extract")
    for run_id in (ids["extract"], ids["extract"], 999_999_999):
        await world.sql(f"INSERT INTO fusee_outbox (kind, run_id) VALUES ('workflow', {run_id})")
    await flow.drain()
    run = await flow.look()
    assert (run.ended, run.succeeded) == (1, 1)
    assert await flow.claim() == ["check", "clean"]


async def test_two_aggregators_count_each_end_once(world: World) -> None:
    many = [node(f"n{n}") for n in range(60)]
    flow = await Flow.start(world, *many, node("last", *(n.name for n in many)))
    await flow.claim()
    other = await world.another()
    claimed = await flow._take([n.name for n in many])
    for start in range(0, 60, 10):
        part = claimed[start : start + 10]
        await world.finish(flow.session, *part)
        for run in part[:5]:  # and some are told of twice
            await world.sql(f"INSERT INTO fusee_outbox (kind, run_id) VALUES ('workflow', {run.id})")
    stores = [world.store, other] * 4
    while any(await asyncio.gather(*(store.aggregation.aggregate(limit=7) for store in stores))):
        pass
    run = await flow.look()
    assert (run.ended, run.succeeded) == (60, 60)
    assert await flow.claim() == ["last"]


async def test_a_run_that_is_gone_before_it_was_counted_has_not_succeeded(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a"))
    ids = await flow.run_ids()
    await flow.claim()
    await world.finish(flow.session, *await flow._take(["a"]))
    await world.sql(f"DELETE FROM fusee_runs WHERE id = {ids['a']}")
    await flow.drain()
    run = await flow.look()
    assert (run.status, run.failed, run.skipped) == ("failed", 1, 1)


# --- canceling ---------------------------------------------------------------------------------------


async def test_a_cancel_before_anything_started_ends_it_at_once(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    answer = await world.store.workflows.cancels.cancel_workflow_run(flow.id, "not today")
    assert (answer.canceled, answer.told) == (4, [])
    assert await flow.claim() == []
    await flow.drain()
    run = await flow.look()
    assert (run.status, run.canceled, run.reason) == ("canceled", 4, "not today")
    assert set((await flow.reasons()).values()) == {"not today"} and await leftovers(world) == NOTHING


async def test_a_cancel_tells_what_runs_and_cancels_what_waits(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    ids = await flow.run_ids()
    await flow.claim()
    await flow.finish("extract")
    await flow.claim()
    answer = await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
    assert sorted(answer.told) == sorted([ids["clean"], ids["check"]])
    assert (await flow.nodes())["load"] == "canceled"
    run = await flow.look()
    assert (run.status, run.canceled) == ("running", 1) and run.cancel_requested_at is not None
    await flow.finish("clean")  # a running one keeps its real outcome
    await flow.end("check", end=End.CANCELED)
    run = await flow.look()
    assert (run.status, run.succeeded, run.canceled) == ("canceled", 2, 2)
    assert await leftovers(world) == NOTHING


@pytest.mark.parametrize("rule", ["all_done", "any_success", "all_success"])
async def test_after_a_cancel_no_node_starts(world: World, rule: str) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a", rule=rule), node("c", "b", rule=rule))
    await flow.claim()
    await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
    await flow.finish("a")
    assert await flow.claim() == []
    run = await flow.look()
    assert (run.status, run.succeeded, run.canceled) == ("canceled", 1, 2)


async def test_an_end_that_nobody_counted_yet_unblocks_nothing_after_a_cancel(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a"))
    await flow.claim()
    await world.finish(flow.session, *await flow._take(["a"]))  # the notice waits
    await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
    await flow.drain()
    assert await flow.nodes() == {"a": "succeeded", "b": "canceled"}
    assert (await flow.look()).status == "canceled"


async def test_a_cancel_catches_a_node_that_waits_for_its_retry(world: World) -> None:
    flow = await Flow.start(world, node("a"), node("b", "a"))
    await flow.claim()
    (claimed,) = flow.held.values()
    await world.settle(flow.session, claimed, end=End.FAILED)
    assert (await flow.nodes())["a"] == "delayed"
    await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
    await flow.drain()
    assert (await flow.look()).status == "canceled"


async def test_a_cancel_too_late_is_refused_and_a_second_one_is_harmless(world: World) -> None:
    flow = await Flow.start(world, node("a"))
    await flow.claim()
    await flow.finish("a")
    with pytest.raises(Conflict, match=r"has ended \(succeeded\)"):
        await world.store.workflows.cancels.cancel_workflow_run(flow.id, "late")
    with pytest.raises(NotFound):
        await world.store.for_namespace("tenant").workflows.cancels.cancel_workflow_run(flow.id, "not mine")
    second = await world.store.workflows.starts.start_workflow("nightly")
    for _ in range(2):
        await world.store.workflows.cancels.cancel_workflow_run(second.id, "again")
        await flow.drain()
    assert (await world.store.workflows.queries.workflow_run(second.id)).status == "canceled"


async def test_one_node_canceled_alone_skips_what_waits_for_it(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    ids = await flow.run_ids()
    await flow.claim()
    await flow.finish("extract")
    await world.store.runs.cancel(ids["check"], "not this one")
    await flow.drain()
    assert (await flow.nodes())["load"] == "skipped"
    await flow.claim()
    await flow.finish("clean")
    run = await flow.look()
    assert (run.status, run.canceled, run.skipped) == ("canceled", 1, 1)


async def test_a_cancel_that_races_with_completions_leaves_nothing_behind(world: World) -> None:
    """Whoever comes first: every node ends, counters add up, and nothing starts after the cancel."""
    layers = [[f"l{layer}n{n}" for n in range(8)] for layer in range(3)]
    nodes = [node(name) for name in layers[0]]
    nodes += [node(name, *layers[i], rule="all_done") for i in (0, 1) for name in layers[i + 1]]
    flow = await Flow.start(world, *nodes)
    await flow.claim()
    first = await flow._take(layers[0])
    other = await world.another()

    async def complete() -> None:
        for run in first:
            await world.finish(flow.session, run)
            await other.aggregation.aggregate()

    await asyncio.gather(
        complete(),
        world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough"),
        other.aggregation.aggregate(),
    )
    await flow.drain()
    assert await flow.claim() == []
    run = await flow.look()
    assert (run.status, run.ended, run.succeeded + run.canceled) == ("canceled", 24, 24)
    assert await leftovers(world) == NOTHING


# --- doing it again ----------------------------------------------------------------------------------


async def test_a_rerun_does_only_what_did_not_succeed(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND, node("any", "clean", "check", rule="any_success"))
    await flow.claim()
    await flow.finish("extract")
    await flow.claim()
    await flow.end("clean")
    await flow.finish("check")
    await flow.claim()
    await flow.end("any")
    assert (await flow.look()).status == "failed"
    again = await world.store.workflows.starts.rerun(flow.id, idempotency_key="k")
    assert await world.store.workflows.starts.rerun(flow.id, idempotency_key="k") == (
        again.id,
        False,
    )
    second = Flow(world, flow.session, again.id)
    assert await second.nodes() == {"clean": "pending", "load": "blocked", "any": "pending"}
    await second.claim()
    await second.finish("clean", "any")
    await second.claim()
    await second.finish("load")
    run = await second.look()
    assert (run.status, run.total, run.origin_id) == ("succeeded", 3, flow.id)
    with pytest.raises(Conflict, match="every node of workflow run"):
        await world.store.workflows.starts.rerun(again.id)


async def test_what_runs_is_not_rerun(world: World) -> None:
    flow = await Flow.start(world, node("a"))
    with pytest.raises(Conflict, match="has not ended"):
        await world.store.workflows.starts.rerun(flow.id)
    with pytest.raises(NotFound):
        await world.store.workflows.starts.rerun(999)


# --- looking -----------------------------------------------------------------------------------------


async def test_the_graph_is_read_in_pages_with_levels_and_edges(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    first = await world.store.workflows.queries.workflow_graph(flow.id, limit=3)
    rest = await world.store.workflows.queries.workflow_graph(flow.id, after=first.nodes[-1].position)
    assert [n.name for n in (*first.nodes, *rest.nodes)] == ["extract", "clean", "check", "load"]
    assert [n.level for n in (*first.nodes, *rest.nodes)] == [0, 1, 1, 2]
    assert rest.nodes[0].after == ("clean", "check") and rest.total == 4
    with pytest.raises(NotFound):
        await world.store.for_namespace("tenant").workflows.queries.workflow_graph(flow.id)


async def test_workflow_runs_are_listed_newest_first(world: World) -> None:
    await world.store.workflows.definitions.create_workflow(workflow(node("a")))
    await world.store.workflows.definitions.create_workflow(workflow(node("a"), name="other"))
    ids = [(await world.store.workflows.starts.start_workflow("nightly")).id for _ in range(3)]
    await world.store.workflows.starts.start_workflow("other")

    async def listed(**wanted: Any) -> list[int]:
        return [
            run.id for run in await world.store.workflows.queries.workflow_runs(WorkflowRunFilter(**wanted))
        ]

    assert await listed(workflow="nightly") == ids[::-1]
    assert await listed(workflow="nightly", before=ids[1]) == [ids[0]]
    assert len(await listed(limit=2)) == 2
    with pytest.raises(NotFound):
        await listed(workflow="none")


async def test_old_workflow_runs_are_forgotten_with_their_nodes(world: World) -> None:
    flow = await Flow.start(world, *DIAMOND)
    await world.store.workflows.cancels.cancel_workflow_run(flow.id, "enough")
    await flow.drain()
    going = await world.store.workflows.starts.start_workflow("nightly")
    await world.store.workflows.definitions.delete_workflow("nightly")
    await world.clock.tick(1000)
    pruned = await world.store.retention.prune(500, 0, 1000)
    assert (pruned.count, pruned.forgotten) == (4, 1)
    with pytest.raises(NotFound):
        await flow.look()
    assert (await world.store.workflows.queries.workflow_run(going.id)).total == 4  # it runs still
    await world.store.workflows.cancels.cancel_workflow_run(going.id, "enough")
    await flow.drain()
    await world.clock.tick(1000)
    assert (await world.store.retention.prune(500, 0, 1000)).forgotten == 1
    for table in (workflows, workflow_runs, workflow_nodes, outbox):
        assert await world.rows(table) == []
