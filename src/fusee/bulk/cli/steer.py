"""`fusee bulk start`, `stop`, `resume`, `extend`, `wait`, `rate`, `data`, `log`, `rerun` and `undo`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.cli.look import JOB_ID
from fusee.bulk.cli.progress import follow, summary
from fusee.bulk.cli.shapes import bulk_object
from fusee.bulk.cli.sources import rate_of
from fusee.surfaces.cli.inputs import text_of
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.bulk.model.job import BulkJob

__all__ = [
    "data",
    "delete",
    "extend",
    "log",
    "pause",
    "rate",
    "rerun",
    "resume",
    "start",
    "stop",
    "undo",
    "wait",
    "watch",
]

WHO = "command line"
WAIT = click.option("--wait", "waits", is_flag=True, help="Follow it to its end; exit 5 when it is not good.")
VERSION = click.option(
    "--version", metavar="N", type=click.IntRange(1), help="Only if the job is at this version."
)
REASON = click.option("--reason", default="stopped by request", metavar="TEXT", help="Kept with the job.")


@click.command(cls=Command)
@JOB_ID
@click.option("--by-business", is_flag=True, help="Only while the job waits for its business.")
@click.option("--force", is_flag=True, help="Also while the job waits for its business to start it.")
@WAIT
@VERSION
@click.pass_context
def start(
    context: click.Context, job_id: int, by_business: bool, force: bool, waits: bool, version: int | None
) -> None:
    """Start a bulk job, or go on where it was. One that failed gets a fresh error budget.

    Example: fusee bulk start 17 --wait
    """
    _steer(
        context,
        waits,
        lambda app: app.bulk_jobs.start(
            job_id, by_business=by_business, force=force, who=WHO, version=version
        ),
    )


@click.command(cls=Command)
@JOB_ID
@WAIT
@VERSION
@click.pass_context
def resume(context: click.Context, job_id: int, waits: bool, version: int | None) -> None:
    """Go on where the job was when it stopped or failed. One that failed gets a fresh error budget.

    Example: fusee bulk resume 17 --wait
    """
    _steer(context, waits, lambda app: app.bulk_jobs.resume(job_id, who=WHO, version=version))


@click.command(cls=Command)
@JOB_ID
@REASON
@VERSION
@click.pass_context
def stop(context: click.Context, job_id: int, reason: str, version: int | None) -> None:
    """Start no further item; every worker sees it within 2 s. What is done stays done.

    Example: fusee bulk stop 17 --reason "the mail server is down"
    """
    _stop(context, job_id, reason, version)


@click.command(cls=Command)
@JOB_ID
@REASON
@VERSION
@click.pass_context
def pause(context: click.Context, job_id: int, reason: str, version: int | None) -> None:
    """The same as stop: a job that was stopped goes on where it was.

    Example: fusee bulk pause 17
    """
    _stop(context, job_id, reason, version)


def _stop(context: click.Context, job_id: int, reason: str, version: int | None) -> None:
    _steer(
        context,
        False,
        lambda app: app.bulk_jobs.stop(job_id, reason=reason, who=WHO, version=version),
    )


@click.command(cls=Command)
@JOB_ID
@click.option("--start", "starts", is_flag=True, help="Start it at once; --wait does too.")
@WAIT
@VERSION
@click.pass_context
def extend(context: click.Context, job_id: int, starts: bool, waits: bool, version: int | None) -> None:
    """Add what the source has behind the last item of a job at rest, also of a finished one.

    Example: fusee bulk extend 17 --start
    """
    _steer(
        context,
        waits,
        lambda app: app.bulk_jobs.extend(job_id, start=starts or waits, who=WHO, version=version),
    )


@click.command(cls=Command)
@JOB_ID
@click.option("--timeout", metavar="TIME", callback=duration(), help="Give up after this, such as 5m.")
@click.pass_context
def wait(context: click.Context, job_id: int, timeout: float | None) -> None:
    """Follow a bulk job to its end, with a bar that shows how far it is.

    Exits 0 when it finished, 5 when it stopped or failed or when every item was quarantined, 124 when the
    time was up first.

    Example: fusee bulk wait 17
    """
    _follow(context, job_id, timeout, lines=False)


@click.command(cls=Command)
@JOB_ID
@click.option("--timeout", metavar="TIME", callback=duration(), help="Look no longer than this.")
@click.pass_context
def watch(context: click.Context, job_id: int, timeout: float | None) -> None:
    """Look at a bulk job as it goes, until it rests; with --json a line whenever it has moved.

    Example: fusee bulk watch 17 --json
    """
    _follow(context, job_id, timeout, lines=True)


def _follow(context: click.Context, job_id: int, timeout: float | None, *, lines: bool) -> None:
    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            await follow(app, out, job_id, timeout, lines=lines)

    drive(work(Shared.of(context), Out.of(context)))


@click.command(cls=Command)
@JOB_ID
@click.option("--rate", "per_second", metavar="N", type=rate_of, help="Items a second, or: unlimited, hold.")
@click.option("--concurrency", metavar="N", type=click.IntRange(1), help="Items or chunks at once.")
@click.option("--window", metavar="N", type=click.IntRange(0), help="Places; 0: chosen by itself.")
@click.option("--error-budget", metavar="N|N%", help="Quarantined items that fail the job, or: none.")
@click.option("--item-timeout", metavar="TIME", help="Of one call, such as 90s, or: none.")
@click.option("--attempts", "item_attempts", metavar="N", type=click.IntRange(1), help="Only at rest.")
@click.option("--backoff", "item_backoff", metavar="TIME", help="Only at rest.")
@VERSION
@click.pass_context
def rate(
    context: click.Context,
    job_id: int,
    per_second: float | str | None,
    concurrency: int | None,
    window: int | None,
    error_budget: str | None,
    item_timeout: str | None,
    item_attempts: int | None,
    item_backoff: str | None,
    version: int | None,
) -> None:
    """Set another rate, concurrency, window, item timeout or error budget, also while the job runs.

    Example:
      fusee bulk rate 17 --rate 2000 --concurrency 128
      fusee bulk rate 17 --rate hold
    """
    _steer(
        context,
        False,
        lambda app: app.bulk_jobs.adjust(
            job_id,
            rate=per_second,
            concurrency=concurrency,
            window=window,
            error_budget=error_budget,
            item_timeout=item_timeout,
            item_attempts=item_attempts,
            item_backoff=item_backoff,
            who=WHO,
            version=version,
        ),
    )


@click.command(cls=Command)
@JOB_ID
@click.argument("value", metavar="JSON")
@VERSION
@click.pass_context
def data(context: click.Context, job_id: int, value: str, version: int | None) -> None:
    """Set the business's own data; refused while the job runs. @FILE reads it from a file.

    Example: fusee bulk data 17 '{"template": 4}'
    """
    try:
        given: Any = json.loads(text_of(value, "JSON"))
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="JSON") from None
    _steer(context, False, lambda app: app.bulk_jobs.set_data(job_id, given, who=WHO, version=version))


@click.command(cls=Command)
@JOB_ID
@VERSION
@click.pass_context
def delete(context: click.Context, job_id: int, version: int | None) -> None:
    """Delete a bulk job that is at rest, with its segments, its quarantine and its logs.

    Example: fusee bulk delete 17
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            await app.bulk_jobs.delete(job_id, version=version)
        out.data({"id": job_id, "deleted": True}) if out.json else out.show(f"bulk job {job_id} is deleted")

    drive(work(Shared.of(context), Out.of(context)))


