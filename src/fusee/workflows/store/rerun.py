"""Doing the unsuccessful nodes of a workflow run again, as a new workflow run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import check_same, digest_of
from fusee.engine.store.tables import runs
from fusee.engine.store.wakes import PENDING
from fusee.errors import Conflict, NotFound
from fusee.tasks.model.task import TriggerRule
from fusee.values.chunks import chunks
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.insert import Draft, DraftNode, WorkflowWriter
from fusee.workflows.store.shape import Shape
from fusee.workflows.store.start import StartedWorkflow
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows

__all__ = ["WorkflowReruns"]


class WorkflowReruns:
    def __init__(self, context: StoreContext, writer: WorkflowWriter) -> None:
        self.context = context
        self.writer = writer

    async def rerun_workflow_run(
        self, workflow_run_id: int, *, idempotency_key: str | None = None
    ) -> StartedWorkflow:
        """A new workflow run of the nodes that did not succeed, with the same payloads; what succeeded is
        not waited for any more."""

        digest = digest_of("rerun", workflow_run_id)

        def work(connection: Connection) -> StartedWorkflow:
            if idempotency_key is not None:
                query = select(workflow_runs.c.id, workflow_runs.c.request_digest).where(
                    workflow_runs.c.namespace == self.context.namespace,
                    workflow_runs.c.idempotency_key == idempotency_key,
                )
                before = connection.execute(query).one_or_none()
                if before is not None:
                    what = f"workflow run {before.id}"
                    check_same(idempotency_key, before.request_digest, digest, what)
                    return StartedWorkflow(before.id, created=False)
            draft = self._draft_rerun(connection, workflow_run_id)
            return StartedWorkflow(self.writer.insert(connection, draft, idempotency_key, digest))

        try:
            started = await self.context.database.write(work)
        except IntegrityError:  # another caller used the key just now
            started = await self.context.database.write(work)
        self.context.wakes.fire(PENDING)
        return started

    def _draft_rerun(self, connection: Connection, workflow_run_id: int) -> Draft:
        query = (
            select(workflow_runs, workflows.c.name)
            .join(workflows, workflows.c.id == workflow_runs.c.workflow_id)
            .where(workflow_runs.c.namespace == self.context.namespace, workflow_runs.c.id == workflow_run_id)
        )
        row = connection.execute(query).one_or_none()
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
        return Draft(row.workflow_id, row.name, row.version, row.given, row.params, drafts, workflow_run_id)

    def _former_runs(self, connection: Connection, run_ids: list[int]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for part in chunks(sorted(set(run_ids))):
            query = select(runs.c.id, runs.c.lane_id, runs.c.priority, runs.c.payload, runs.c.options)
            found |= {run.id: run for run in connection.execute(query.where(runs.c.id.in_(part)))}
        return found


def _still_needed(position: int, shape: Shape, positions: dict[int, int]) -> tuple[int, ...]:
    upstreams = shape.after[position]
    left = tuple(positions[upstream] for upstream in upstreams if upstream in positions)
    if shape.rules[position] is TriggerRule.ANY_SUCCESS and len(left) < len(upstreams):
        return ()  # one succeeded, which is all that it waits for
    return left


def _same(payload: str | None) -> Callable[[int], str | None]:
    return lambda _: payload
