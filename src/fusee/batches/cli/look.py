"""How a batch and its targets are shown; `fusee batch list`, `show`, `targets` and `recount`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.follow import Progress, follow
from fusee.surfaces.cli.inputs import members_of
from fusee.surfaces.cli.moments import time_text
from fusee.surfaces.cli.options import WaitOption, option
from fusee.surfaces.cli.output import Out, facts, status_text, table
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.batches.model.batch import Batch, BatchTask
    from fusee.batches.service.batches import BatchOperations

__all__ = [
    "BATCHES",
    "BATCH_ID",
    "GOOD",
    "SOME_UNDONE",
    "list_batches",
    "recount",
    "settled",
    "show",
    "targets",
]

BATCH_ID = click.argument("batch_id", metavar="ID", type=click.IntRange(1))
STATUS = option("--status -s STATUS", "Only these; repeatable.", multiple=True)
GOOD = ("success", "rollback_success")
SOME_UNDONE = ("rollback_success", "partial_rollback")
"""What a rollback of chosen targets may end as."""
FACTS = (
    "batch_name", "batch_type", "target_type", "creator", "env", "region", "az", "concurrency", "canary",
    "ramp", "max_errors", "on_error", "on_conflict",
)  # fmt: skip


def summary(batch: Batch) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in batch.counts.items() if count)
    reason = f"; {batch.reason}" if batch.reason else ""
    return f"batch {batch.id} {batch.status}: {counts} of {batch.total}{reason}{_waits(batch, '; ')}"


def _waits(batch: Batch, mark: str) -> str:
    waits = f"{mark}waits for targets that batch {batch.waits_for} has" if batch.waits_for else ""
    return waits + (f"{mark}waits: {batch.waiting}" if batch.waiting else "")


def _whole(batch: Batch) -> Sequence[Any]:
    pairs = [(name, getattr(batch.spec, name)) for name in FACTS]
    kept = batch.kept_until and f"{time_text(batch.kept_until)}; it can be rolled back until then"
    pairs += [("phase", batch.phase), ("kept until", kept), ("version", batch.version)]
    return summary(batch), facts(pairs)


BATCHES: Noun[Batch] = Noun(
    shape=shown,
    line=summary,
    whole=_whole,
    none="no batch",
    columns={
        ">id": lambda batch: batch.id,
        "name": lambda batch: batch.spec.batch_name,
        "operation": lambda batch: f"{batch.spec.target_type}/{batch.spec.batch_type}",
        "status": lambda batch: batch.status,
        ">targets": lambda batch: batch.total,
        ">success": lambda batch: _counts(batch)["success"],
        ">fail": lambda batch: _counts(batch)["fail"],
        "creator": lambda batch: batch.spec.creator,
    },
)
TARGETS: Noun[BatchTask] = Noun(
    shape=shown,
    none="no such target",
    columns={
        "target": lambda task: task.target_id,
        "name": lambda task: task.target_name,
        "status": lambda task: task.status,
        "effect": lambda task: task.effect,
        ">retries": lambda task: task.retry_time,
        ">run": lambda task: task.rollback_run_id or task.run_id,
        "info": lambda task: (task.info or "").partition("\n")[0],
    },
)


@lists(BATCHES)
@STATUS
@option("--type batch_type OPERATION", "Only batches of this operation.")
@option("--creator NAME", "Only batches that this person or service asked for.")
@option("--env NAME", "Only batches of this environment.")
@option("--region NAME", "Only batches of this region.")
@option("--az NAME", "Only batches of this availability zone.")
async def list_batches(
    batches: BatchOperations, /, status: tuple[str, ...], **wanted: Any
) -> Sequence[Batch]:
    """List batches, newest first.

    Example: fusee batch list --status partial_fail --env live
    """
    from fusee.batches.model.batch import BatchStatus
    from fusee.batches.store.queries import BatchFilter

    return await batches.list(BatchFilter(status=members_of(BatchStatus, status, "--status"), **wanted))


@command()
@BATCH_ID
async def show(batches: BatchOperations, /, batch_id: int) -> Answer:
    """Show a batch: its settings, and how many of its targets have which status.

    Example: fusee batch show 17
    """
    return BATCHES.all(await batches.get(batch_id))


@lists(TARGETS, "targets", watch=False)
@BATCH_ID
@STATUS
async def targets(
    batches: BatchOperations, /, batch_id: int, status: tuple[str, ...], limit: int
) -> Sequence[BatchTask]:
    """List a batch's targets, each with its status and the reason for it.

    Example: fusee batch targets 17 --status fail
    """
    from fusee.batches.model.batch import BatchStatus
    from fusee.batches.store.queries import TargetFilter

    wanted = TargetFilter(status=members_of(BatchStatus, status, "--status"), limit=limit)
    return await batches.tasks(batch_id, wanted)


@command()
@BATCH_ID
async def recount(batches: BatchOperations, /, batch_id: int) -> Answer:
    """Count every target and compare with the counts that are kept.

    Exits 5 when they differ, which would be a bug worth reporting. Slow for a large batch.

    Example: fusee batch recount 17
    """
    kept, counted = await batches.recount(batch_id)
    equal = kept == counted

    def drawn() -> Sequence[Any]:
        rows = table("status", ">kept", ">counted")
        for status in kept:
            if kept[status] or counted[status]:
                rows.add_row(status_text(str(status)), str(kept[status]), str(counted[status]))
        return rows, "equal" if equal else "NOT equal"

    data = {
        "equal": equal,
        "kept": {str(status): count for status, count in kept.items()},
        "counted": {str(status): count for status, count in counted.items()},
    }
    return Answer(data, drawn, exit=Exit.OK if equal else Exit.UNSUCCESSFUL)


async def settled(
    batches: BatchOperations, out: Out, batch: Batch, wait: WaitOption | None, good: tuple[str, ...] = GOOD
) -> Answer:
    """The batch as it is; with `wait`, as it ended: the exit code is 5 unless it ended as one of `good`."""
    if wait is None:
        return BATCHES.one(batch)
    ended = await follow(
        out,
        lambda: batches.get(batch.id),
        _progress,
        lambda it: it.phase == "done",
        timeout=wait.timeout,
        line=summary,
    )
    return BATCHES.one(ended, exit=Exit.OK if ended.status in good else Exit.UNSUCCESSFUL)


def _progress(batch: Batch) -> Progress:
    counts = _counts(batch)
    if batch.phase == "rolling_back":
        over = counts["rollback_success"] + counts["rollback_fail"]
        total = over + counts["rollback_pending"] + counts["rollback_running"]
        return f"rolling back, {counts['rollback_fail']} failed{_waits(batch, ', ')}", over, total, ""
    over = counts["success"] + counts["fail"] + counts["cancel"]
    words = f"{batch.phase}, {counts['running']} at work, {counts['fail']} failed{_waits(batch, ', ')}"
    return words, over, batch.total, ""


def _counts(batch: Batch) -> dict[str, int]:
    return {str(status): count for status, count in batch.counts.items()}
