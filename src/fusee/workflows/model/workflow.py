"""A workflow: a named graph of nodes that is started as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import EXECUTORS, RunSpec
from fusee.tasks.model.task import WORKFLOW_HANDLER, TriggerRule
from fusee.values.graph import levels_of
from fusee.values.names import check_name
from fusee.values.params import Param, check_params
from fusee.values.placeholders import names_in

__all__ = ["MOST_EDGES", "MOST_NODES", "NodeSpec", "Workflow", "WorkflowSpec", "WorkflowSummary"]

MOST_NODES = 20_000
MOST_EDGES = 100_000
LONGEST_DESCRIPTION = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One step: a task's action, another workflow, or an action of its own."""

    name: str
    after: tuple[str, ...] = ()
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    task: str | None = None
    """Run what this task runs; not its schedule, not its policies. `payload` is laid over the task's."""
    workflow: str | None = None
    """Start this workflow and wait for its end; `payload` holds its parameters."""
    executor: str = "python"
    handler: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    queue: str = "default"
    region: str = ""
    priority: int = 0
    timeout: float | None = None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        for upstream in self.after:
            check_name(upstream, "after")
        if self.name in self.after:
            raise ValueError(f"after: {self.name} cannot wait for itself")
        if len(set(self.after)) != len(self.after):
            raise ValueError("after names a node twice")
        if not isinstance(self.payload, Mapping):
            raise ValueError("payload must be an object: its members are the handler's arguments")
        if self.task is not None:
            check_name(self.task, "task")
            self._only_payload("task")
        elif self.workflow is not None:
            check_name(self.workflow, "workflow")
            if self.handler not in ("", WORKFLOW_HANDLER) or self.executor != "python":
                raise ValueError("workflow stands in the place of handler and executor: give one of them")
            object.__setattr__(self, "handler", WORKFLOW_HANDLER)
        elif not self.handler and self.executor in EXECUTORS and self.executor != "python":
            object.__setattr__(self, "handler", self.executor)
        elif not self.handler:
            raise ValueError("give handler, task or workflow: a node must say what it runs")
        if self.task is None:
            self.run_spec({})  # refuses what a run would be refused for

    def _only_payload(self, what: str) -> None:
        for name, plain in _ACTION.items():
            if getattr(self, name) != plain:
                raise ValueError(f"{name} is the {what}'s own: leave it out, or leave out {what}")

    def run_spec(self, payload: Mapping[str, Any]) -> RunSpec:
        """The run of a node with an action of its own."""
        return RunSpec(
            handler=self.handler,
            payload=payload,
            executor=self.executor,
            queue=self.queue,
            region=self.region,
            priority=self.priority,
            timeout=self.timeout,
            retry=self.retry,
        )

    def undeclared(self, params: Collection[str]) -> str | None:
        """A placeholder of its payload for a parameter that nobody declared."""
        own: Collection[str] = ()
        outside = dict(self.payload)
        if self.executor == "http":
            # These are the http executor's own names; their values may use the workflow's.
            inside = outside.pop("params", None)
            own = inside if isinstance(inside, Mapping) else ()
            if wrong := _undeclared(inside, params):
                return wrong
        return _undeclared(outside, {*params, *own})

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults."""
        plain = {name: getattr(self, name) for name in _DEFAULTS}
        plain["after"] = list(self.after)
        plain["retry"] = None if self.retry is None else self.retry.to_dict()
        if self.workflow is not None or (self.executor != "python" and self.handler == self.executor):
            plain["handler"] = ""
        given = {k: v for k, v in plain.items() if v != _DEFAULTS[k] and v not in ({}, [])}
        if self.retry is not None:
            given["retry"] = plain["retry"]
        return {"name": self.name, **given}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> NodeSpec:
        known = {k: v for k, v in given.items() if k == "name" or k in _DEFAULTS}  # a newer one may know more
        if "after" in known:
            known["after"] = tuple(known["after"])
        if "trigger_rule" in known:
            known["trigger_rule"] = TriggerRule.as_stored(known["trigger_rule"])
        if known.get("retry") is not None:
            known["retry"] = RetryPolicy.as_stored(known["retry"])
        return cls(**known)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(NodeSpec) if f.name != "name"} | {
    "payload": {}
}
_ACTION = {
    name: _DEFAULTS[name]
    for name in ("workflow", "executor", "handler", "queue", "region", "priority", "timeout", "retry")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec:
    """What a caller asks for; checked when it is made."""

    name: str
    nodes: tuple[NodeSpec, ...]
    params: Mapping[str, Param] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if len(self.description) > LONGEST_DESCRIPTION:
            raise ValueError(f"description must be at most {LONGEST_DESCRIPTION} characters")
        check_params(self.params)
        if not self.nodes:
            raise ValueError("nodes is empty: a workflow has at least one node")
        if len(self.nodes) > MOST_NODES:
            raise ValueError(f"nodes: {len(self.nodes)} are too many; a workflow has at most {MOST_NODES}")
        self._check_edges()
        for node in self.nodes:
            if name := node.undeclared(self.params):
                hint = "write {{param.x}} for the parameter x; " if name.startswith("params.") else ""
                raise ValueError(
                    f"nodes: {node.name} uses {{{{{name[:66]}}}}}, which params does not declare;"
                    f" {hint}declared: {', '.join(self.params) or 'none'}"
                )
        self.levels()

    def _check_edges(self) -> None:
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ValueError(f"nodes: {node.name} is there twice; names within a workflow differ")
            names.add(node.name)
        for node in self.nodes:
            for upstream in node.after:
                if upstream not in names:
                    raise ValueError(f"nodes: {node.name} is after {upstream!r}, which is no node of it")
        edges = sum(len(node.after) for node in self.nodes)
        if edges > MOST_EDGES:
            raise ValueError(
                f"nodes: {edges} edges are too many, at most {MOST_EDGES} are allowed: where many nodes wait"
                " for the same many, let them wait for one node that waits for those"
            )

    def levels(self) -> dict[str, int]:
        """How many steps lie before each node, on the longest way."""
        return levels_of({node.name: node.after for node in self.nodes})

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": self.name}
        if self.description:
            plain["description"] = self.description
        if self.params:
            plain["params"] = {name: param.to_dict() for name, param in self.params.items()}
        return {**plain, "nodes": [node.to_dict() for node in self.nodes]}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> WorkflowSpec:
        return cls(
            name=given["name"],
            description=given.get("description", ""),
            params={name: Param.from_dict(param) for name, param in given.get("params", {}).items()},
            nodes=tuple(NodeSpec.from_dict(node) for node in given["nodes"]),
        )


def _undeclared(value: Any, declared: Collection[str]) -> str | None:
    """The first placeholder for a parameter that there is not, or that is misspelt as `params.x`."""
    for name in names_in(value):
        kind, dot, param = name.partition(".")
        if dot and (kind == "params" or (kind == "param" and param not in declared)):
            return name
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    """A workflow in a list: without its nodes."""

    id: int
    namespace: str
    name: str
    description: str
    nodes: int
    version: int
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow(WorkflowSummary):
    """A workflow as people see it."""

    spec: WorkflowSpec
