"""`fusee bulk`: create, start, follow, stop, adjust, look, run the quarantine again, undo."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.cli.look import JOBS, list_jobs, logs, quarantine, settled, show
from fusee.bulk.cli.steer import (
    RATE,
    WHO,
    data,
    delete,
    extend,
    log,
    pause,
    rate,
    rerun,
    resume,
    start,
    stop,
    undo,
    wait,
    watch,
)
from fusee.bulk.fields import BULK
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.inputs import fields_from, json_from
from fusee.surfaces.cli.options import KEY, Group, WaitOption, option, options_of, waits
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.bulk.service.jobs import BulkOperations

__all__ = ["bulk"]


@click.group(cls=Group)
def bulk() -> None:
    """Call one business for very many items, at a rate, and never from zero again.

    Workers need the business: start them with the application that registers it, or register one that is
    reached over HTTP with `fusee business register`.

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
    """`1000000`, `10..20`, a JSON list or object, `@FILE` or `-` with one, a URL, or the path of a file."""
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


for command_ in (create, list_jobs, show, start, stop, pause, resume, extend, wait, watch, rate, data,
                 logs, log, quarantine, rerun, undo, delete):  # fmt: skip
    bulk.add_command(command_)
