"""Starting a workflow, or again the nodes that did not succeed: all or nothing, once for each idempotency key
and for each parent run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.parents import ParentRun, must_own
from fusee.engine.store.request_keys import check_same, digest_of
from fusee.engine.store.rows import encode
from fusee.engine.store.tables import runs
from fusee.engine.store.wakes import ENDED, PENDING
from fusee.errors import Conflict, Invalid, NotFound
from fusee.values.chunks import chunks
from fusee.values.params import bind
from fusee.workflows.model.action import Action, NodeTask, NodeTasks, action_of, payload_of
from fusee.workflows.model.workflow import NodeSpec
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.definitions import WorkflowDefinitions, spec_of
from fusee.workflows.store.insert import Draft, DraftNode, Shape, WorkflowWriter
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows

__all__ = ["MOST_NESTED", "StartedWorkflow", "WorkflowStarts"]

MOST_NESTED = 16


class StartedWorkflow(NamedTuple):
    """A workflow run; `created` is False when its idempotency key had been used before."""

    id: int
    created: bool = True


class _Changed(Exception):
    """The workflow was edited after it was read and before it was started."""


class WorkflowStarts:
    def __init__(
        self,
        context: StoreContext,
        outbox: Outbox,
        writer: WorkflowWriter,
        definitions: WorkflowDefinitions,
        lanes: Lanes,
        tasks: NodeTasks,
    ) -> None:
        self.context = context
        self.outbox = outbox
        self.writer = writer
        self.definitions = definitions
        self.lanes = lanes
        self.tasks = tasks

    async def start_workflow(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        parent: ParentRun | None = None,
    ) -> StartedWorkflow:
        """Start all of it or nothing. The same idempotency key, or the same parent, gets the same run."""
        given = dict(params or {})
        digest = digest_of("start", {"workflow": name, "params": given})
        for again in range(5):
            before = await self.context.database.read(
                lambda connection: self._started_before(connection, idempotency_key, digest, parent)
            )
            if before is not None and parent is None:
                return StartedWorkflow(before, created=False)
            draft = await self._draft_workflow(name, given) if before is None else None
            try:
                started = await self.context.database.write(
                    lambda connection, draft=draft: self._start_once(  # type: ignore[misc]
                        connection, draft, name, idempotency_key, digest, parent
                    )
                )
            except _Changed:
                continue
            except IntegrityError:  # another caller used the key just now: look again
                if again == 4:
                    raise
                continue
            self.context.wakes.fire(PENDING)
            self.context.wakes.fire(ENDED)
            return started
        raise Conflict(f"workflow {name} is being changed at the moment: start it again")

    def _start_once(
        self,
        connection: Connection,
        draft: Draft | None,
        name: str,
        key: str | None,
        digest: str,
        parent: ParentRun | None,
    ) -> StartedWorkflow:
        if parent is not None:
            self._check_parent(connection, parent)
            # The parent is checked until its attempt has ended, in whatever way.
            self.outbox.add(connection, [(PARENT_TOPIC, parent.run_id)])
        before = self._started_before(connection, key, digest, parent)
        if before is not None:
            return StartedWorkflow(before, created=False)
        if draft is None:
            raise _Changed
        query = select(workflows.c.version, workflows.c.live_name).where(workflows.c.id == draft.workflow_id)
        current = connection.execute(query).one_or_none()
        if current is None or current.live_name is None:
            raise NotFound(f"no workflow {name!r} in namespace {self.context.namespace!r}")
        if current.version != draft.version:
            raise _Changed
        return StartedWorkflow(
            self.writer.insert(connection, draft, key, digest, None if parent is None else parent.run_id)
        )

    def _started_before(
        self, connection: Connection, key: str | None, digest: str, parent: ParentRun | None
    ) -> int | None:
        query = select(workflow_runs.c.id, workflow_runs.c.request_digest)
        if parent is not None:
            query = query.where(workflow_runs.c.parent_run == parent.run_id)
        elif key is not None:
            query = query.where(
                workflow_runs.c.namespace == self.context.namespace, workflow_runs.c.idempotency_key == key
            )
        else:
            return None
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        check_same(key, row.request_digest, digest, f"workflow run {row.id}")
        return int(row.id)

    def _check_parent(self, connection: Connection, parent: ParentRun) -> None:
        """Refuse a parent whose worker lost its lease, and workflows that start each other endlessly."""
        must_own(connection, parent)
        run_id: int | None = parent.run_id
        for _ in range(MOST_NESTED):
            started_by = (
                select(workflow_runs.c.parent_run)
                .join(workflow_nodes, workflow_nodes.c.workflow_run_id == workflow_runs.c.id)
                .where(workflow_nodes.c.run_id == run_id)
            )
            found = connection.execute(started_by).one_or_none()
            if found is None:
                return
            run_id = found.parent_run
            if run_id is None:
                return
        raise Conflict(
            f"workflows are nested more than {MOST_NESTED} deep: does one start itself, by way of others?"
        )

    async def _draft_workflow(self, name: str, given: Mapping[str, Any]) -> Draft:
        row = await self.context.database.read(
            lambda connection: self.definitions.workflow_row(connection, name)
        )
        spec = spec_of(row)
        try:
            params = bind(spec.params, given)
        except ValueError as error:
            raise Invalid(str(error), field="params") from None
        known = await self.tasks.task_specs(node.task for node in spec.nodes if node.task is not None)
        of_tasks: dict[str, Action] = {}  # many nodes may name one task
        actions: list[Action] = []
        for node in spec.nodes:
            if node.task is not None and node.task not in known:
                raise Conflict(
                    f"node {node.name} runs task {node.task!r}, which is not there: create it, or change"
                    f" workflow {name}"
                )
            if node.task is None:
                actions.append(action_of(node, None))
                continue
            if node.task not in of_tasks:
                of_tasks[node.task] = action_of(node, known[node.task])
            actions.append(of_tasks[node.task])
        shared = {action: action.run_spec({}) for action in set(actions)}
        lane_ids = await self.lanes.lane_ids({spec.lane(self.context.namespace) for spec in shared.values()})
        lanes = {action: lane_ids[spec.lane(self.context.namespace)] for action, spec in shared.items()}
        options = {
            action: encode(own, "options") if (own := spec.options()) else None
            for action, spec in shared.items()
        }
        positions = {node.name: position for position, node in enumerate(spec.nodes)}
        nodes = [
            DraftNode(
                node.name,
                lanes[action],
                action.priority,
                _payload(node, _task(node, known), params),
                options[action],
                tuple(positions[upstream] for upstream in node.after),
                node.trigger_rule,
            )
            for node, action in zip(spec.nodes, actions, strict=True)
        ]
        return Draft(row.id, row.version, encode(given, "params"), encode(params, "params"), nodes)

    async def rerun(self, workflow_run_id: int, *, idempotency_key: str | None = None) -> StartedWorkflow:
        """Start a new workflow run of the nodes that did not succeed, with the same payloads; they no longer
        wait for the nodes that succeeded."""
        digest = digest_of("rerun", workflow_run_id)

        def work(connection: Connection) -> StartedWorkflow:
            before = self._started_before(connection, idempotency_key, digest, None)
            if before is not None:
                return StartedWorkflow(before, created=False)
            draft = self._draft_rerun(connection, workflow_run_id)
            return StartedWorkflow(self.writer.insert(connection, draft, idempotency_key, digest))

        try:
            started = await self.context.database.write(work)
        except IntegrityError:  # another caller used the key just now
            started = await self.context.database.write(work)
        self.context.wakes.fire(PENDING)
        return started

    def _draft_rerun(self, connection: Connection, workflow_run_id: int) -> Draft:
        mine = (workflow_runs.c.namespace == self.context.namespace, workflow_runs.c.id == workflow_run_id)
        row = connection.execute(select(workflow_runs).where(*mine)).one_or_none()
        if row is None:
            raise NotFound(f"no workflow run {workflow_run_id} in namespace {self.context.namespace!r}")
        if row.status == WorkflowStatus.RUNNING:
            raise Conflict(f"workflow run {workflow_run_id} has not ended: cancel it, or wait")
        own = select(workflow_nodes).where(workflow_nodes.c.workflow_run_id == workflow_run_id)
        nodes = connection.execute(own.order_by(workflow_nodes.c.position)).all()
        left = [node for node in nodes if node.status != RunStatus.SUCCEEDED]
        if not left:
            raise Conflict(
                f"every node of workflow run {workflow_run_id} succeeded: there is nothing to do again"
            )
        before = self._former_runs(connection, [node.run_id for node in left])
        if len(before) < len(left):
            raise Conflict(
                f"workflow run {workflow_run_id} is so old that runs of its nodes are deleted: start it anew"
            )
        shape = Shape.read(row.shape)
        positions = {node.position: place for place, node in enumerate(left)}
        drafts = [
            DraftNode(
                node.node,
                before[node.run_id].lane_id,
                before[node.run_id].priority,
                _same(before[node.run_id].payload),
                before[node.run_id].options,
                _still_needed(node.position, shape, positions),
                shape.rules[node.position],
            )
            for node in left
        ]
        return Draft(row.workflow_id, row.version, row.given, row.params, drafts, workflow_run_id)

    def _former_runs(self, connection: Connection, run_ids: list[int]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for part in chunks(sorted(set(run_ids))):
            query = select(runs.c.id, runs.c.lane_id, runs.c.priority, runs.c.payload, runs.c.options)
            found |= {run.id: run for run in connection.execute(query.where(runs.c.id.in_(part)))}
        return found


def _task(node: NodeSpec, known: Mapping[str, NodeTask]) -> NodeTask | None:
    return None if node.task is None else known[node.task]


def _payload(node: NodeSpec, task: NodeTask | None, params: Mapping[str, Any]) -> Callable[[int], str | None]:
    def written(workflow_run_id: int) -> str | None:
        payload = payload_of(node, task, params, workflow_run_id)
        try:
            return encode(payload, "payload") if payload else None
        except Invalid as error:
            raise Invalid(f"node {node.name}: {error}", field="params") from None

    return written


def _still_needed(position: int, shape: Shape, positions: dict[int, int]) -> tuple[int, ...]:
    upstreams = shape.after[position]
    left = tuple(positions[upstream] for upstream in upstreams if upstream in positions)
    if shape.rules[position] is TriggerRule.ANY_SUCCESS and len(left) < len(upstreams):
        return ()  # one upstream succeeded, which is all that it needs
    return left


def _same(payload: str | None) -> Callable[[int], str | None]:
    return lambda _: payload
