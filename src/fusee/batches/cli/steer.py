"""`fusee batch apply`, `wait`, `cancel`, `retry` and `rollback`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusee.batches.cli.look import BATCH_ID, BATCHES, GOOD, SOME_UNDONE, settled
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.options import KEY, TIMEOUT, VERSION, Wait, option, reasoned, waits
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.batches.service.batches import BatchOperations

__all__ = ["apply", "cancel", "retry", "rollback", "wait"]


@command()
@BATCH_ID
@waits
@VERSION
async def apply(
    batches: BatchOperations, out: Out, /, batch_id: int, version: int | None, wait: Wait | None
) -> Answer:
    """Start a batch that was planned.

    Example: fusee batch apply 17 --wait
    """
    return await settled(batches, out, await batches.apply(batch_id, version=version), wait)


@command()
@BATCH_ID
@TIMEOUT
async def wait(batches: BatchOperations, out: Out, /, batch_id: int, timeout: float | None) -> Answer:
    """Follow a batch to its end, with a bar that shows its progress.

    Exits 0 when it ended well, 5 when it did not, 124 when it did not end within --timeout.

    Example: fusee batch wait 17
    """
    return await settled(batches, out, await batches.get(batch_id), Wait(timeout))


@steer(BATCHES, "batch_id")
@reasoned("canceled by request", kept="the batch")
@waits
@VERSION
async def cancel(
    batches: BatchOperations, out: Out, /, batch_id: int, reason: str, version: int | None, wait: Wait | None
) -> Answer:
    """Start no further targets; running ones keep their real outcome.

    Example: fusee batch cancel 17 --reason "wrong list"
    """
    made = await batches.cancel(batch_id, reason=reason, version=version)
    return await settled(batches, out, made, wait)


@command()
@BATCH_ID
@option("--canceled", "Also the targets that were canceled.")
@KEY
@waits
@VERSION
async def retry(
    batches: BatchOperations,
    out: Out,
    /,
    batch_id: int,
    canceled: bool,
    key: str | None,
    version: int | None,
    wait: Wait | None,
) -> Answer:  # fmt: skip
    """Try the failed targets again, and no others.

    Example: fusee batch retry 17 --wait
    """
    made, count = await batches.retry(batch_id, canceled=canceled, version=version, idempotency_key=key)
    out.say(f"{count} targets are tried again")
    return await settled(batches, out, made, wait)


@command()
@BATCH_ID
@option("--target chosen ID", "Only this target; repeatable.", multiple=True)
@option("--force", "Also targets that have drifted.")
@waits
@VERSION
async def rollback(
    batches: BatchOperations,
    out: Out,
    /,
    batch_id: int,
    chosen: tuple[str, ...],
    force: bool,
    version: int | None,
    wait: Wait | None,
) -> Answer:
    """Undo what was applied, or may have been applied, newest first.

    A target that is no longer as the batch left it is reported and left alone, unless --force is given. With
    --wait: exits 5 unless everything is undone (rollback_success); with --target, it is enough that all
    chosen targets are undone (partial_rollback).

    Example:
      fusee batch rollback 17 --wait
      fusee batch rollback 17 --target 4711 --target 4712
    """
    targets = list(chosen) or None
    made = await batches.roll_back(batch_id, targets=targets, force=force, version=version)
    return await settled(batches, out, made, wait, SOME_UNDONE if chosen else GOOD)
