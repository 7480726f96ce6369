"""Canceling a workflow run: nodes that have not started are canceled, running ones are told to stop.

First, in one transaction that locks the row of the workflow run, every blocked node is canceled and every
remaining edge is deleted: from then on no node is released. Then the nodes that were released before are
canceled, a few hundred at a time. When the process dies in between, the workflow run still ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from fusee.engine.model.states import RunStatus
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.tables import LONGEST_REASON, runs
from fusee.engine.store.wakes import CANCEL, ENDED
from fusee.errors import Conflict, NotFound
from fusee.values.chunks import chunks
from fusee.workflows.model.workflow_run import WorkflowStatus
from fusee.workflows.store.ends import COUNTED, Tally, WorkflowEnds
from fusee.workflows.store.tables import edges, workflow_nodes, workflow_runs

__all__ = ["WorkflowCanceled", "WorkflowCancels"]


@dataclass(frozen=True, slots=True)
class WorkflowCanceled:
    """What a cancel did: the number of canceled nodes, and the runs that were told to stop."""

    canceled: int
    told: Sequence[int]


class WorkflowCancels:
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
