"""Counting nodes of workflow runs that ended, opening the gates of the nodes behind them, and canceling.

The row of the workflow run is locked meanwhile: an end that is reported twice counts once, and a cancel and
an end never miss each other. The cost is the number of edges that leave the ended nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Counted, Gates
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.rows import AnyRow
from fusee.engine.store.tables import LONGEST_REASON, runs
from fusee.engine.store.wakes import CANCEL, ENDED
from fusee.errors import Conflict, NotFound
from fusee.values.chunks import chunks
from fusee.workflows.model.workflow_run import WorkflowStatus, workflow_status
from fusee.workflows.store.tables import edges, workflow_nodes, workflow_runs

__all__ = ["Tally", "WorkflowCanceled", "WorkflowCancels", "WorkflowEnds"]

DEEPEST_CASCADE = 50
"""Levels of nodes that are skipped in one transaction; the next ones go to the outbox and follow later."""

COUNTED = (
    workflow_runs.c.id,
    workflow_runs.c.namespace,
    workflow_runs.c.status,
    workflow_runs.c.reason,
    workflow_runs.c.total,
    workflow_runs.c.ended,
    workflow_runs.c.succeeded,
    workflow_runs.c.skipped,
    workflow_runs.c.canceled,
    workflow_runs.c.parent_run,
    workflow_runs.c.cancel_requested_at,
)
"""The columns of a workflow run that counting needs, without those that can be large."""


@dataclass(slots=True)
class Tally:
    """How many nodes of one workflow run ended just now, by status."""

    ends: Counter[RunStatus] = field(default_factory=Counter)
    culprit: str | None = None

    def add(self, node: str, status: RunStatus) -> None:
        self.ends[status] += 1
        if status in (RunStatus.FAILED, RunStatus.TIMED_OUT) and self.culprit is None:
            self.culprit = f"node {node} {'failed' if status is RunStatus.FAILED else 'timed out'}"


class WorkflowEnds:
    def __init__(self, context: StoreContext, gates: Gates, outbox: Outbox) -> None:
        self.context = context
        self.gates = gates
        self.outbox = outbox

    def workflow_runs_ended(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        """Count those of these runs, each a node of a workflow run, that have ended."""
        owners = self._lock_workflow_runs(connection, run_ids)
        tallies: dict[int, Tally] = {}
        reached = list(run_ids)
        for _ in range(DEEPEST_CASCADE):
            reached = self._count_nodes(connection, reached, owners, tallies, now)
            if not reached:
                break
        else:
            self.outbox.add(connection, [("workflow", run_id) for run_id in reached])
        for workflow_run_id, tally in tallies.items():
            self.count_in(connection, owners[workflow_run_id], tally, now)

    def _lock_workflow_runs(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, Any]:
        ids: set[int] = set()
        for part in chunks(sorted(set(run_ids))):
            query = select(workflow_nodes.c.workflow_run_id).where(workflow_nodes.c.run_id.in_(part))
            ids.update(connection.execute(query.distinct()).scalars())
        owners: dict[int, Any] = {}
        for part in chunks(sorted(ids)):  # in order: two aggregators never wait for each other in a cycle
            locked = select(*COUNTED).where(workflow_runs.c.id.in_(part)).order_by(workflow_runs.c.id)
            owners |= {row.id: row for row in connection.execute(locked.with_for_update())}
        return owners

    def _count_nodes(
        self,
        connection: Connection,
        run_ids: Sequence[int],
        owners: Mapping[int, Any],
        tallies: dict[int, Tally],
        now: int,
    ) -> list[int]:
        """Count the ended nodes that were not counted yet; returns the nodes that are skipped for that."""
        names: dict[int, str] = {}
        success: dict[int, bool] = {}
        for part in chunks(sorted(set(run_ids))):
            for node, status in self._newly_ended(connection, part):
                names[node.run_id] = node.node
                success[node.run_id] = status is RunStatus.SUCCEEDED
                tallies.setdefault(node.workflow_run_id, Tally()).add(node.node, status)
        counted: dict[int, Counted] = {}
        for upstream, downstream in self._take_edges(connection, names):
            counted.setdefault(downstream, Counted()).add(names[upstream], success[upstream])
        return self.gates.count_down(connection, counted, now, tell=False)

    def _newly_ended(self, connection: Connection, run_ids: Sequence[int]) -> list[tuple[Any, RunStatus]]:
        query = select(workflow_nodes).where(
            workflow_nodes.c.run_id.in_(run_ids), workflow_nodes.c.status.is_(None)
        )
        nodes = connection.execute(query).all()
        if not nodes:
            return []
        known = select(runs.c.id, runs.c.status).where(runs.c.id.in_([node.run_id for node in nodes]))
        statuses = {row.id: RunStatus(row.status) for row in connection.execute(known)}
        # A run that retention deleted before it was counted has ended; whether it succeeded is unknown.
        found = [(node, statuses.get(node.run_id, RunStatus.FAILED)) for node in nodes]
        over = [(node, status) for node, status in found if status in TERMINAL]
        for status in {status for _, status in over}:
            self.mark_nodes(connection, [node.run_id for node, ended in over if ended is status], status)
        return over

    def mark_nodes(self, connection: Connection, run_ids: Sequence[int], status: RunStatus) -> None:
        """Mark these nodes as counted, with their end."""
        if run_ids:
            mine = workflow_nodes.c.run_id.in_(run_ids)
            connection.execute(update(workflow_nodes).where(mine).values(status=status))

    def _take_edges(self, connection: Connection, run_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Delete and return the edges that leave these runs."""
        for part in chunks(sorted(set(run_ids))):
            leaving = edges.c.upstream_run.in_(part)
            found = connection.execute(select(edges).where(leaving)).all()
            if found:
                connection.execute(delete(edges).where(leaving))
            yield from ((row.upstream_run, row.downstream_run) for row in found)

    def count_in(self, connection: Connection, owner: AnyRow, tally: Tally, now: int) -> None:
        """Add to the counters. The last node ends the workflow run, which its parent then hears."""
        ends = tally.ends
        counts = {
            "ended": owner.ended + ends.total(),
            "succeeded": owner.succeeded + ends[RunStatus.SUCCEEDED],
            "skipped": owner.skipped + ends[RunStatus.SKIPPED],
            "canceled": owner.canceled + ends[RunStatus.CANCELED],
        }
        requested = owner.cancel_requested_at is not None
        status = workflow_status(total=owner.total, **counts, cancel_requested=requested)
        over = status is not WorkflowStatus.RUNNING
        reason = owner.reason or (tally.culprit[:LONGEST_REASON] if tally.culprit else None)
        values = {**counts, "status": status, "reason": reason, "finished_at": now if over else None}
        running = (workflow_runs.c.id == owner.id, workflow_runs.c.status == WorkflowStatus.RUNNING)
        counted = connection.execute(update(workflow_runs).where(*running).values(values)).rowcount
        if counted and over and owner.parent_run is not None:
            self.outbox.add(connection, [(PARENT_TOPIC, owner.parent_run)])


