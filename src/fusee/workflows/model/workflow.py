"""A workflow: a named graph of nodes that is started as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.run_fields import Executor, Payload, Priority, Queue, Region, Retry, Timeout
from fusee.errors import Invalid
from fusee.values.fields import Form, Mark, conform
from fusee.values.graph import levels_of
from fusee.values.kinds import NAMES, TEXT, TIME, Kind, Name, Text, Words
from fusee.values.names import WORKFLOW_HANDLER, check_name
from fusee.values.params import PARAMS, Param
from fusee.values.placeholders import names_in

__all__ = [
    "MOST_EDGES",
    "MOST_NODES",
    "NODE",
    "WORKFLOW",
    "NodeSpec",
    "Workflow",
    "WorkflowSpec",
    "WorkflowSummary",
]

MOST_NODES = 20_000
MOST_EDGES = 100_000
LONGEST_DESCRIPTION = 512


class _Handler(Kind):
    def written(self, value: Any, what: str) -> Any:
        if value == WORKFLOW_HANDLER:
            raise Invalid(f"{what}: name the workflow as `workflow`", field=what)
        return value

    def read(self, value: Any, what: str) -> Any:
        return TEXT.read(value, what)

    def schema(self) -> dict[str, Any]:
        return TEXT.schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One step: a task's action, another workflow, or an action of its own."""

    name: Annotated[str, Name(), "Unique within the workflow."]
    after: Annotated[tuple[str, ...], NAMES, "The nodes that this node waits for."] = ()
    trigger_rule: Annotated[TriggerRule, Words(TriggerRule), "When the node may start."] = (
        TriggerRule.ALL_SUCCESS
    )
    task: Annotated[
        str | None,
        Name(),
        "Run what this task runs (executor, handler, payload, queue and so on) without its schedule and its"
        " policies; `payload` overrides the task's own, member by member.",
    ] = None
    workflow: Annotated[
        str | None, Name(), "Start this workflow and wait for its end; `payload` holds its parameters."
    ] = None
    executor: Executor = "python"
    handler: Annotated[str, _Handler(), "The handler that runs; http and shell need none."] = ""
    payload: Annotated[
        Payload, "The arguments; `{{param.x}}`, `{{workflow_run_id}}` and `{{node}}` are filled in."
    ] = field(default_factory=dict)
    queue: Queue = "default"
    region: Region = ""
    priority: Priority = 0
    timeout: Timeout = None
    retry: Retry = None

    def __post_init__(self) -> None:
        conform(self)
        for upstream in self.after:
            check_name(upstream, "after")
        if self.name in self.after:
            raise Invalid(f"after: {self.name} cannot wait for itself", field="after")
        if len(set(self.after)) != len(self.after):
            raise Invalid("after names a node twice", field="after")
        if self.task is not None:
            self._only_payload("task")
        elif self.workflow is not None:
            if self.handler not in ("", WORKFLOW_HANDLER) or self.executor != "python":
                raise Invalid(
                    "workflow stands in the place of handler and executor: give one of them", field="workflow"
                )
            object.__setattr__(self, "handler", WORKFLOW_HANDLER)
        elif not self.handler and self.executor != "python":
            object.__setattr__(self, "handler", self.executor)
        elif not self.handler:
            raise Invalid("give handler, task or workflow: a node must say what it runs", field="handler")
        if self.task is None:
            self.run_spec({})  # refuses what a run would be refused for

    def _only_payload(self, what: str) -> None:
        for name, plain in _ACTION.items():
            if getattr(self, name) != plain:
                raise Invalid(f"{name} is the {what}'s own: leave it out, or leave out {what}", field=name)

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


NODE = Form(called="a node", spec=NodeSpec, example='{"name": "a", "handler": "tidy"}')


class _Nodes(Kind):
    """A list of nodes; what is wrong is named with the node and its place."""

    shown = list[dict[str, Any]]

    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise Invalid(f"{what} must be a list of objects such as {NODE.example}", field=what)
        return tuple(
            node if isinstance(node, NodeSpec) else self._node(node, f"{what}.{place}", place)
            for place, node in enumerate(value)
        )

    def _node(self, given: Any, path: str, place: int) -> NodeSpec:
        if not isinstance(given, Mapping):
            raise Invalid(f"node {place} must be an object, not {given!r:.60}", field=path)
        name = given.get("name")
        called = f"node {name[:60]}" if isinstance(name, str) else f"node {place}"
        for written in given:
            if written not in NODE.names:
                unknown = NODE.unknown(written, called=called)
                raise Invalid(str(unknown), field=f"{path}.{unknown.field}")
        try:
            return NODE.read(given)
        except Invalid as error:
            raise Invalid(f"{called}: {error}", field=f"{path}.{error.field}") from None

    def schema(self) -> dict[str, Any]:
        items = NODE.schema("A step: a handler (or a program, or a call), a task's action, or a workflow.")
        return {"type": "array", "minItems": 1, "maxItems": MOST_NODES, "items": items}

    def show(self, value: Any) -> Any:
        return [node.to_dict() for node in value]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec:
    """What a caller asks for; checked when it is made."""

    name: Annotated[str, Name(), "Unique in its namespace; it cannot be changed."]
    nodes: Annotated[tuple[NodeSpec, ...], _Nodes(), "Its steps; what differs from the defaults is shown."]
    params: Annotated[Mapping[str, Param], PARAMS, "What a start may, or must, be given."] = field(
        default_factory=dict
    )
    description: Annotated[str, Text(LONGEST_DESCRIPTION, lines=True), "A text for people."] = ""

    def __post_init__(self) -> None:
        conform(self)
        if not self.nodes:
            raise Invalid("nodes is empty: a workflow has at least one node", field="nodes")
        if len(self.nodes) > MOST_NODES:
            raise Invalid(
                f"nodes: {len(self.nodes)} are too many; a workflow has at most {MOST_NODES}", field="nodes"
            )
        self._check_edges()
        for node in self.nodes:
            if name := node.undeclared(self.params):
                hint = "write {{param.x}} for the parameter x; " if name.startswith("params.") else ""
                raise Invalid(
                    f"nodes: {node.name} uses {{{{{name[:66]}}}}}, which params does not declare;"
                    f" {hint}declared: {', '.join(self.params) or 'none'}",
                    field="nodes",
                )
        self.levels()

    def _check_edges(self) -> None:
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise Invalid(
                    f"nodes: {node.name} is there twice; names within a workflow differ", field="nodes"
                )
            names.add(node.name)
        for node in self.nodes:
            for upstream in node.after:
                if upstream not in names:
                    raise Invalid(
                        f"nodes: {node.name} is after {upstream!r}, which is no node of it", field="nodes"
                    )
        edges = sum(len(node.after) for node in self.nodes)
        if edges > MOST_EDGES:
            raise Invalid(
                f"nodes: {edges} edges are too many, at most {MOST_EDGES} are allowed: where many nodes wait"
                " for the same many, let them wait for one node that waits for those",
                field="nodes",
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
    nodes: Annotated[int, "How many it has."]
    version: int
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow(WorkflowSummary):
    """A workflow as people see it."""

    spec: Annotated[WorkflowSpec, Mark.FLAT]


WORKFLOW = Form(
    called="a workflow", spec=WorkflowSpec, example='{"name": "nightly", "nodes": [{"name": "a", …}, …]}'
)
