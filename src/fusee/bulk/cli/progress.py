"""Following a bulk job with a live bar: done, speed, what is left, what failed, what was replayed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fusee.bulk.cli.shapes import bulk_object
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.output import Out, clean, human

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.bulk.model.job import BulkJob

__all__ = ["follow", "held_words", "summary"]

OVER = ("finished", "failed", "stopped")
LOOK_EVERY = 0.25
TELL_EVERY = 1.0


def summary(job: BulkJob) -> str:
    of = "" if job.total is None else f" of {job.total:,}"
    parts = [f"bulk job {job.id} {job.status}: {job.done:,}{of} done"]
    if job.quarantined:
        parts.append(f"{job.quarantined:,} quarantined")
    if job.replayed:
        parts.append(f"{job.replayed:,} replayed")
    if job.speed >= 0.05:
        parts.append(f"{job.speed:,.1f}/s")
    if job.eta is not None:
        parts.append(f"{human(job.eta)} left")
    if job.stalled_since is not None:
        parts.append("stalled (items are under way and none ends)")
    elif (held := held_words(job)) is not None:
        parts.append(held)
    return ", ".join(parts) + (f"; {job.reason}" if job.reason else "")


HELD_BY = {
    "handler": "held by its handler (all of its concurrency is busy)",
    "window": "held by its window (items that wait or take long; a larger --window helps)",
    "source": "held by its source (items are read slowly)",
    "node_cap": "held by worker.bulk_rate_cap",
    "concurrency": "held by its concurrency (other segments have all of it)",
    "worker": "waits for a worker",
}


def held_words(job: BulkJob) -> str | None:
    """Why a job starts fewer items than its rate says; None when it does not."""
    from fusee.bulk.model.pacing import HOLD

    if job.checking:
        return "its business is being asked"
    if job.rate == HOLD and str(job.status) == "running":
        return "on hold"
    return None if job.held_by is None else HELD_BY.get(job.held_by)


async def follow(
    app: Fusee, out: Out, job_id: int, timeout: float | None = None, *, lines: bool = False
) -> None:
    """Until it rests; exits 5 when it did not finish or every item was quarantined, 124 when the time was up.

    `lines`: with --json a line whenever it has moved, and its end is no error."""
    from rich.progress import BarColumn, Progress, TextColumn

    deadline = None if timeout is None else time.monotonic() + timeout
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>5.1f} %"),
        TextColumn("{task.fields[words]}"),
    )
    told_at, told = 0.0, -1
    with Progress(*columns, console=out.progress_console(), transient=True) as bar:
        shown = bar.add_task("", total=None, words="")
        while True:
            job = await app.bulk_jobs.get(job_id)
            bar.update(
                shown,
                completed=job.ended,
                total=job.total,
                description=clean(f"{job.spec.name[:30]} {job.status}"),
                words=_words(job),
            )
            over = str(job.status) in OVER
            now = time.monotonic()
            if lines and out.json and (over or (job.ended != told and now - told_at >= TELL_EVERY)):
                out.data(bulk_object(job), line=True)
                told_at, told = now, job.ended
            if over:
                break
            if deadline is not None and now > deadline:
                out.say(f"not over after {timeout:g} s: {summary(job)}")
                raise SystemExit(Exit.TIMED_OUT)
            await asyncio.sleep(LOOK_EVERY)
    if not out.json:
        out.show(summary(job))
    elif not lines:
        out.data(bulk_object(job))
    if not lines and (str(job.status) != "finished" or _all_failed(job)):
        raise SystemExit(Exit.UNSUCCESSFUL)


def _all_failed(job: BulkJob) -> bool:
    """It finished, in that every item was tried, and not one of them was done."""
    return job.ended > 0 and job.quarantined == job.ended


def _words(job: BulkJob) -> str:
    of = "?" if job.total is None else f"{job.total:,}"
    left = "" if job.eta is None else f", {human(job.eta)} left"
    words = f"{job.ended:,}/{of}, {job.speed:,.0f}/s{left}"
    for count, name in ((job.quarantined, "failed"), (job.retried, "retries"), (job.replayed, "replayed")):
        if count:
            words += f", {count:,} {name}"
    if (held := held_words(job)) is not None:
        words += f", {held.partition(' (')[0]}"
    return words
