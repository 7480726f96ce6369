"""Showing and following a bulk job; `fusee bulk list`, `show`, `logs` and `quarantine`."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.follow import Progress, follow
from fusee.surfaces.cli.inputs import members_of
from fusee.surfaces.cli.moments import time_text
from fusee.surfaces.cli.options import WaitOption, limited, option
from fusee.surfaces.cli.output import Out, facts, human
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.bulk.model.job import BulkJob, BulkLog, Quarantined
    from fusee.bulk.model.segment import Segment
    from fusee.bulk.service.jobs import BulkOperations

__all__ = ["JOBS", "JOB_ID", "list_jobs", "logs", "quarantine", "settled", "show", "summary", "watched"]

JOB_ID = click.argument("job_id", metavar="ID", type=click.IntRange(1))
MOST_SEGMENTS = 40
OVER = ("finished", "failed", "stopped")
TELL_EVERY = 1.0
"""Seconds between two lines of `fusee bulk watch --json`."""
FACTS = (
    "name", "business", "source", "rate", "concurrency", "window", "held_by", "stalled_since", "adaptive",
    "item_attempts", "item_backoff", "item_timeout", "error_budget", "retried", "replayed", "undo_of",
    "creator", "env", "version", "started_at", "finished_at",
)  # fmt: skip
HELD_BY = {
    "handler": "held by its handler (all of its concurrency is busy)",
    "window": "held by its window (items that wait or take long; a larger --window helps)",
    "source": "held by its source (items are read slowly)",
    "node_cap": "held by worker.bulk_rate_cap",
    "concurrency": "held by its concurrency (other segments have all of it)",
    "worker": "waits for a worker",
}


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
        parts.append("stalled (items are in progress and none ends)")
    elif (held := _held(job)) is not None:
        parts.append(held)
    return ", ".join(parts) + (f"; {job.reason}" if job.reason else "")


def _held(job: BulkJob) -> str | None:
    """Returns why a job starts fewer items than its rate allows; None when it does not."""
    from fusee.bulk.model.pacing import HOLD

    if job.checking:
        return "its business is being asked"
    if job.rate == HOLD and str(job.status) == "running":
        return "on hold"
    return None if job.held_by is None else HELD_BY.get(job.held_by)


JOBS: Noun[BulkJob] = Noun(
    shape=shown,
    line=summary,
    none="no bulk job",
    columns={
        ">id": lambda job: job.id,
        "name": lambda job: job.spec.name,
        "business": lambda job: job.spec.business,
        "status": lambda job: job.status,
        ">done": lambda job: f"{job.done:,}",
        ">of": lambda job: "?" if job.total is None else f"{job.total:,}",
        ">failed": lambda job: f"{job.quarantined:,}",
        ">speed": lambda job: f"{job.speed:,.0f}/s" if job.speed else "",
        ">left": lambda job: None if job.eta is None else human(job.eta),
    },
)
SEGMENTS: Noun[Segment] = Noun(
    shape=shown,
    columns={
        ">segment": lambda one: one.number,
        ">first": lambda one: f"{one.first:,}",
        ">watermark": lambda one: f"{one.watermark:,}",
        ">reached": lambda one: f"{one.reached:,}",
        ">stop": lambda one: f"{one.stop:,}",
        "state": lambda one: one.state,
        ">share": lambda one: one.share,
        ">pace": lambda one: f"{one.pace:,.1f}/s" if one.pace else "",
        "held by": lambda one: one.held_by,
        ">run": lambda one: one.run_id,
    },
)
LOGS: Noun[BulkLog] = Noun(
    shape=shown,
    none="no line",
    columns={
        ">line": lambda log: log.id,
        "at": lambda log: time_text(log.at),
        "kind": lambda log: log.kind,
        "who": lambda log: log.who,
        "text": lambda log: log.text,
    },
)
QUARANTINE: Noun[Quarantined] = Noun(
    shape=shown,
    none="nothing is quarantined",
    columns={
        ">index": lambda item: f"{item.index:,}",
        ">attempts": lambda item: item.attempts,
        "item": lambda item: (item.item or "")[:60],
        "error": lambda item: item.error.partition("\n")[0],
    },
)


@lists(JOBS)
@option("--status -s STATUS", "Only these; repeatable.", multiple=True)
@option("--business NAME", "Only jobs of this business.")
@option("--name NAME", "Only jobs with exactly this name.")
async def list_jobs(
    bulk_jobs: BulkOperations, /, status: tuple[str, ...], **wanted: Any
) -> Sequence[BulkJob]:
    """List bulk jobs, newest first.

    Example: fusee bulk list --status running
    """
    from fusee.bulk.model.job import BulkStatus
    from fusee.bulk.store.queries import BulkFilter

    return await bulk_jobs.list(BulkFilter(status=members_of(BulkStatus, status, "--status"), **wanted))


@command()
@JOB_ID
async def show(bulk_jobs: BulkOperations, /, job_id: int) -> Answer:
    """Show a bulk job: its settings, its progress, and its segments.

    Example: fusee bulk show 17
    """
    job, segments = await bulk_jobs.get(job_id), await bulk_jobs.segments(job_id)
    listed = [shown(segment) for segment in segments]
    shape = shown(job, segment_count=len(segments), segments=listed)

    def drawn() -> Iterator[Any]:
        yield summary(job)
        yield facts((name, _text(shape[name])) for name in FACTS)
        if segments:
            yield SEGMENTS.table(segments[:MOST_SEGMENTS])

    more = f"the first {MOST_SEGMENTS} of {len(segments)} segments; --json has all"
    return Answer(shape, lambda: list(drawn()), say=[more] if len(segments) > MOST_SEGMENTS else [])


def _text(value: Any) -> str | None:
    if value is None or value is False:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@lists(LOGS, "logs", watch=False)
@JOB_ID
@option(
    "--kind",
    "Only what its business wrote (data), or what was done to the job (operator).",
    type=click.Choice(["data", "operator"]),
)
@option("--after N", "Only lines after line N.", default=0, type=click.IntRange(0))
async def logs(bulk_jobs: BulkOperations, /, job_id: int, **wanted: Any) -> Sequence[BulkLog]:
    """Show what the business wrote, and what was done to the job.

    Example: fusee bulk logs 17 --kind operator
    """
    return await bulk_jobs.logs(job_id, **wanted)


@command()
@JOB_ID
@option("--format form", "All of it, for a file.", type=click.Choice(["ndjson", "csv"]))
@option("--after POSITION", "Only items after this position.", default=-1, type=int)
@limited(50)
async def quarantine(
    bulk_jobs: BulkOperations, /, job_id: int, form: str | None, after: int, limit: int
) -> Answer | None:
    """List the items that failed as often as they may be tried.

    Example:
      fusee bulk quarantine 17
      fusee bulk quarantine 17 --format csv > failed.csv
    """
    job = await bulk_jobs.get(job_id)
    if form is not None:
        await _write(bulk_jobs.quarantined(job_id), form)
        return None
    found = await bulk_jobs.quarantine(job_id, after=after, limit=limit)
    more = f"{len(found)} of {job.quarantined} are shown; --format ndjson has all"
    return QUARANTINE.many(found, *([more] if job.quarantined > len(found) == limit else []))


async def _write(items: AsyncIterator[Quarantined], form: str) -> None:
    writer: Any = None
    async for item in items:
        line = shown(item)
        if form == "ndjson":
            click.echo(json.dumps(line, ensure_ascii=False))
            continue
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(line), lineterminator="\n")
            writer.writeheader()
        writer.writerow(line)


async def settled(bulk_jobs: BulkOperations, out: Out, job: BulkJob, wait: WaitOption | None) -> Answer:
    """Returns the job as it is; with `wait`, as it ended: exit code 5 unless it finished with an item
    done."""
    if wait is None:
        return JOBS.one(job, *([] if job.changed else ["nothing changed: it was already so"]))
    job = await follow(
        out, lambda: bulk_jobs.get(job.id), _progress, _over, timeout=wait.timeout, line=summary
    )
    # `finished` only says that every item was tried.
    bad = str(job.status) != "finished" or 0 < job.ended == job.quarantined
    return JOBS.one(job, exit=Exit.UNSUCCESSFUL if bad else Exit.OK)


async def watched(bulk_jobs: BulkOperations, out: Out, job_id: int, timeout: float | None) -> Answer | None:
    """Follow a job until it stops or ends; with --json, print a line whenever it has moved. No end is an
    error."""
    told_at, told = 0.0, -1

    def tell(job: BulkJob) -> None:
        nonlocal told_at, told
        now = time.monotonic()
        if out.json and (_over(job) or (job.ended != told and now - told_at >= TELL_EVERY)):
            out.data(shown(job), line=True)
            told_at, told = now, job.ended

    look = (lambda: bulk_jobs.get(job_id), _progress, _over)
    job = await follow(out, *look, timeout=timeout, line=summary, seen=tell)
    return None if out.json else JOBS.one(job)


def _over(job: BulkJob) -> bool:
    return str(job.status) in OVER


def _progress(job: BulkJob) -> Progress:
    of = "?" if job.total is None else f"{job.total:,}"
    left = "" if job.eta is None else f", {human(job.eta)} left"
    words = f"{job.ended:,}/{of}, {job.speed:,.0f}/s{left}"
    for count, name in ((job.quarantined, "failed"), (job.retried, "retries"), (job.replayed, "replayed")):
        if count:
            words += f", {count:,} {name}"
    if (held := _held(job)) is not None:
        words += f", {held.partition(' (')[0]}"
    return f"{job.spec.name[:30]} {job.status}", job.ended, job.total, words
