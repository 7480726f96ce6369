"""Batches as the engine knows them: what follows when a target's run ends, is retried or grows old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, exists, select

from fusee.batches.model.batch import BatchPhase, BatchStatus, BatchTask
from fusee.batches.store.ends import BatchEnds
from fusee.batches.store.intake import BatchIntake
from fusee.batches.store.moves import BatchMoves
from fusee.batches.store.moving import Moving
from fusee.batches.store.queries import BatchQueries, TargetFilter
from fusee.batches.store.tables import batches
from fusee.engine.model.outcome import End, Verdict
from fusee.engine.model.run import Run, RunKind
from fusee.engine.model.states import RunStatus
from fusee.engine.owners import Judged, Owner, Reaction, Retried
from fusee.engine.store.parents import Outcome, Parents, StartedKind
from fusee.engine.store.tables import outbox, runs
from fusee.errors import Conflict, NotFound

__all__ = ["BATCH_RUNS", "BatchOwner"]

TARGETS_DONE, TARGET_ENDED = "batch", "batch_run"
"""Outbox topics: so many targets of a batch succeeded; a target's run ended otherwise."""


def _log_fields(
    owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    rollback = True if payload.get("rollback") else None
    return {"batch_id": owner_id, "target_id": payload.get("target_id"), "rollback": rollback}


BATCH_RUNS = RunKind("batch", _log_fields)


class BatchOwner(Owner):
    kind = BATCH_RUNS.name
    run_kind = BATCH_RUNS

    def __init__(
        self, parents: Parents, intake: BatchIntake, moves: BatchMoves, ends: BatchEnds, queries: BatchQueries
    ) -> None:
        self.parents = parents
        self.intake = intake
        self.moves = moves
        self.ends = ends
        self.queries = queries

    @property
    def end_topic(self) -> str:
        return TARGET_ENDED

    def reactions(self) -> Mapping[str, Reaction]:
        return {TARGETS_DONE: self._targets_done, TARGET_ENDED: self._targets_ended}

    def _targets_done(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        counts: Counter[int] = Counter()
        for row in rows:
            counts[row.run_id] += row.many
        self.ends.batch_successes(connection, counts, now)
        return ()

    def _targets_ended(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self.ends.batch_runs_ended(connection, sorted({row.run_id for row in rows}), now)
        return ()

    def of_this_region(self, topic: str, region: str) -> Sequence[ColumnElement[bool]]:
        """A dispatcher with a region advances the batches of that region and those without one. A row whose
        batch is gone is anyone's."""
        if not region:
            return ()
        other = select(batches.c.id).where(batches.c.region.not_in(("", region)))
        if topic == TARGETS_DONE:
            other = other.where(batches.c.id == outbox.c.run_id)
        else:
            other = other.join(runs, runs.c.owner_id == batches.c.id).where(runs.c.id == outbox.c.run_id)
        return (~exists(other.correlate(outbox)),)

    def before_retry(self, connection: Connection, retried: Sequence[Judged]) -> Sequence[Judged]:
        """An attempt that ends in a batch that was stopped is the last of its run: the caller who stopped the
        batch was told that no target starts any more."""
        # Locked: a stop under way would look for this run in the ready queue before we have put it there.
        mine = batches.c.id.in_({row.owner_id for _, row in retried})
        query = select(batches.c.id, batches.c.phase, batches.c.reason).where(mine).order_by(batches.c.id)
        rows = connection.execute(query.with_for_update(read=True)).all()
        stopped = {row.id: row.reason for row in rows if row.phase == BatchPhase.STOPPING}
        return [_stopped(one, row, stopped) for one, row in retried]

    def parents_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> Collection[int]:
        return self.parents.settle_parents(connection, run_ids, BATCH, self._abandon, now)

    def _abandon(self, connection: Connection, batch: Any, why: str, now: int) -> None:
        if batch.phase == BatchPhase.UPLOADING:
            self.intake.discard(connection, batch.id)
        elif batch.phase != BatchPhase.STOPPING:
            moving = Moving(batch)
            self.moves.stop(connection, moving, why, now)
            self.moves.move_on(connection, moving, now)

    def needed(self, connection: Connection, run_ids: Sequence[int]) -> Collection[int]:
        """What the runs of a target did is needed for as long as its batch can be rolled back."""
        query = (
            select(runs.c.id)
            .join(batches, batches.c.id == runs.c.owner_id)
            .where(runs.c.id.in_(run_ids), runs.c.kind == self.kind)
        )
        return set(connection.execute(query).scalars())

    async def retry(self, run: Run, idempotency_key: str | None) -> Retried:
        """Refused: the target would be applied again behind the back of its batch."""
        payload: dict[str, Any] = run.payload
        batch_id, target_id = payload["batch_id"], payload["target_id"]
        belongs = f"run {run.id} belongs to target {target_id} of batch {batch_id}"
        wanted = TargetFilter(after=payload["position"] - 1, limit=1)
        try:
            found = await self.queries.batch_tasks(batch_id, wanted)
        except NotFound:
            raise Conflict(f"{belongs}, which is deleted: make a new batch for that target") from None
        raise Conflict(f"{belongs}{_advice(found[0], batch_id)}" if found else belongs)


def _stopped(one: Any, row: Any, stopped: Mapping[int, str | None]) -> Judged:
    if row.owner_id not in stopped:
        return one, row
    reason = f"not tried again, its batch was stopped: {stopped[row.owner_id]}"
    verdict = Verdict("cancel", RunStatus.CANCELED, reason, counted=one.verdict.counted)
    return replace(one, verdict=verdict), row


def _advice(target: BatchTask, batch_id: int) -> str:
    one = f"`fusee batch rollback {batch_id} --target {target.target_id}`"
    match target.status:
        case BatchStatus.FAIL:
            return f": `fusee batch retry {batch_id}` tries the failed targets of the batch again"
        case BatchStatus.CANCEL:
            return f": `fusee batch retry {batch_id} --canceled` tries its canceled targets again"
        case BatchStatus.ROLLBACK_FAIL:
            return f", whose rollback failed: {one} tries it again"
        case BatchStatus.ROLLBACK_SUCCESS:
            return ", which was rolled back: make a new batch to apply it again"
        case BatchStatus.SUCCESS:
            return f", which is applied: {one} undoes it"
        case _:
            return f", which is {target.status}: wait until batch {batch_id} is done"


def _outcome(batch: Any) -> Outcome:
    result = {"batch_id": batch.id, "status": batch.status}
    match BatchStatus(batch.status):
        case BatchStatus.SUCCESS:
            return Outcome(End.SUCCEEDED, "succeeded", None, result)
        case BatchStatus.CANCEL | BatchStatus.PARTIAL_CANCEL:
            return Outcome(End.CANCELED, "was canceled", batch.reason, result)
        case status:
            return Outcome(End.FAILED, f"ended {status}", batch.reason, result)


BATCH = StartedKind("batch", batches, lambda batch: bool(batch.phase == BatchPhase.DONE), _outcome)