@dataclass(frozen=True, slots=True)
class WorkflowCanceled:
    """What a cancel did: the number of canceled nodes, and the runs that were told to stop."""

    canceled: int
    told: Sequence[int]


class WorkflowCancels:
    """Cancels a workflow run: nodes that have not started are canceled, running ones are told to stop.

    First, in one transaction that locks the row of the workflow run, every blocked node is canceled and every
    remaining edge is deleted: from then on no node is released. Then the nodes that were released before are
    canceled, a few hundred at a time. When the process dies in between, the workflow run still ends alone.
    """

    def __init__(self, context: StoreContext, cancels: Cancels, ends: WorkflowEnds, gates: Gates) -> None:
        self.context = context
        self.cancels = cancels
        self.ends = ends
        self.gates = gates

    async def cancel_workflow_run(self, workflow_run_id: int, reason: str) -> WorkflowCanceled:
        """Cancel it; raises `Conflict` when it has ended in another way."""

        def work(connection: Connection) -> tuple[int, list[int]]:
            mine = (
                workflow_runs.c.namespace == self.context.namespace,
                workflow_runs.c.id == workflow_run_id,
            )
            row = connection.execute(select(*COUNTED).where(*mine).with_for_update()).one_or_none()
            if row is None:
                raise NotFound(f"no workflow run {workflow_run_id} in namespace {self.context.namespace!r}")
            if row.status not in (WorkflowStatus.RUNNING, WorkflowStatus.CANCELED):
                raise Conflict(
                    f"workflow run {workflow_run_id} has ended ({row.status}): there is nothing to cancel"
                )
            return self._cancel_blocked(connection, row, reason, self.context.now(connection))

        canceled, released = await self.context.database.write(work)
        told: list[int] = []
        for part in chunks(sorted(released)):
            stands = await self.context.database.write(
                lambda connection, part=part: self.cancels.cancel_many(  # type: ignore[misc]
                    connection, part, reason, self.context.now(connection)
                )
            )
            told += [run_id for run_id, status in stands.items() if status is RunStatus.RUNNING]
            canceled += sum(status is RunStatus.CANCELED for status in stands.values())
        self.context.wakes.fire(CANCEL)
        self.context.wakes.fire(ENDED)
        return WorkflowCanceled(canceled, told)

    def stop_workflow_run(self, connection: Connection, row: Any, reason: str, now: int) -> None:
        """Cancel it in the caller's transaction, which has locked the row."""
        _, released = self._cancel_blocked(connection, row, reason, now)
        self.cancels.cancel_many(connection, released, reason, now)

    def _cancel_blocked(
        self, connection: Connection, row: Any, reason: str, now: int
    ) -> tuple[int, list[int]]:
        """Cancel the blocked nodes; returns how many, and the nodes that remain."""
        if row.status != WorkflowStatus.RUNNING:
            return 0, []
        reason = reason[:LONGEST_REASON]
        asked = {
            "cancel_requested_at": func.coalesce(workflow_runs.c.cancel_requested_at, now),
            "reason": reason,
        }
        connection.execute(update(workflow_runs).where(workflow_runs.c.id == row.id).values(asked))
        mine = select(workflow_nodes.c.run_id).where(
            workflow_nodes.c.workflow_run_id == row.id, workflow_nodes.c.status.is_(None)
        )
        left = list(connection.execute(mine).scalars())
        blocked: set[int] = set()
        for part in chunks(sorted(left)):
            connection.execute(delete(edges).where(edges.c.upstream_run.in_(part)))
            blocked.update(self._cancel_nodes(connection, part, reason, now))
        if blocked:
            tally = Tally()
            tally.ends[RunStatus.CANCELED] = len(blocked)
            again = select(*COUNTED).where(workflow_runs.c.id == row.id)
            self.ends.count_in(connection, connection.execute(again).one(), tally, now)
        return len(blocked), [run_id for run_id in left if run_id not in blocked]

    def _cancel_nodes(
        self, connection: Connection, run_ids: Sequence[int], reason: str, now: int
    ) -> list[int]:
        """Cancel those of these nodes that are blocked. They are counted here: ten thousand outbox rows would
        only say what is known already."""
        blocked = self.cancels.cancel_blocked(connection, run_ids, reason, now)
        if blocked:
            self.ends.mark_nodes(connection, blocked, RunStatus.CANCELED)
            self.gates.forget_gates(connection, blocked)
        return blocked

    async def latest_start(self, run_ids: Sequence[int]) -> float | None:
        """Seconds since the latest claim of these runs; None when none of them is running."""

        def work(connection: Connection) -> float | None:
            latest: list[int] = []
            for part in chunks(sorted(set(run_ids))):
                query = select(func.max(runs.c.started_at)).where(
                    runs.c.id.in_(part), runs.c.status == RunStatus.RUNNING
                )
                started: int | None = connection.execute(query).scalar_one_or_none()
                latest += [] if started is None else [started]
            return (self.context.now(connection) - max(latest)) / 1_000_000 if latest else None

        return await self.context.database.read(work)
