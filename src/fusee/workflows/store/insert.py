"""A workflow run comes into being: its nodes' runs, its edges and its gates, inside a larger transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, insert

from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.run_writer import Birth, RunWriter
from fusee.errors import Invalid
from fusee.tasks.model.task import TriggerRule
from fusee.values.chunks import ROWS_A_STATEMENT, chunks
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.shape import Shape
from fusee.workflows.store.tables import edges, workflow_nodes, workflow_runs

__all__ = ["Draft", "DraftNode", "WorkflowWriter"]

KIND = "workflow"
CHARACTERS_A_STATEMENT = 1024 * 1024  # stays below the defaults of max_allowed_packet
LARGEST_START = 32 * 1024 * 1024


class DraftNode(NamedTuple):
    """A node that is about to become a run."""

    name: str
    lane_id: int
    priority: int
    payload: Callable[[int], str | None]
    """Of the workflow run's number, which is known last."""
    options: str | None
    after: tuple[int, ...]
    """Positions."""
    rule: TriggerRule


@dataclass(frozen=True, slots=True)
class Draft:
    """All that is known of a workflow run before its transaction begins."""

    workflow_id: int
    name: str
    version: int
    given: str
    params: str
    nodes: Sequence[DraftNode]
    origin_id: int | None = None

    @property
    def shape(self) -> Shape:
        return Shape.of([node.after for node in self.nodes], [node.rule for node in self.nodes])


class WorkflowWriter:
    def __init__(self, context: StoreContext, run_writer: RunWriter, gates: Gates) -> None:
        self.context = context
        self.run_writer = run_writer
        self.gates = gates

    def insert(
        self,
        connection: Connection,
        draft: Draft,
        key: str | None,
        digest: str | None,
        waiter: int | None = None,
    ) -> int:
        now = self.context.now(connection)
        added = connection.execute(
            insert(workflow_runs).values(
                namespace=self.context.namespace,
                workflow_id=draft.workflow_id,
                version=draft.version,
                status=WorkflowStatus.RUNNING,
                shape=draft.shape.text(),
                given=draft.given,
                params=draft.params,
                total=len(draft.nodes),
                ended=0,
                succeeded=0,
                skipped=0,
                canceled=0,
                waiter=waiter,
                origin_id=draft.origin_id,
                idempotency_key=key,
                request_digest=digest,
                created_at=now,
            )
        )
        primary = added.inserted_primary_key
        assert primary is not None
        workflow_run_id = int(primary[0])
        run_ids: list[int] = []
        for births in _portions(draft.nodes, workflow_run_id):
            run_ids += self.run_writer.insert_runs(connection, births, now)
        self._lay_edges(connection, workflow_run_id, draft.nodes, run_ids)
        return workflow_run_id

    def _lay_edges(
        self,
        connection: Connection,
        workflow_run_id: int,
        nodes: Sequence[DraftNode],
        run_ids: Sequence[int],
    ) -> None:
        """Who waits for whom."""
        rows = [
            {"workflow_run_id": workflow_run_id, "position": position, "node": node.name, "run_id": run_id}
            for position, (node, run_id) in enumerate(zip(nodes, run_ids, strict=True))
        ]
        ways = [
            {"upstream_run": run_ids[upstream], "downstream_run": run_id}
            for node, run_id in zip(nodes, run_ids, strict=True)
            for upstream in node.after
        ]
        for part in chunks(rows):
            connection.execute(insert(workflow_nodes), part)
        for way in chunks(ways):
            connection.execute(insert(edges), way)
        for rule in TriggerRule:
            needs = {
                run_id: len(node.after)
                for node, run_id in zip(nodes, run_ids, strict=True)
                if node.after and node.rule is rule
            }
            self.gates.build_gates(connection, rule, needs)


def _portions(nodes: Sequence[DraftNode], workflow_run_id: int) -> Iterator[list[Birth]]:
    """As many runs as one statement should take, by number and by size."""
    part: list[Birth] = []
    size = total = 0
    for node in nodes:
        payload = node.payload(workflow_run_id)
        own = len(payload or "")
        total += own
        if total > LARGEST_START:
            raise Invalid(
                f"the payloads of the nodes have over {LARGEST_START} characters together: store large data"
                " elsewhere and pass a reference to it",
                field="params",
            )
        if part and (len(part) >= ROWS_A_STATEMENT or size + own > CHARACTERS_A_STATEMENT):
            yield part
            part, size = [], 0
        part.append(_birth(node, payload))
        size += own
    yield part


def _birth(node: DraftNode, payload: str | None) -> Birth:
    many = len(node.after)
    return Birth(
        lane_id=node.lane_id,
        status=RunStatus.BLOCKED if many else RunStatus.PENDING,
        priority=node.priority,
        payload=payload,
        options=node.options,
        kind=KIND,
        reason=f"waits for {many} upstream node{'s' * (many > 1)}" if many else None,
    )
