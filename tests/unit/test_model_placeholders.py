"""Placeholders in payloads: plain substitution, with types, and nothing more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.tasks.model.task import TaskSpec
from fusee.values.params import Param
from fusee.values.placeholders import fill, names_in
from fusee.workflows.model.action import action_of, payload_of
from fusee.workflows.model.workflow import NodeSpec, WorkflowSpec

NAMES = {"param.day": "2026-11-15", "param.n": 5, "param.none": None, "param.list": [1, "a"], "node": "load"}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("{{param.n}}", 5),
        ("{{ param.n }}", 5),
        ("{{param.list}}", [1, "a"]),
        ("{{param.none}}", None),
        ("n={{param.n}}", "n=5"),
        ("{{param.n}}{{param.n}}", "55"),
        ("{{param.list}}!", '[1,"a"]!'),
        ("<{{param.none}}>", "<>"),
        ("day {{param.day}} of {{node}}", "day 2026-11-15 of load"),
        ("{{run_id}} and {{attempt}}", "{{run_id}} and {{attempt}}"),
        ("{{run_id}} of {{node}}", "{{run_id}} of load"),
        ("{param.n}", "{param.n}"),
        ("{{param.n}", "{{param.n}"),
        ({"{{param.n}}": "{{param.n}}"}, {"{{param.n}}": 5}),
        ([{"a": ["{{param.n}}", 1.5, True, None]}], [{"a": [5, 1.5, True, None]}]),
        (7, 7),
    ],
)
def test_known_names_are_replaced(value: Any, filled: Any) -> None:
    assert fill(value, NAMES) == filled


def test_texts_stay_texts_where_texts_are_needed() -> None:
    assert fill(["{{param.n}}", "{{param.none}}"], NAMES, typed=False) == ["5", ""]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_a_value_is_never_looked_into(value: Any) -> None:
    """A parameter that holds a placeholder stays what it is."""
    assert fill("{{param.x}}", {"param.x": value}) == value
    nasty = "{{param.y}} {{node}}"
    assert fill("a {{param.x}}", {"param.x": nasty, "param.y": "no", "node": "no"}) == f"a {nasty}"


@given(json_values)
def test_what_has_no_placeholder_comes_back_as_it_was(value: Any) -> None:
    if not list(names_in(value)):
        assert fill(value, NAMES) == value


# --- in a workflow -----------------------------------------------------------------------------------


def spec(payload: dict[str, Any], executor: str = "python", **params: Param) -> WorkflowSpec:
    handler = "work" if executor == "python" else ""
    one = NodeSpec(name="a", handler=handler, executor=executor, payload=payload)
    return WorkflowSpec(name="n", params=params, nodes=(one,))


@pytest.mark.parametrize(
    "payload",
    [{"x": "{{param.dya}}"}, {"x": [{"y": "to {{ param.dya }}"}]}, {"url": "https://x/{{param.dya}}"}],
)
@pytest.mark.parametrize("executor", ["python", "shell", "http"])
def test_an_undeclared_parameter_is_refused_at_creation(payload: dict[str, Any], executor: str) -> None:
    with pytest.raises(ValueError, match=r"a uses \{\{param.dya\}\}, which params does not declare.*: day"):
        spec(payload, executor, day=Param())


def test_a_misspelt_parameter_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"\{\{params.day\}\}, .*; write \{\{param.x\}\} for .*: day"):
        spec({"x": "{{params.day}}"}, day=Param())


def test_names_of_others_are_left_alone_at_creation() -> None:
    spec({"x": "{{run_id}} {{fire_time}} {{workflow_run_id}} {{node}}"})


def filled(node: NodeSpec, task: TaskSpec | None = None, **params: Any) -> dict[str, Any]:
    return payload_of(node, task, params, 17)


def test_a_shell_node_gets_texts() -> None:
    node = NodeSpec(
        name="a", executor="shell", payload={"argv": ["run", "{{param.n}}", "{{workflow_run_id}}"]}
    )
    assert filled(node, n=5) == {"argv": ["run", "5", "17"]}


def test_an_http_node_passes_values_on_to_be_escaped_where_they_stand() -> None:
    payload = {
        "url": "https://example.com/{{param.day}}?run={{workflow_run_id}}",
        "body": {"n": "{{param.own}}", "at": "{{fire_time}}"},
        "params": {"own": "{{param.n}}"},
    }
    node = NodeSpec(name="a", executor="http", payload=payload)
    assert node.undeclared({"day", "n"}) is None and node.undeclared({"day"}) == "param.n"
    assert filled(node, day="a/../b", n=5, unused=1) == {
        "url": "https://example.com/{{param.day}}?run=17",
        "body": {"n": "{{param.own}}", "at": "{{fire_time}}"},
        "params": {"day": "a/../b", "own": 5},
    }
    assert "params" not in filled(NodeSpec(name="a", executor="http", payload={"url": "https://x"}), n=5)


def test_the_payload_of_a_node_lies_over_that_of_its_task() -> None:
    task = TaskSpec(name="t", handler="work", payload={"a": "{{param.n}}", "b": 2}, queue="q", priority=4)
    node = NodeSpec(name="x", task="t", payload={"b": "{{param.n}}"})
    assert filled(node, task, n=5) == {"a": "{{param.n}}", "b": 5}
    action = action_of(node, task)
    assert (action.handler, action.queue, action.priority) == ("work", "q", 4)


def test_a_node_that_is_a_workflow_hands_on_parameters() -> None:
    node = NodeSpec(name="x", workflow="inner", payload={"day": "{{param.day}}"})
    assert filled(node, day=1) == {"workflow": "inner", "params": {"day": 1}}
    task = TaskSpec(name="t", workflow="inner", payload={"day": 0, "n": 1})
    over = NodeSpec(name="x", task="t", payload={"day": "{{param.day}}"})
    assert filled(over, task, day=2) == {"workflow": "inner", "params": {"day": 2, "n": 1}}


def test_what_is_filled_in_is_json() -> None:
    node = NodeSpec(name="a", handler="work", payload={"x": "{{param.x}}", "y": "and {{param.x}}"})
    assert json.loads(json.dumps(filled(node, x={"a": [1, None]}))) == {
        "x": {"a": [1, None]},
        "y": 'and {"a":[1,null]}',
    }
