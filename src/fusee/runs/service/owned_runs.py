"""Retrying a run that belongs to a task, a batch, a workflow or a bulk job.

Such a run is retried through its owner, under the owner's rules. A plain copy would escape them: the target
of a batch would be applied again behind the batch's back, a fire would run beside the one that its policies
protect. Where the owner has a command for it, the retry is refused and the message names that command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusee.batches.model.batch import BatchStatus, BatchTask
from fusee.batches.store.queries import TargetFilter
from fusee.engine.model.run import Run
from fusee.engine.model.states import RunStatus
from fusee.errors import Conflict, NotFound
from fusee.stores import Store

__all__ = ["OwnedRuns", "Retried"]


@dataclass(frozen=True, slots=True)
class Retried:
    """The new run; `rule` says what the policies of its task decided, when it has one."""

    id: int
    status: RunStatus = RunStatus.PENDING
    rule: str | None = None
    created: bool = True


class OwnedRuns:
    """Decides what a retry of a run with an owner means."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def retry(self, run: Run, idempotency_key: str | None = None) -> Retried:
        match run.kind:
            case "task":
                fired = await self.store.tasks.triggers.fire_again(run.id, idempotency_key)
                (new,) = fired.run_ids
                return Retried(new, (await self.store.runs.run(new)).status, fired.rule, fired.created)
            case "batch":
                raise Conflict(await self._of_batch(run))
            case "workflow":
                raise Conflict(await self._of_workflow(run))
            case "bulk":
                raise Conflict(self._of_bulk(run))
            case _:
                raise Conflict(f"run {run.id} belongs to a {run.kind}, which this version does not know")

    async def _of_batch(self, run: Run) -> str:
        payload: dict[str, Any] = run.payload
        batch_id, target_id = payload["batch_id"], payload["target_id"]
        belongs = f"run {run.id} belongs to target {target_id} of batch {batch_id}"
        wanted = TargetFilter(after=payload["position"] - 1, limit=1)
        try:
            found = await self.store.batches.queries.batch_tasks(batch_id, wanted)
        except NotFound:
            return f"{belongs}, which is deleted: make a new batch for that target"
        return f"{belongs}{_batch_advice(found[0], batch_id)}" if found else belongs

    async def _of_workflow(self, run: Run) -> str:
        step = await self.store.workflows.queries.workflow_step(run.id)
        if step is None:
            return f"run {run.id} was a step of a workflow that is deleted: start a workflow anew"
        belongs = f"run {run.id} is node {step.node} of workflow run {step.workflow_run_id}"
        if not step.over:
            return f"{belongs}, which has not ended: wait for it or cancel it, then run `{step.rerun}`"
        if run.status is RunStatus.SUCCEEDED:
            return f"{belongs} and succeeded: `fusee workflow start {step.workflow}` starts all of it anew"
        return f"{belongs}: `{step.rerun}` does the steps again that did not succeed"

    @staticmethod
    def _of_bulk(run: Run) -> str:
        job_id = run.payload["job"]
        return (
            f"run {run.id} belongs to bulk job {job_id}: `fusee bulk start {job_id}` resumes the job where it"
            f" stopped, `fusee bulk rerun {job_id}` does its quarantined items again"
        )


def _batch_advice(target: BatchTask, batch_id: int) -> str:
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
