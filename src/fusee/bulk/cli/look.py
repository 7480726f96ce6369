"""`fusee bulk list`, `show`, `logs` and `quarantine`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.cli.progress import summary
from fusee.bulk.cli.shapes import bulk_object, log_object, quarantined_object
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.bulk.model.job import Quarantined

__all__ = ["JOB_ID", "list_jobs", "logs", "quarantine", "show"]

JOB_ID = click.argument("job_id", metavar="ID", type=click.IntRange(1))
LIMIT = click.option(
    "--limit", metavar="N", default=50, type=click.IntRange(1, 1000), help="At most so many."
)
MOST_SEGMENTS = 40


@click.command("list", cls=Command)
@click.option("--status", multiple=True, metavar="STATUS", help="Only these; may be repeated.")
@click.option("--business", metavar="NAME")
@click.option("--name", metavar="NAME", help="The whole name.")
@LIMIT
@click.pass_context
def list_jobs(
    context: click.Context, /, status: tuple[str, ...], business: str | None, name: str | None, limit: int
) -> None:
    """List bulk jobs, newest first.

    Example: fusee bulk list --status running
    """
    drive(_list(Shared.of(context), Out.of(context), status, business, name, limit))


async def _list(
    shared: Shared, out: Out, status: tuple[str, ...], business: str | None, name: str | None, limit: int
) -> None:
    from fusee.bulk.store.queries import BulkFilter

    wanted = BulkFilter(status=_statuses(status), business=business, name=name, limit=limit)
    async with opened(shared) as app:
        found = await app.bulk_jobs.list(wanted)
    if out.json:
        out.data({"items": [bulk_object(job) for job in found]})
        return
    from rich.text import Text

    drawn = table(">id", "name", "business", "status", ">done", ">of", ">failed", ">speed", ">left")
    for job in found:
        drawn.add_row(
            str(job.id),
            Text(clean(job.spec.name)),
            job.spec.business,
            status_text(str(job.status)),
            f"{job.done:,}",
            "?" if job.total is None else f"{job.total:,}",
            f"{job.quarantined:,}",
            f"{job.speed:,.0f}/s" if job.speed else "",
            "" if job.eta is None else human(job.eta),
        )
    out.show(drawn) if found else out.say("no bulk job")


@click.command(cls=Command)
@JOB_ID
@click.pass_context
def show(context: click.Context, job_id: int) -> None:
    """Show a bulk job: how far it is, and where its segments stand.

    Example: fusee bulk show 17
    """
    drive(_show(Shared.of(context), Out.of(context), job_id))


async def _show(shared: Shared, out: Out, job_id: int) -> None:
    async with opened(shared) as app:
        job, segments = await app.bulk_jobs.get(job_id), await app.bulk_jobs.segments(job_id)
    shown = bulk_object(job, segments)
    if out.json:
        out.data(shown)
        return
    out.show(summary(job))
    drawn = table("field", "value")
    for field in ("name", "business", "source", "rate", "concurrency", "window", "held_by",
                  "stalled_since", "adaptive",
                  "item_attempts", "item_backoff", "item_timeout", "error_budget", "retried", "replayed",
                  "undo_of", "creator", "env", "version", "started_at", "finished_at"):  # fmt: skip
        if (value := shown[field]) not in ("", None, False):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            drawn.add_row(field, clean(text))
    out.show(drawn)
    if segments:
        parts = table(
            ">segment",
            ">first",
            ">watermark",
            ">reached",
            ">stop",
            "state",
            ">share",
            ">pace",
            "held by",
            ">run",
        )
        for one in segments[:MOST_SEGMENTS]:
            parts.add_row(
                str(one.number),
                f"{one.first:,}",
                f"{one.watermark:,}",
                f"{one.reached:,}",
                f"{one.stop:,}",
                status_text(str(one.state)),
                str(one.share),
                f"{one.pace:,.1f}/s" if one.pace else "",
                one.held_by or "",
                str(one.run_id or ""),
            )
        out.show(parts)
    if len(segments) > MOST_SEGMENTS:
        out.say(f"the first {MOST_SEGMENTS} of {len(segments)} segments; --json has all")


@click.command(cls=Command)
@JOB_ID
@click.option("--kind", type=click.Choice(["data", "operator"]), help="Only what its business wrote, or did.")
@click.option("--after", metavar="N", default=0, type=click.IntRange(0), help="Behind line N.")
@LIMIT
@click.pass_context
def logs(context: click.Context, job_id: int, kind: str | None, after: int, limit: int) -> None:
    """Show what the business wrote, and what was done to the job.

    Example: fusee bulk logs 17 --kind operator
    """
    drive(_logs(Shared.of(context), Out.of(context), job_id, kind, after, limit))


async def _logs(shared: Shared, out: Out, job_id: int, kind: str | None, after: int, limit: int) -> None:
    async with opened(shared) as app:
        found = await app.bulk_jobs.logs(job_id, kind=kind, after=after, limit=limit)
    if out.json:
        out.data({"items": [log_object(line) for line in found]})
        return
    drawn = table(">line", "at", "kind", "who", "text")
    for line in found:
        at = time_text(line.at) or ""
        drawn.add_row(str(line.id), at, line.kind, clean(line.who), clean(line.text))
    out.show(drawn) if found else out.say("no line")


@click.command(cls=Command)
@JOB_ID
@click.option("--format", "form", type=click.Choice(["ndjson", "csv"]), help="All of it, for a file.")
@click.option("--after", metavar="POSITION", default=-1, type=int, help="Behind this position of the job.")
@LIMIT
@click.pass_context
def quarantine(context: click.Context, job_id: int, form: str | None, after: int, limit: int) -> None:
    """List the items that failed as often as they may be tried.

    Example:
      fusee bulk quarantine 17
      fusee bulk quarantine 17 --format csv > failed.csv
    """
    drive(_quarantine(Shared.of(context), Out.of(context), job_id, form, after, limit))


async def _quarantine(
    shared: Shared, out: Out, job_id: int, form: str | None, after: int, limit: int
) -> None:
    async with opened(shared) as app:
        job = await app.bulk_jobs.get(job_id)
        if form is not None:
            await _write(app.bulk_jobs.quarantined(job_id), form)
            return
        found = await app.bulk_jobs.quarantine(job_id, after=after, limit=limit)
    if out.json:
        out.data({"items": [quarantined_object(item) for item in found]})
        return
    drawn = table(">index", ">attempts", "item", "error")
    for item in found:
        first = item.error.splitlines()[0] if item.error else ""
        drawn.add_row(f"{item.index:,}", str(item.attempts), clean((item.item or "")[:60]), clean(first))
    out.show(drawn) if found else out.say("nothing is quarantined")
    if job.quarantined > len(found) == limit:
        out.say(f"{len(found)} of {job.quarantined} are shown; --format ndjson has all")


async def _write(items: AsyncIterator[Quarantined], form: str) -> None:
    writer: Any = None
    async for item in items:
        shown = quarantined_object(item)
        if form == "ndjson":
            click.echo(json.dumps(shown, ensure_ascii=False))
            continue
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(shown), lineterminator="\n")
            writer.writeheader()
        writer.writerow(shown)


def _statuses(names: tuple[str, ...]) -> tuple[Any, ...]:
    from fusee.bulk.model.job import BulkStatus

    try:
        return tuple(BulkStatus(name) for name in names)
    except ValueError:
        raise click.BadParameter(f"one of {', '.join(BulkStatus)}", param_hint="--status") from None
