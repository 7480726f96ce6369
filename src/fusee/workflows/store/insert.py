"""Inserting a workflow run: the runs of its nodes, its edges and its gates, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, insert

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.rows import NewRun, decode
from fusee.engine.store.run_writer import RunWriter
from fusee.errors import Invalid
from fusee.values.chunks import chunks
from fusee.values.graph import levels_of
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.tables import edges, workflow_nodes, workflow_runs

__all__ = ["Draft", "DraftNode", "Shape", "WorkflowWriter"]

KIND = "workflow"
LARGEST_START = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Which node of a workflow run is after which, as positions: edges are deleted as nodes end."""

    after: Sequence[Sequence[int]]
    rules: Sequence[TriggerRule]

    @classmethod
    def read(cls, text: str) -> Shape:
        plain: dict[str, Any] = decode(text)
        rules = [TriggerRule.ALL_SUCCESS] * len(plain["after"])
        for position, rule in plain["rules"].items():
            rules[int(position)] = TriggerRule(rule)
        return cls(plain["after"], rules)

    def text(self) -> str:
        """The JSON to store. Nearly all nodes have the same rule: only the others are written."""
        others = {
            str(position): rule
            for position, rule in enumerate(self.rules)
            if rule is not TriggerRule.ALL_SUCCESS
        }
        return msgspec.json.encode({"after": self.after, "rules": others}).decode()

    def levels(self) -> list[int]:
        """The number of steps before each node, on the longest path."""
        found = levels_of(dict(enumerate(self.after)))
        return [found[position] for position in range(len(self.after))]


class DraftNode(NamedTuple):
    """A node whose run is about to be inserted."""

    name: str
    lane_id: int
    priority: int
    payload: Callable[[int], str | None]
    """Returns the payload for the id of the workflow run, which is known last."""
    options: str | None
    after: tuple[int, ...]
    """The positions of its upstream nodes."""
    rule: TriggerRule


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything about a workflow run that is known before its transaction begins."""

    workflow_id: int
    version: int
    given: str
    params: str
    nodes: Sequence[DraftNode]
    origin_id: int | None = None

    @property
    def shape(self) -> Shape:
        return Shape([node.after for node in self.nodes], [node.rule for node in self.nodes])


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
        parent_run: int | None = None,
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
                parent_run=parent_run,
                origin_id=draft.origin_id,
                idempotency_key=key,
                request_digest=digest,
                created_at=now,
            )
        )
        primary = added.inserted_primary_key
        assert primary is not None
        workflow_run_id = int(primary[0])
        new_runs = list(_new_runs(draft.nodes, workflow_run_id))
        run_ids = self.run_writer.insert_runs(connection, new_runs, now)
        self._insert_graph(connection, workflow_run_id, draft.nodes, run_ids)
        return workflow_run_id

    def _insert_graph(
        self,
        connection: Connection,
        workflow_run_id: int,
        nodes: Sequence[DraftNode],
        run_ids: Sequence[int],
    ) -> None:
        """Insert the nodes, the edges between them and their gates."""
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


def _new_runs(nodes: Sequence[DraftNode], workflow_run_id: int) -> Iterator[NewRun]:
    total = 0
    for node in nodes:
        payload = node.payload(workflow_run_id)
        total += len(payload or "")
        if total > LARGEST_START:
            raise Invalid(
                f"the payloads of the nodes have over {LARGEST_START} characters together: store large data"
                " elsewhere and pass a reference to it",
                field="params",
            )
        yield _new_run(node, payload)


def _new_run(node: DraftNode, payload: str | None) -> NewRun:
    many = len(node.after)
    return NewRun(
        lane_id=node.lane_id,
        status=RunStatus.BLOCKED if many else RunStatus.PENDING,
        priority=node.priority,
        payload=payload,
        options=node.options,
        kind=KIND,
        reason=f"waits for {many} upstream node{'s' * (many > 1)}" if many else None,
    )
