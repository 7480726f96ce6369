"""Workflows as facts: what is accepted, what is refused and how that is told, how one stands."""

from __future__ import annotations

import json
import time
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.retry import RetryPolicy
from fusee.values.graph import levels_of
from fusee.values.params import REQUIRED, Param, bind
from fusee.workflows.model.workflow import MOST_EDGES, MOST_NODES, NodeSpec, WorkflowSpec
from fusee.workflows.model.workflow_run import WorkflowStatus, workflow_status


def node(name: str, *after: str, **fields: Any) -> NodeSpec:
    return NodeSpec(name=name, after=after, **{"handler": "work", **fields})


def workflow(*nodes: NodeSpec, **params: Param) -> WorkflowSpec:
    return WorkflowSpec(name="nightly", nodes=nodes, params=params)


# --- what a workflow is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([], "at least one node"),
        ([node("a"), node("a")], "a is there twice"),
        ([node("a", "b")], "a is after 'b', which is no node of it"),
        ([node("a", "b"), node("b", "a")], "a → b → a"),
        ([node("c", "b"), node("a", "c"), node("b", "a"), node("d")], "after closes a cycle: a → b → c → a"),
        ([node("x")] * (MOST_NODES + 1), f"at most {MOST_NODES}"),
    ],
)
def test_a_graph_that_cannot_be_run_is_refused(nodes: list[NodeSpec], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        workflow(*nodes)


def test_more_edges_than_are_allowed_are_refused_with_advice() -> None:
    firsts = [node(f"a{n}") for n in range(400)]
    seconds = [node(f"b{n}", *(first.name for first in firsts)) for n in range(MOST_EDGES // 400 + 1)]
    with pytest.raises(ValueError, match="wait for one node that waits for those"):
        workflow(*firsts, *seconds)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"handler": ""}, "give handler, task or workflow"),
        ({"name": "no spaces"}, "name must be"),
        ({"after": ("n",)}, "n cannot wait for itself"),
        ({"after": ("a", "a")}, "after names a node twice"),
        ({"handler": "", "task": "t", "queue": "mail"}, "queue is the task's own"),
        ({"handler": "x", "task": "t"}, "handler is the task's own"),
        ({"workflow": "w"}, "workflow stands in the place of handler"),
        ({"executor": "carrier-pigeon"}, "executor must be one of"),
        ({"payload": [1]}, "payload must be an object"),
        ({"timeout": -1}, "timeout must be more than 0"),
        ({"priority": 5000}, "priority must be"),
    ],
)
def test_a_node_that_could_never_run_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NodeSpec(**{"name": "n", "handler": "work", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"after": ("a", "b"), "trigger_rule": TriggerRule.ALL_DONE},
        {"handler": "", "task": "tidy", "payload": {"x": 1}},
        {"handler": "", "workflow": "inner", "queue": "slow"},
        {"handler": "", "executor": "http", "payload": {"url": "https://example.com"}},
        {"handler": "python"},
        {"retry": RetryPolicy(max_attempts=7), "timeout": 4.5, "priority": -3, "region": "eu"},
        {"retry": RetryPolicy()},
    ],
)
def test_a_node_survives_being_written_down(fields: dict[str, Any]) -> None:
    spec = NodeSpec(**{"name": "n", "handler": "work", **fields})
    written = json.loads(json.dumps(spec.to_dict()))
    assert NodeSpec.from_dict(written) == spec
    assert NodeSpec.from_dict({**written, "of a newer version": 1}) == spec


def test_a_workflow_survives_being_written_down() -> None:
    params = {"day": Param(description="which"), "none": Param(None), "limit": Param(5)}
    spec = WorkflowSpec(name="n", description="d", params=params, nodes=(node("a"), node("b", "a")))
    assert WorkflowSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_ten_thousand_nodes_are_checked_at_once() -> None:
    middle = [f"n{n}" for n in range(9_998)]
    began = time.monotonic()
    spec = workflow(node("first"), *(node(name, "first") for name in middle), node("last", *middle))
    assert spec.levels()["last"] == 2
    assert time.monotonic() - began < 10  # a graph of this size is nothing; a quadratic step would show


# --- circles and levels, on any graph ----------------------------------------------------------------

graphs = st.integers(1, 12).flatmap(
    lambda size: st.dictionaries(
        st.integers(0, size - 1), st.sets(st.integers(0, size - 1), max_size=4), min_size=size, max_size=size
    )
)


@given(graphs)
def test_a_graph_has_levels_or_a_circle_and_never_both(graph: dict[int, set[int]]) -> None:
    after = {n: sorted(graph.get(n, ())) for n in range(max(graph, default=0) + 1)}
    after = {n: [up for up in ups if up in after] for n, ups in after.items()}
    try:
        levels = levels_of(after)
    except ValueError as error:
        names = [int(name) for name in str(error).partition(": ")[2].split(" → ")]
        assert names[0] == names[-1]
        assert all(one in after[other] for one, other in pairwise(names))
    else:
        for name, upstreams in after.items():
            assert levels[name] == max((levels[up] + 1 for up in upstreams), default=0)


def test_a_long_circle_is_told_short() -> None:
    nodes = [node(f"n{n:03}", f"n{(n + 1) % 500:03}") for n in range(500)]
    with pytest.raises(ValueError, match="more") as told:
        workflow(*nodes)
    assert len(str(told.value)) < 200


# --- parameters --------------------------------------------------------------------------------------


def test_parameters_are_bound_or_refused() -> None:
    declared = {"day": Param(), "limit": Param(5), "note": Param(None)}
    assert bind(declared, {"day": 1}) == {"day": 1, "limit": 5, "note": None}
    assert bind(declared, {"day": None, "limit": 0}) == {"day": None, "limit": 0, "note": None}
    with pytest.raises(ValueError, match="day must be given"):
        bind(declared, {"limit": 1})
    with pytest.raises(ValueError, match="no parameter 'limt'; did you mean 'limit'"):
        bind(declared, {"day": 1, "limt": 1})
    with pytest.raises(ValueError, match="it has none"):
        bind({}, {"x": 1})
    assert Param().required and not Param(None).required and repr(REQUIRED) == "REQUIRED"


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a.b", "x" * 65])
def test_names_of_parameters_fit_between_braces(name: str) -> None:
    with pytest.raises(ValueError, match="params"):
        WorkflowSpec(name="n", params={name: Param()}, nodes=(node("a"),))


# --- how a workflow run stands -----------------------------------------------------------------------


def test_the_status_is_a_total_function_of_the_counters() -> None:
    """Every way in which up to four nodes can end, with and without a cancel."""
    for total, requested in product(range(1, 5), (False, True)):
        counts = range(total + 1)
        for succeeded, skipped, canceled, failed in product(counts, repeat=4):
            ended = succeeded + skipped + canceled + failed
            if ended > total:
                continue
            status = workflow_status(
                total=total,
                ended=ended,
                succeeded=succeeded,
                skipped=skipped,
                canceled=canceled,
                cancel_requested=requested,
            )
            assert (status is WorkflowStatus.RUNNING) == (ended < total)
            if ended < total:
                continue
            assert (status is WorkflowStatus.SUCCEEDED) == (failed == canceled == 0)
            if requested and canceled:
                assert status is WorkflowStatus.CANCELED
            elif failed:
                assert status is WorkflowStatus.FAILED
            elif canceled:
                assert status is WorkflowStatus.CANCELED
