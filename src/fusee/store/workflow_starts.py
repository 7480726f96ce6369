"""Starting a workflow: its nodes' runs, edges and gates come into being in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from fusee.errors import Conflict, Invalid, LeaseLost, NotFound
from fusee.model import RunStatus
from fusee.model.action import Action, action_of, payload_of
from fusee.model.params import bind
from fusee.model.task import TaskSpec, TriggerRule
from fusee.model.workflow import NodeSpec
from fusee.store.births import Birth
from fusee.store.gates import Gates
from fusee.store.rows import decode, encode
from fusee.store.schema import runs
from fusee.store.task_schema import edges, workflow_nodes, workflow_runs, workflows
from fusee.store.wakes import ENDED, PENDING
from fusee.store.workflow_definitions import WorkflowDefinitions, spec_of
from fusee.store.workflow_shape import Shape

__all__ = ["Draft", "DraftNode", "StartedWorkflow", "Waiter", "WorkflowStarts"]

KIND = "workflow"
ROWS_A_STATEMENT = 500
CHARACTERS_A_STATEMENT = 1024 * 1024  # stays below the defaults of max_allowed_packet
LARGEST_START = 32 * 1024 * 1024
MOST_NESTED = 16


class StartedWorkflow(NamedTuple):
    """A workflow run; `created` is false when its idempotency key had been used before."""

    id: int
    created: bool = True


class Waiter(NamedTuple):
    """The attempt of a run that starts a workflow and waits for its end."""

    run_id: int
    attempt: int


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


class _Changed(Exception):
    """The workflow was edited between reading it and starting it."""


class WorkflowStarts(Gates, WorkflowDefinitions):
    async def start_workflow(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        waiter: Waiter | None = None,
    ) -> StartedWorkflow:
        """Start all of it or nothing. A key used again, or a waiter that asks again, gets the same one."""
        given = dict(params or {})
        for again in range(5):
            before = await self.database.read(
                lambda connection: self._started_before(connection, name, given, idempotency_key, waiter)
            )
            if before is not None and waiter is None:
                return StartedWorkflow(before, created=False)
            draft = await self._draft_workflow(name, given) if before is None else None
            try:
                started = await self.database.write(
                    lambda connection, draft=draft: self._start_once(  # type: ignore[misc]
                        connection, draft, name, given, idempotency_key, waiter
                    )
                )
            except (IntegrityError, _Changed):  # another caller used the key, or someone edited it just now
                if again == 4:
                    raise Conflict(
                        f"workflow {name} is being changed at the moment: start it again"
                    ) from None
                continue
            self.wakes.fire(PENDING)
            self.wakes.fire(ENDED)
            return started
        raise AssertionError("unreachable")

    def _start_once(
        self,
        connection: Connection,
        draft: Draft | None,
        name: str,
        given: Mapping[str, Any],
        key: str | None,
        waiter: Waiter | None,
    ) -> StartedWorkflow:
        if waiter is not None:
            self._check_waiter(connection, waiter)
            # Looked at until its attempt is over, whatever becomes of that.
            self._tell(connection, [("waiter", waiter.run_id)])
        before = self._started_before(connection, name, given, key, waiter)
        if before is not None:
            return StartedWorkflow(before, created=False)
        if draft is None:
            raise _Changed
        query = select(workflows.c.version, workflows.c.live_name).where(workflows.c.id == draft.workflow_id)
        current = connection.execute(query).one_or_none()
        if current is None or current.live_name is None:
            raise NotFound(f"no workflow {name!r} in namespace {self.namespace!r}")
        if current.version != draft.version:
            raise _Changed
        return StartedWorkflow(self._bear_workflow(connection, draft, key, waiter))

    def _started_before(
        self,
        connection: Connection,
        name: str,
        given: Mapping[str, Any],
        key: str | None,
        waiter: Waiter | None,
    ) -> int | None:
        query = select(workflow_runs.c.id, workflow_runs.c.given, workflows.c.name).join(
            workflows, workflows.c.id == workflow_runs.c.workflow_id
        )
        if waiter is not None:
            query = query.where(workflow_runs.c.waiter == waiter.run_id)
        elif key is not None:
            query = query.where(
                workflow_runs.c.namespace == self.namespace, workflow_runs.c.idempotency_key == key
            )
        else:
            return None
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        # Compared as JSON: the members of an object have no order.
        if row.name != name or decode(row.given) != decode(encode(given, "params")):
            raise Conflict(
                f"idempotency key {key!r} was used for another request (workflow run {row.id}):"
                " use a new key for a new start"
            )
        return int(row.id)

    def _check_waiter(self, connection: Connection, waiter: Waiter) -> None:
        """A worker that lost its lease starts nothing, and workflows do not start each other without end."""
        mine = (
            runs.c.id == waiter.run_id,
            runs.c.attempt == waiter.attempt,
            runs.c.status == RunStatus.RUNNING,
            runs.c.cancel_requested_at.is_(None),
        )
        if connection.execute(select(runs.c.id).where(*mine).with_for_update()).one_or_none() is None:
            raise LeaseLost(
                f"attempt {waiter.attempt} of run {waiter.run_id} is over, or was told to stop:"
                " it starts nothing"
            )
        run_id: int | None = waiter.run_id
        for _ in range(MOST_NESTED):
            parent = (
                select(workflow_runs.c.waiter)
                .join(workflow_nodes, workflow_nodes.c.workflow_run_id == workflow_runs.c.id)
                .where(workflow_nodes.c.run_id == run_id)
            )
            found = connection.execute(parent).one_or_none()
            if found is None:
                return
            run_id = found.waiter
            if run_id is None:
                return
        raise Conflict(
            f"workflows are nested more than {MOST_NESTED} deep: does one start itself, by way of others?"
        )

    async def _draft_workflow(self, name: str, given: Mapping[str, Any]) -> Draft:
        row = await self.database.read(lambda connection: self._workflow_row(connection, name))
        spec = spec_of(row)
        try:
            params = bind(spec.params, given)
        except ValueError as error:
            raise Invalid(str(error), field="params") from None
        known = await self.task_specs(node.task for node in spec.nodes if node.task is not None)
        actions: list[Action] = []
        for node in spec.nodes:
            if node.task is not None and node.task not in known:
                raise Conflict(
                    f"node {node.name} runs task {node.task!r}, which is not there: create it, or change"
                    f" workflow {name}"
                )
            actions.append(action_of(node, _task(node, known)))
        shared = {action: action.run_spec({}) for action in set(actions)}
        lane_ids = await self.lane_ids({spec.lane(self.namespace) for spec in shared.values()})
        lanes = {action: lane_ids[spec.lane(self.namespace)] for action, spec in shared.items()}
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
        return Draft(row.id, name, row.version, encode(given, "params"), encode(params, "params"), nodes)

    def _bear_workflow(
        self, connection: Connection, draft: Draft, key: str | None, waiter: Waiter | None
    ) -> int:
        now = self._now(connection)
        added = connection.execute(
            insert(workflow_runs).values(
                namespace=self.namespace,
                workflow_id=draft.workflow_id,
                version=draft.version,
                status="running",
                shape=draft.shape.text(),
                given=draft.given,
                params=draft.params,
                total=len(draft.nodes),
                ended=0,
                succeeded=0,
                skipped=0,
                canceled=0,
                waiter=None if waiter is None else waiter.run_id,
                origin_id=draft.origin_id,
                idempotency_key=key,
                created_at=now,
            )
        )
        primary = added.inserted_primary_key
        assert primary is not None
        workflow_run_id = int(primary[0])
        run_ids: list[int] = []
        for births in _portions(draft.nodes, workflow_run_id):
            run_ids += self._bear(connection, births, now)
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
        for table, new in ((workflow_nodes, rows), (edges, ways)):
            for start in range(0, len(new), ROWS_A_STATEMENT):
                connection.execute(insert(table), new[start : start + ROWS_A_STATEMENT])
        for rule in TriggerRule:
            needs = {
                run_id: len(node.after)
                for node, run_id in zip(nodes, run_ids, strict=True)
                if node.after and node.rule is rule
            }
            self._build_gates(connection, rule, needs)


def _task(node: NodeSpec, known: Mapping[str, TaskSpec]) -> TaskSpec | None:
    return None if node.task is None else known[node.task]


def _payload(node: NodeSpec, task: TaskSpec | None, params: Mapping[str, Any]) -> Callable[[int], str | None]:
    def written(workflow_run_id: int) -> str | None:
        payload = payload_of(node, task, params, workflow_run_id)
        try:
            return encode(payload, "payload") if payload else None
        except Invalid as error:
            raise Invalid(f"node {node.name}: {error}", field="params") from None

    return written


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
