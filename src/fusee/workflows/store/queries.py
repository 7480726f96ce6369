"""Reading workflow runs and their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode
from fusee.engine.store.set_aside import reading
from fusee.engine.store.tables import runs
from fusee.errors import NotFound
from fusee.values.chunks import chunks
from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun, WorkflowStatus
from fusee.workflows.store.insert import Shape
from fusee.workflows.store.tables import workflow_nodes, workflow_runs, workflows

__all__ = ["GraphPage", "WorkflowQueries", "WorkflowRunFilter", "WorkflowStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRunFilter:
    """Which workflow runs to list: newest first, with an id below `before` when that is given."""

    workflow: str | None = None
    status: Sequence[WorkflowStatus] = ()
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class GraphPage:
    """Some nodes of a workflow run, by position; `total` is the number of all its nodes."""

    nodes: Sequence[WorkflowNode]
    total: int


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """The place of a run in a workflow run."""

    node: str
    workflow_run_id: int
    workflow: str
    over: bool
    """The workflow run has ended."""

    @property
    def rerun(self) -> str:
        """The command that repeats the unsuccessful steps."""
        return f"fusee workflow rerun {self.workflow_run_id}"


class WorkflowQueries:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def _workflow_runs(self) -> Select[Any]:
        columns = [c for c in workflow_runs.c if c.name not in ("shape", "given")]
        return (
            select(*columns, workflows.c.name)
            .join(workflows, workflows.c.id == workflow_runs.c.workflow_id)
            .where(workflow_runs.c.namespace == self.context.namespace)
        )

    async def workflow_run(self, workflow_run_id: int) -> WorkflowRun:
        query = self._workflow_runs().where(workflow_runs.c.id == workflow_run_id)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no workflow run {workflow_run_id} in namespace {self.context.namespace!r}")
        return reading("workflow run", workflow_run_id, lambda: _workflow_run(row))

    async def workflow_runs(self, wanted: WorkflowRunFilter) -> list[WorkflowRun]:
        query = self._workflow_runs().order_by(workflow_runs.c.id.desc())
        if wanted.workflow is not None:
            query = query.where(workflow_runs.c.workflow_id == await self._workflow_id(wanted.workflow))
        if wanted.status:
            query = query.where(workflow_runs.c.status.in_(wanted.status))
        if wanted.before is not None:
            query = query.where(workflow_runs.c.id < wanted.before)
        return await self.context.page(
            query, wanted.limit, lambda last: workflow_runs.c.id < last.id, "workflow run", _workflow_run
        )

    async def workflow_step(self, run_id: int) -> WorkflowStep | None:
        """The workflow run and the node that this run belongs to; None when that is deleted."""
        query = (
            select(
                workflow_nodes.c.node,
                workflow_nodes.c.workflow_run_id,
                workflow_runs.c.finished_at,
                workflows.c.name,
            )
            .join(workflow_runs, workflow_runs.c.id == workflow_nodes.c.workflow_run_id)
            .join(workflows, workflows.c.id == workflow_runs.c.workflow_id)
            .where(workflow_nodes.c.run_id == run_id, workflow_runs.c.namespace == self.context.namespace)
        )
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        return WorkflowStep(row.node, row.workflow_run_id, row.name, row.finished_at is not None)

    async def _workflow_id(self, name: str) -> int:
        query = select(workflows.c.id).where(
            workflows.c.namespace == self.context.namespace, workflows.c.live_name == name
        )
        found = await self.context.database.read(
            lambda connection: connection.execute(query).scalar_one_or_none()
        )
        if found is None:
            raise NotFound(f"no workflow {name!r} in namespace {self.context.namespace!r}")
        return int(found)

    async def workflow_graph(self, workflow_run_id: int, after: int = -1, limit: int = 1000) -> GraphPage:
        """The nodes behind position `after`, each with its upstreams, its status and its run."""

        def work(connection: Connection) -> GraphPage:
            mine = (
                workflow_runs.c.namespace == self.context.namespace,
                workflow_runs.c.id == workflow_run_id,
            )
            found = connection.execute(select(workflow_runs.c.shape).where(*mine)).scalar_one_or_none()
            if found is None:
                raise NotFound(f"no workflow run {workflow_run_id} in namespace {self.context.namespace!r}")
            shape = Shape.read(found)
            own = workflow_nodes.c.workflow_run_id == workflow_run_id
            page = (
                select(
                    workflow_nodes.c.position,
                    workflow_nodes.c.node,
                    workflow_nodes.c.run_id,
                    # Until an end is counted, the status of its run is the newer one.
                    func.coalesce(runs.c.status, workflow_nodes.c.status).label("status"),
                    runs.c.attempt,
                    runs.c.reason,
                )
                .outerjoin(runs, runs.c.id == workflow_nodes.c.run_id)
                .where(own, workflow_nodes.c.position > after)
                .order_by(workflow_nodes.c.position)
                .limit(limit)
            )
            rows = connection.execute(page).all()
            names = self._node_names(connection, workflow_run_id, rows, shape)
            levels = shape.levels()
            return GraphPage([_node(row, shape, names, levels) for row in rows], len(shape.after))

        return await self.context.database.read(work)

    def _node_names(
        self, connection: Connection, workflow_run_id: int, rows: Sequence[Any], shape: Shape
    ) -> dict[int, str]:
        """Position → name, of these nodes and of their upstreams."""
        names = {row.position: row.node for row in rows}
        missing = sorted({up for row in rows for up in shape.after[row.position]} - names.keys())
        for part in chunks(missing):
            query = select(workflow_nodes.c.position, workflow_nodes.c.node).where(
                workflow_nodes.c.workflow_run_id == workflow_run_id,
                workflow_nodes.c.position.in_(part),
            )
            names |= {row.position: row.node for row in connection.execute(query)}
        return names


def _workflow_run(row: Row[Any]) -> WorkflowRun:
    return WorkflowRun(
        id=row.id,
        namespace=row.namespace,
        workflow=row.name,
        version=row.version,
        status=WorkflowStatus(row.status),
        reason=row.reason,
        params=decode(row.params),
        total=row.total,
        ended=row.ended,
        succeeded=row.succeeded,
        skipped=row.skipped,
        canceled=row.canceled,
        parent_run=row.parent_run,
        origin_id=row.origin_id,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        finished_at=row.finished_at,
        cancel_requested_at=row.cancel_requested_at,
    )


def _node(row: Any, shape: Shape, names: dict[int, str], levels: Sequence[int]) -> WorkflowNode:
    return WorkflowNode(
        position=row.position,
        name=row.node,
        level=levels[row.position],
        after=tuple(names[upstream] for upstream in shape.after[row.position]),
        trigger_rule=shape.rules[row.position],
        run_id=row.run_id,
        status=RunStatus(row.status or RunStatus.FAILED),
        attempt=row.attempt,
        reason=row.reason,
    )
