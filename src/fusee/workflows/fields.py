"""A workflow as callers write it: an object with nodes; says which node and which field is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Invalid
from fusee.tasks.model.task import WORKFLOW_HANDLER, TriggerRule
from fusee.values.durations import seconds_from
from fusee.values.params import Param
from fusee.workflows.model.workflow import NodeSpec, WorkflowSpec

__all__ = ["NODE_FIELDS", "WORKFLOW_FIELDS", "params_from", "workflow_from"]

WORKFLOW_FIELDS = ("name", "description", "params", "nodes")
PARAM_FIELDS = ("default", "description")


def workflow_from(given: Mapping[str, Any]) -> WorkflowSpec:
    """A `WorkflowSpec` of what a caller wrote."""
    if not isinstance(given, Mapping):
        raise Invalid('a workflow is an object such as {"name": "nightly", "nodes": [{"name": "a", …}, …]}')
    _known(given, WORKFLOW_FIELDS, "a workflow", "")
    for name in ("name", "nodes"):
        if given.get(name) is None:
            raise Invalid(f"{name} is missing", field=name)
    if not isinstance(given["nodes"], Sequence) or isinstance(given["nodes"], str):
        raise Invalid(
            'nodes must be a list of objects such as {"name": "a", "handler": "tidy"}', field="nodes"
        )
    nodes = tuple(_node(node, place) for place, node in enumerate(given["nodes"]))
    params = params_from(given.get("params") or {})
    try:
        return WorkflowSpec(
            name=_text(given["name"], "name"),
            description=_text(given.get("description") or "", "description"),
            params=params,
            nodes=nodes,
        )
    except ValueError as error:
        raise Invalid(str(error), field=str(error).split(" ", 1)[0].rstrip(":")) from None


def params_from(given: Any) -> dict[str, Param]:
    """The parameters that a caller declares."""
    if not isinstance(given, Mapping):
        raise Invalid('params must be an object such as {"day": {}, "limit": {"default": 5}}', field="params")
    params: dict[str, Param] = {}
    for name, param in given.items():
        param = {} if param is None else param  # `day:` in YAML
        if not isinstance(param, Mapping):
            raise Invalid(
                f'params.{name} must be an object: {{}} when it must be given, else {{"default": …}}',
                field=f"params.{name}",
            )
        _known(param, PARAM_FIELDS, f"params.{name}", f"params.{name}.")
        if not isinstance(param.get("description", ""), str):
            raise Invalid(f"params.{name}.description must be text", field=f"params.{name}.description")
        params[str(name)] = Param.from_dict(param)
    return params


def _node(given: Any, place: int) -> NodeSpec:
    if not isinstance(given, Mapping):
        raise Invalid(f"node {place} must be an object, not {given!r:.60}", field=f"nodes.{place}")
    called = f"node {given['name'][:60]}" if isinstance(given.get("name"), str) else f"node {place}"
    _known(given, NODE_FIELDS, called, f"nodes.{place}.")
    field = "name"
    try:
        made: dict[str, Any] = {}
        for field, value in given.items():
            if value is not None:
                made[field] = _READ[field](value, field)
        field = ""
        if "name" not in made:
            raise ValueError("name is missing")
        return NodeSpec(**made)
    except (ValueError, TypeError) as error:
        field = field or str(error).split(" ", 1)[0].split(".")[0].rstrip(":")
        raise Invalid(f"{called}: {error}", field=f"nodes.{place}.{field}") from None


def _known(given: Mapping[str, Any], known: Sequence[str], what: str, path: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise Invalid(f"{what} has no {str(name)[:60]!r}; {hint}", field=f"{path}{str(name)[:60]}")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be text, not {value!r:.60}")
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} must be a whole number, not {value!r:.60}")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} must be an object, not {value!r:.60}")
    return dict(value)


def _names(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{what} must be a list of names of nodes")
    return tuple(value)


def _rule(value: Any, what: str) -> TriggerRule:
    try:
        return TriggerRule(value)
    except ValueError:
        raise ValueError(f"{what} must be one of {', '.join(TriggerRule)}, not {value!r:.60}") from None


def _handler(value: Any, what: str) -> str:
    if value == WORKFLOW_HANDLER:
        raise ValueError(f"{what}: name the workflow as `workflow`")
    return _text(value, what)


_READ: Mapping[str, Callable[[Any, str], Any]] = {
    "name": _text,
    "after": _names,
    "trigger_rule": _rule,
    "task": _text,
    "workflow": _text,
    "executor": lambda value, what: _text(value, what).lower(),
    "handler": _handler,
    "payload": _object,
    "queue": _text,
    "region": _text,
    "priority": _whole,
    "timeout": seconds_from,
    "retry": lambda value, what: RetryPolicy.from_dict(_object(value, what)),
}
NODE_FIELDS = tuple(_READ)
