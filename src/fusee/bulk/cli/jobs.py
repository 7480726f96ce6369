"""`fusee bulk`: create a job, start, stop, resume, extend, adjust and follow it, rerun its quarantine, undo
it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.cli.look import JOB_ID, JOBS, list_jobs, logs, quarantine, settled, show, watched
from fusee.bulk.fields import BULK
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.inputs import fields_from, json_from, json_or_text
from fusee.surfaces.cli.options import (
    KEY,
    TIMEOUT,
    VERSION,
    Command,
    Group,
    WaitOption,
    option,
    options_of,
    reasoned,
    waits,
)
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.bulk.service.jobs import BulkOperations

__all__ = ["bulk"]

WHO = "command line"
REASON = reasoned("stopped by request", kept="the job")


def rate_of(text: str) -> float | str:
    """Reads the rate of a bulk job: items per second, `unlimited` or `hold`."""
    from fusee.bulk.model.pacing import rate_from, rate_shown

    try:
        return rate_shown(rate_from(json_or_text(text)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


RATE = option("--rate N", BULK.fields["rate"].help, type=rate_of)


@click.group(cls=Group)
def bulk() -> None:
    """Call one business for very many items, at a rate; a job that stops resumes where it was.

    The business is the bulk handler with its callbacks. Workers need it: start them with the application that
    registers it, or register one that is called over HTTP with `fusee business register`.

    Example:
      fusee bulk create newsletter --business mail --source users.csv --rate 500 --start --wait
      fusee bulk rate 17 --rate 2000
      fusee bulk stop 17
      fusee bulk resume 17 --wait
    """


@command(create=True)
@click.argument("name")
@option("--business NAME", BULK.fields["business"].help, required=True)
@option("--source ITEMS", "A number, FROM..TO, a file, a URL, JSON, or @FILE with JSON.", required=True)
@RATE
@options_of(BULK, "concurrency", "window", "segments", item_attempts="attempts", item_backoff="backoff")
@options_of(BULK, "item_timeout", metavar="TIME")
@options_of(BULK, "error_budget", "alerts", "adaptive", "queue", "region", "priority", "creator", "env")
@option("--data business_data JSON", "The business's own data; @FILE reads it.")
@option("--set others FIELD=VALUE", "Any other field of a job.", multiple=True)
@KEY
@option("--start starts", "Start it at once; --wait does too.")
@waits
async def create(
    bulk_jobs: BulkOperations, out: Out, /, name: str, source: str, business_data: str | None,
    others: tuple[str, ...], key: str | None, starts: bool, wait: WaitOption | None, **options: Any,
) -> Answer:  # fmt: skip
    """Create a bulk job, after its source was examined and its business was asked.

    A file is read by the workers: it must be on a disk that all of them see, under the same path.

    Example:
      fusee bulk create recount --business counters --source 0..10_000_000_000 --rate 5000 --start
      fusee bulk create mail --business mail --source https://crm.example/users.csv --error-budget 2%
    """
    fields = {"name": name, "source": source_from(source), **fields_from(options, others)}
    given = None if business_data is None else json_from(business_data, "--data")
    starts = starts or wait is not None
    made, new = await bulk_jobs.create(fields, data=given, idempotency_key=key, start=starts, who=WHO)
    if wait:
        out.say(f"bulk job {made.id}")
        return await settled(bulk_jobs, out, made, wait)
    return JOBS.one(made, *([] if starts else [f"start it: fusee bulk start {made.id} --wait"]), created=new)


_RANGE = re.compile(r"([0-9][0-9_]*)\.\.([0-9][0-9_]*)")


def source_from(text: str) -> Any:
    """Reads `1000000`, `10..20`, a JSON list or object, `@FILE` or `-` with one, a URL, or the path of a
    file."""
    if text.replace("_", "").isdecimal():
        return int(text)
    if found := _RANGE.fullmatch(text):
        return {"kind": "range", "start": int(found[1]), "stop": int(found[2])}
    if text.startswith(("http://", "https://")):
        return {"kind": "url", "url": text}
    if text.startswith(("{", "[", "@")) or text == "-":
        return json_from(text, "--source")
    path = Path(text)
    if not path.is_file():
        raise click.BadParameter(
            f"there is no file {text}; write a number, FROM..TO, a file, a URL or JSON", param_hint="--source"
        )
    # Workers have another working directory: they get the absolute path.
    return {"kind": "file", "path": str(path.resolve())}


@command()
@JOB_ID
@option("--by-business", "Only while the job waits for its business.")
@option("--force", "Also while the job waits for its business to start it.")
@waits
@VERSION
async def start(
    bulk_jobs: BulkOperations, out: Out, /, job_id: int, wait: WaitOption | None, **how: Any
) -> Answer:
    """Start a bulk job, or continue where it was. One that failed gets a fresh error budget.

    Example: fusee bulk start 17 --wait
    """
    return await settled(bulk_jobs, out, await bulk_jobs.start(job_id, who=WHO, **how), wait)


@command()
@JOB_ID
@waits
@VERSION
async def resume(
    bulk_jobs: BulkOperations, out: Out, /, job_id: int, version: int | None, wait: WaitOption | None
) -> Answer:
    """Continue where the job was when it stopped or failed. One that failed gets a fresh error budget.

    Example: fusee bulk resume 17 --wait
    """
    return await settled(bulk_jobs, out, await bulk_jobs.resume(job_id, who=WHO, version=version), wait)


async def _stop(
    bulk_jobs: BulkOperations, out: Out, /, job_id: int, reason: str, version: int | None
) -> Answer:
    job = await bulk_jobs.stop(job_id, reason=reason, who=WHO, version=version)
    return await settled(bulk_jobs, out, job, None)


@steer(JOBS, "job_id")
@REASON
@VERSION
async def stop(bulk_jobs: BulkOperations, out: Out, /, **given: Any) -> Answer:
    """Start no further item; every worker sees it within 2 s. What is done stays done.

    Example: fusee bulk stop 17 --reason "the mail server is down"
    """
    return await _stop(bulk_jobs, out, **given)


@steer(JOBS, "job_id")
@REASON
@VERSION
async def pause(bulk_jobs: BulkOperations, out: Out, /, **given: Any) -> Answer:
    """The same as stop: a stopped job can be resumed where it was.

    Example: fusee bulk pause 17
    """
    return await _stop(bulk_jobs, out, **given)


@command()
@JOB_ID
@option("--start", "Start it at once; --wait does too.")
@waits
@VERSION
async def extend(
    bulk_jobs: BulkOperations,
    out: Out,
    /,
    job_id: int,
    start: bool,
    version: int | None,
    wait: WaitOption | None,
) -> Answer:
    """Add what the source has after the last item of a job that does not run, also of a finished one.

    Example: fusee bulk extend 17 --start
    """
    starts = start or wait is not None
    return await settled(
        bulk_jobs, out, await bulk_jobs.extend(job_id, start=starts, who=WHO, version=version), wait
    )


@command()
@JOB_ID
@TIMEOUT
async def wait(bulk_jobs: BulkOperations, out: Out, /, job_id: int, timeout: float | None) -> Answer:
    """Follow a bulk job to its end, with a bar that shows its progress.

    Exits 0 when it finished, 5 when it stopped or failed or when every item was quarantined, 124 when it did
    not end within --timeout.

    Example: fusee bulk wait 17
    """
    return await settled(bulk_jobs, out, await bulk_jobs.get(job_id), WaitOption(timeout))


@command()
@JOB_ID
@TIMEOUT
async def watch(bulk_jobs: BulkOperations, out: Out, /, job_id: int, timeout: float | None) -> Answer | None:
    """Watch a bulk job until it stops or ends; with --json, print a line whenever it has moved.

    Example: fusee bulk watch 17 --json
    """
    return await watched(bulk_jobs, out, job_id, timeout)


@command()
@JOB_ID
@RATE
@options_of(BULK, "concurrency", "window", "error_budget", "alerts", defaults=False)
@options_of(BULK, "item_timeout", metavar="TIME", defaults=False)
@options_of(BULK, item_attempts="attempts", item_backoff="backoff", defaults=False)
@VERSION
async def rate(bulk_jobs: BulkOperations, out: Out, /, job_id: int, **changes: Any) -> Answer:
    """Set another rate, concurrency, window, item timeout, error budget or alerts, also while the job runs.

    --attempts and --backoff can be changed only while it does not run.

    Example:
      fusee bulk rate 17 --rate 2000 --concurrency 128
      fusee bulk rate 17 --rate hold
    """
    return await settled(bulk_jobs, out, await bulk_jobs.adjust(job_id, who=WHO, **changes), None)


@command()
@JOB_ID
@click.argument("value", metavar="JSON")
@VERSION
async def data(
    bulk_jobs: BulkOperations, out: Out, /, job_id: int, value: str, version: int | None
) -> Answer:
    """Set the business's own data; refused while the job runs. @FILE reads it from a file.

    Example: fusee bulk data 17 '{"template": 4}'
    """
    job = await bulk_jobs.set_data(job_id, json_from(value, "JSON"), who=WHO, version=version)
    return await settled(bulk_jobs, out, job, None)


@steer(JOBS, "job_id")
@VERSION
async def delete(bulk_jobs: BulkOperations, /, job_id: int, version: int | None) -> Answer:
    """Delete a bulk job that does not run, with its segments, its quarantine and its logs.

    Example: fusee bulk delete 17
    """
    await bulk_jobs.delete(job_id, version=version)
    return Answer({"id": job_id, "deleted": True}, f"bulk job {job_id} is deleted")


@command()
@JOB_ID
@click.argument("text")
@KEY
async def log(bulk_jobs: BulkOperations, /, job_id: int, text: str, key: str | None) -> Answer:
    """Append a line to the job's data log.

    Example: fusee bulk log 17 "downloaded 4,711 rows"
    """
    number = await bulk_jobs.log(job_id, text, who=WHO, idempotency_key=key)
    return Answer({"id": number}, f"line {number}")


def _following(function: Callable[..., Any]) -> Command:
    """A command that creates a job over items of this one; fields that are not given are those of the old
    job."""
    function = option("--start", "Start it at once; --wait does too.")(waits(KEY(function)))
    function = RATE(function)
    function = options_of(BULK, "name", "concurrency", item_attempts="attempts", defaults=False)(function)
    return command()(JOB_ID(function))


def _wishes(wait: WaitOption | None, key: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the requested options; a job that is waited for is started."""
    said = {name: value for name, value in options.items() if value is not None}
    return {**said, "start": said["start"] or wait is not None, "idempotency_key": key, "who": WHO}


@_following
async def rerun(
    bulk_jobs: BulkOperations,
    out: Out,
    /,
    job_id: int,
    key: str | None,
    wait: WaitOption | None,
    **options: Any,
) -> Answer:
    """Make a new job of the quarantined items; each keeps its index.

    Example: fusee bulk rerun 17 --start --wait
    """
    job = await bulk_jobs.rerun_quarantine(job_id, **_wishes(wait, key, options))
    return await settled(bulk_jobs, out, job, wait)


@_following
async def undo(
    bulk_jobs: BulkOperations,
    out: Out,
    /,
    job_id: int,
    key: str | None,
    wait: WaitOption | None,
    **options: Any,
) -> Answer:
    """Make a new job that undoes what is done, the last item first.

    Example: fusee bulk undo 17 --start --wait
    """
    return await settled(bulk_jobs, out, await bulk_jobs.undo(job_id, **_wishes(wait, key, options)), wait)


for command_ in (create, list_jobs, show, start, stop, pause, resume, extend, wait, watch, rate, data,
                 logs, log, quarantine, rerun, undo, delete):  # fmt: skip
    bulk.add_command(command_)
