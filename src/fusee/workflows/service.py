"""Everything a person can do with workflows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusee.engine.model.run import RunSpec
from fusee.engine.model.session import START_CERTAIN_AFTER
from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Conflict, Invalid, NotFound
from fusee.values.names import check_optional_key, check_submittable, check_within
from fusee.workflows.model.action import action_of, payload_of
from fusee.workflows.model.workflow import WORKFLOW, NodeSpec, Workflow, WorkflowSpec, WorkflowSummary
from fusee.workflows.model.workflow_run import WorkflowRun
from fusee.workflows.store.definitions import WorkflowFilter
from fusee.workflows.store.queries import GraphPage, WorkflowRunFilter
from fusee.workflows.store.start import StartedWorkflow
from fusee.workflows.store.store import WorkflowStore

__all__ = ["WorkflowCancelAnswer", "WorkflowOperations"]

LONGEST_LIST = 1000
LONGEST_GRAPH = 10_000


@dataclass(frozen=True, slots=True)
class WorkflowCancelAnswer:
    """The canceled run; `told` is the number of running nodes that were told to stop."""

    run: WorkflowRun
    told: int


class WorkflowOperations:
    """Define, start, look, wait, cancel, do again."""

    def __init__(self, store: WorkflowStore, check: Callable[[RunSpec], Awaitable[None]]) -> None:
        self.store = store
        self.check = check
        """Refuses a spec that could never run (unknown handler, bad payload)."""

    # -- definitions

    async def create(
        self, fields: Mapping[str, Any] | WorkflowSpec, *, allow_unknown: bool = False
    ) -> Workflow:
        return (await self.create_once(None, fields, allow_unknown=allow_unknown))[0]

    async def create_once(
        self,
        idempotency_key: str | None,
        fields: Mapping[str, Any] | WorkflowSpec,
        *,
        allow_unknown: bool = False,
    ) -> tuple[Workflow, bool]:
        """(the workflow, whether it is new): the same request under the same key gets the same one."""
        spec = _spec(fields)
        await self._check(spec, allow_unknown)
        request = KeyedRequest.of(check_optional_key(idempotency_key), "workflow", spec.to_dict())
        workflow = await self.store.definitions.create_workflow(spec, request)
        return workflow, request is None or not request.repeated

    async def get(self, name: str) -> Workflow:
        return await self.store.definitions.workflow(name)

    async def list(self, wanted: WorkflowFilter | None = None) -> Sequence[WorkflowSummary]:
        wanted = wanted or WorkflowFilter()
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.definitions.workflows(wanted)

    async def replace(
        self,
        name: str,
        fields: Mapping[str, Any] | WorkflowSpec,
        *,
        version: int | None = None,
        allow_unknown: bool = False,
    ) -> Workflow:
        """Replace its definition as a whole; refused when it is not at `version`.

        Workflow runs that were started before continue unchanged.
        """
        spec = _spec(fields)
        await self._check(spec, allow_unknown)
        return await self.store.definitions.update_workflow(name, spec, version)

    async def apply(
        self, fields: Mapping[str, Any] | WorkflowSpec, *, allow_unknown: bool = False
    ) -> tuple[Workflow, str]:
        """Create it, or make it what is written; also returns `created`, `updated` or `unchanged`."""
        spec = _spec(fields)
        try:
            before = await self.store.definitions.workflow(spec.name)
        except NotFound:
            try:
                return await self.create(spec, allow_unknown=allow_unknown), "created"
            except Conflict:  # someone else made it just now
                before = await self.store.definitions.workflow(spec.name)
        after = await self.replace(spec.name, spec, allow_unknown=allow_unknown)
        return after, "unchanged" if after.version == before.version else "updated"

    async def delete(self, name: str, *, version: int | None = None) -> None:
        """Delete it softly: its workflow runs continue and stay visible; the name is free again."""
        await self.store.definitions.delete_workflow(name, version)

    async def _check(self, spec: WorkflowSpec, allow_unknown: bool) -> None:
        """Refuse nodes that could never run. Workflows that nodes start may be created later."""
        tasks = await self.store.tasks.task_specs(node.task for node in spec.nodes if node.task is not None)
        samples = {name: 1 if param.required else param.default for name, param in spec.params.items()}
        seen: set[str] = set()
        for place, node in enumerate(spec.nodes):
            if node.task is not None:
                if node.task not in tasks:
                    raise Invalid(
                        f"node {node.name}: there is no task {node.task!r}: create it first",
                        field=f"nodes.{place}.task",
                    )
            elif node.executor != "python":
                await self._check_node(node, place, samples)
            elif node.workflow is None and node.handler not in seen:
                seen.add(node.handler)
                await self._check_node(node, place, samples, allow_unknown)

    async def _check_node(
        self, node: NodeSpec, place: int, samples: Mapping[str, Any], allow_unknown: bool = False
    ) -> None:
        try:
            if node.executor == "python":
                check_submittable(node.handler)
            if allow_unknown:
                return
            await self.check(action_of(node, None).run_spec(payload_of(node, None, samples, 1)))
        except Invalid as error:
            raise Invalid(f"node {node.name}: {error}", field=f"nodes.{place}.{error.field}") from None

    # -- starting and stopping

    async def start(
        self, name: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> StartedWorkflow:
        """Start all of it or nothing."""
        if params is not None and not isinstance(params, Mapping):
            raise Invalid("params must be an object: a value for each parameter", field="params")
        return await self.store.starts.start_workflow(
            name, params, idempotency_key=check_optional_key(idempotency_key)
        )

    async def cancel(self, workflow_run_id: int, reason: str = "canceled by request") -> WorkflowCancelAnswer:
        """Cancel it; when this returns, none of its nodes will start any more.

        A worker may hold a newly claimed run for a moment before it starts it: this waits that long.
        """
        done = await self.store.cancels.cancel_workflow_run(workflow_run_id, reason[:500])
        while done.told:
            ago = await self.store.cancels.latest_start(done.told)
            if ago is None or ago > START_CERTAIN_AFTER:
                break
            await asyncio.sleep(0.05)
        return WorkflowCancelAnswer(await self.store.queries.workflow_run(workflow_run_id), len(done.told))

    async def rerun(self, workflow_run_id: int, *, idempotency_key: str | None = None) -> StartedWorkflow:
        """Repeat the nodes that did not succeed, as a new workflow run whose origin is this one."""
        return await self.store.starts.rerun(
            workflow_run_id, idempotency_key=check_optional_key(idempotency_key)
        )

    # -- looking

    async def runs(self, wanted: WorkflowRunFilter | None = None) -> Sequence[WorkflowRun]:
        wanted = wanted or WorkflowRunFilter()
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.queries.workflow_runs(wanted)

    async def run(self, workflow_run_id: int) -> WorkflowRun:
        return await self.store.queries.workflow_run(workflow_run_id)

    async def graph(self, workflow_run_id: int, *, after: int = -1, limit: int = 1000) -> GraphPage:
        """The nodes by position, each with its upstreams, its status and its run."""
        check_within("limit", limit, LONGEST_GRAPH)
        return await self.store.queries.workflow_graph(workflow_run_id, after, limit)

    async def wait(
        self,
        workflow_run_id: int,
        timeout: float | None = None,
        *,
        seen: Callable[[WorkflowRun], None] = lambda run: None,
    ) -> WorkflowRun:
        """Wait for the workflow run to end, and return it; raises `TimeoutError` after `timeout` seconds.

        `seen` is called with the workflow run at each look.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.01
        ended = -1
        while True:
            run = await self.store.queries.workflow_run(workflow_run_id)
            seen(run)
            if run.over:
                return run
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"workflow run {workflow_run_id} had not ended after {timeout:g} s:"
                    f" {run.ended} of {run.total} nodes had"
                )
            pause = 0.01 if run.ended != ended else min(pause * 1.5, 0.5)
            ended = run.ended
            await asyncio.sleep(pause)


def _spec(fields: Mapping[str, Any] | WorkflowSpec) -> WorkflowSpec:
    return fields if isinstance(fields, WorkflowSpec) else WORKFLOW.read(fields)
