"""What a node of a workflow runs, once its task is known and its parameters have values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.values.labels import requires_text
from fusee.values.placeholders import fill, names_in
from fusee.workflows.model.workflow import NodeSpec

__all__ = ["Action", "NodeTask", "NodeTasks", "action_of", "payload_of"]


class NodeTask(Protocol):
    """The definition of a task, as far as a node that names it needs it."""

    @property
    def executor(self) -> str: ...

    @property
    def payload(self) -> Mapping[str, Any]: ...

    @property
    def workflow(self) -> str | None: ...

    def run_spec(self) -> RunSpec: ...

    def run_payload(self, over: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


class NodeTasks(Protocol):
    """Where a workflow finds the tasks that its nodes name."""

    async def task_specs(self, names: Iterable[str]) -> Mapping[str, NodeTask]:
        """The definitions of these tasks of this namespace by name; unknown names are left out."""


class Action(NamedTuple):
    """How a node's run executes; many nodes share one."""

    executor: str
    handler: str
    queue: str
    region: str
    priority: int
    timeout: float | None
    retry: RetryPolicy | None
    workflow: str | None
    requires: str = ""

    def run_spec(self, payload: Mapping[str, Any]) -> RunSpec:
        given = self._asdict()
        del given["workflow"]
        return RunSpec(payload=payload, **given)


def action_of(node: NodeSpec, task: NodeTask | None) -> Action:
    """The action of the task that the node names, else the node's own."""
    what = node if task is None else task.run_spec()
    return Action(
        what.executor,
        what.handler,
        what.queue,
        what.region,
        what.priority,
        what.timeout,
        what.retry,
        node.workflow if task is None else task.workflow,
        requires_text(what.requires) if isinstance(what, RunSpec) else "",
    )


def payload_of(
    node: NodeSpec, task: NodeTask | None, params: Mapping[str, Any], workflow_run_id: int
) -> dict[str, Any]:
    """The payload of a node's run: the task's below, the node's above, with parameters filled in.

    A task's own payload is taken as it is: it knows nothing of this workflow's parameters.
    """
    base: Mapping[str, Any] = {} if task is None else task.payload
    here = {"workflow_run_id": workflow_run_id, "node": node.name}
    known = here | {f"param.{name}": value for name, value in params.items()}
    executor = node.executor if task is None else task.executor
    match executor:
        case "http":
            return _http(base, node.payload, params, here, known)
        case "shell" | "kubernetes":  # arguments are texts
            return {**base, **fill(node.payload, known, typed=False)}
        case _:
            payload = fill(node.payload, known)
            if task is not None:
                return task.run_payload(payload)
            return payload if node.workflow is None else {"workflow": node.workflow, "params": payload}


def _http(
    base: Mapping[str, Any],
    own: Mapping[str, Any],
    params: Mapping[str, Any],
    here: Mapping[str, Any],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """The http executor fills in parameters itself, escaped for each place: it is only given their values."""
    outside = fill({name: value for name, value in own.items() if name != "params"}, here)
    used = {name.removeprefix("param.") for name in names_in(outside) if name.startswith("param.")}
    values = {
        **(base.get("params") or {}),
        **{name: value for name, value in params.items() if name in used},
        **fill(own.get("params") or {}, known),
    }
    return {**base, **outside, **({"params": values} if values else {})}