@click.command(cls=Command)
@JOB_ID
@click.argument("text")
@click.pass_context
def log(context: click.Context, job_id: int, text: str) -> None:
    """Append a line to the job's data log.

    Example: fusee bulk log 17 "downloaded 4,711 rows"
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            number = await app.bulk_jobs.log(job_id, text, who=WHO)
        out.data({"id": number}) if out.json else out.show(f"line {number}")

    drive(work(Shared.of(context), Out.of(context)))


def _following(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """The options of a command that makes a new job over items of this one."""

    def decorate(function: Callable[..., None]) -> click.Command:
        made: Any = function
        for option in (
            click.option("--key", "idempotency_key", metavar="TEXT", help="Idempotency key."),
            WAIT,
            click.option("--start", is_flag=True, help="Start it at once; --wait does too."),
            click.option("--attempts", "item_attempts", metavar="N", type=click.IntRange(1)),
            click.option("--rate", metavar="N", type=rate_of, help="As it was, if left out."),
            click.option("--concurrency", metavar="N", type=click.IntRange(1)),
            click.option("--name", metavar="TEXT", help="The new job's name."),
            JOB_ID,
        ):
            made = option(made)
        return click.command(name, cls=Command)(click.pass_context(made))

    return decorate


@_following("rerun")
def rerun(context: click.Context, /, job_id: int, waits: bool, **options: Any) -> None:
    """Make a new job of the quarantined items; each keeps its index.

    Example: fusee bulk rerun 17 --start --wait
    """
    given = _wishes(waits, options)
    _steer(context, waits, lambda app: app.bulk_jobs.rerun_quarantine(job_id, who=WHO, **given))


@_following("undo")
def undo(context: click.Context, /, job_id: int, waits: bool, **options: Any) -> None:
    """Make a new job that undoes what is done, the last item first.

    Example: fusee bulk undo 17 --start --wait
    """
    given = _wishes(waits, options)
    _steer(context, waits, lambda app: app.bulk_jobs.undo(job_id, who=WHO, **given))


def _wishes(waits: bool, options: dict[str, Any]) -> dict[str, Any]:
    """What was said; whoever waits for a job wants it started."""
    said = {name: value for name, value in options.items() if value is not None}
    return {**said, "start": said["start"] or waits}


def _steer(context: click.Context, waits: bool, command: Callable[[Fusee], Awaitable[BulkJob]]) -> None:
    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            job = await command(app)
            if waits:
                await follow(app, out, job.id)
            elif out.json:
                out.data(bulk_object(job))
            else:
                out.show(summary(job))
                if not job.changed:
                    out.say("nothing changed: it was so already")

    drive(work(Shared.of(context), Out.of(context)))
