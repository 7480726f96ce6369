"""Following a batch with a live bar."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fusee.batches.cli.shapes import batch_object
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.batches.model.batch import Batch

__all__ = ["GOOD", "SOME_UNDONE", "follow", "summary"]

GOOD = ("success", "rollback_success")
SOME_UNDONE = ("rollback_success", "partial_rollback")
"""What a rollback of chosen targets may end as."""


def summary(batch: Batch) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in batch.counts.items() if count)
    reason = f"; {batch.reason}" if batch.reason else ""
    waits = f"; waits for targets that batch {batch.waits_for} has" if batch.waits_for else ""
    waits += f"; waits: {batch.waiting}" if batch.waiting else ""
    return f"batch {batch.id} {batch.status}: {counts} of {batch.total}{reason}{waits}"


async def follow(
    app: Fusee, out: Out, batch_id: int, timeout: float | None, good: tuple[str, ...] = GOOD
) -> None:
    """Until it is done; exits 5 when it did not end as one of `good`, 124 when the time was up first."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    deadline = None if timeout is None else time.monotonic() + timeout
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.progress_console(), transient=True) as bar:
        shown = bar.add_task("", total=None)
        while True:
            batch = await app.batches.get(batch_id)
            ended, total, words = _ended(batch)
            words += f", waits for batch {batch.waits_for}" if batch.waits_for else ""
            words += f", waits: {batch.waiting}" if batch.waiting else ""
            bar.update(shown, completed=ended, total=total, description=words)
            if batch.phase == "done":
                break
            if deadline is not None and time.monotonic() > deadline:
                out.say(f"not done after {timeout:g} s: {summary(batch)}")
                raise SystemExit(Exit.TIMED_OUT)
            await asyncio.sleep(0.2)
    if out.json:
        out.data(batch_object(batch))
    else:
        out.show(summary(batch))
    if batch.status not in good:
        raise SystemExit(Exit.UNSUCCESSFUL)


def _ended(batch: Batch) -> tuple[int, int, str]:
    counts = {str(status): count for status, count in batch.counts.items()}
    if batch.phase == "rolling_back":
        over = counts["rollback_success"] + counts["rollback_fail"]
        total = over + counts["rollback_pending"] + counts["rollback_running"]
        return over, total, f"rolling back, {counts['rollback_fail']} failed"
    over = counts["success"] + counts["fail"] + counts["cancel"]
    return over, batch.total, f"{batch.phase}, {counts['running']} at work, {counts['fail']} failed"
