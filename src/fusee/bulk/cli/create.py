"""`fusee bulk`: create, start, follow, stop, adjust, look, run the quarantine again, undo."""

from __future__ import annotations

import json
from typing import Any

import click

from fusee.bulk.cli.look import list_jobs, logs, quarantine, show
from fusee.bulk.cli.progress import follow, summary
from fusee.bulk.cli.shapes import bulk_object
from fusee.bulk.cli.sources import rate_of, source_from
from fusee.bulk.cli.steer import (
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
from fusee.surfaces.cli.inputs import json_or_text, member_from, text_of
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Group, Shared
from fusee.surfaces.cli.output import Out

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


@click.command(cls=Command)
@click.argument("name")
@click.option("--business", metavar="NAME", required=True, help="Who handles the items.")
@click.option(
    "--source",
    metavar="ITEMS",
    required=True,
    help="A number, FROM..TO, a file, a URL, JSON, or @FILE with JSON.",
)
@click.option("--rate", metavar="N", type=rate_of, help="Items started a second, or: unlimited, hold.")
@click.option("--concurrency", metavar="N", type=click.IntRange(1), help="Items or chunks at once.")
@click.option(
    "--window", metavar="N", type=click.IntRange(0), help="Places of a segment's window; 0: chosen by itself."
)
@click.option("--segments", metavar="N", type=click.IntRange(0), help="0: one for each worker.")
@click.option("--attempts", "item_attempts", metavar="N", type=click.IntRange(1), help="Tries of an item.")
@click.option("--backoff", "item_backoff", metavar="TIME", help="Before the second try; then doubled.")
@click.option("--item-timeout", metavar="TIME", help="Of one call, such as 90s; none: no limit.")
@click.option("--error-budget", metavar="N|N%", help="More quarantined items than this fail the job.")
@click.option("--alerts", metavar="URL", help="Posted to when the job fails or stalls.")
@click.option("--adaptive", is_flag=True, default=None, help="Find the concurrency by itself.")
@click.option("--data", "business_data", metavar="JSON", help="The business's own data; @FILE reads it.")
@click.option("--creator", metavar="NAME", help="Who asked for it.")
@click.option("--env", metavar="NAME")
@click.option("--region", metavar="NAME")
@click.option("--queue", metavar="NAME")
@click.option("--set", "others", metavar="FIELD=VALUE", multiple=True, help="Any other field of a job.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key creates it once only.")
@click.option("--start", "starts", is_flag=True, help="Start it at once.")
@click.option("--wait", "waits", is_flag=True, help="Start it, and follow it to its end.")
@click.pass_context
def create(
    context: click.Context,
    /,
    name: str,
    source: str,
    business_data: str | None,
    others: tuple[str, ...],
    key: str | None,
    starts: bool,
    waits: bool,
    **options: Any,
) -> None:
    """Create a bulk job; its source is looked at and its business asked first.

    A file is read by the workers: it must be on a disk that all of them see, under the same path.

    Example:
      fusee bulk create recount --business counters --source 0..10_000_000_000 --rate 5000 --start
      fusee bulk create mail --business mail --source https://crm.example/users.csv --error-budget 2%
    """
    fields: dict[str, Any] = {"name": name, "source": source_from(source)}
    fields |= {option: value for option, value in options.items() if value is not None}
    for other in others:
        field, value = member_from(other, "--set")
        fields[field] = json_or_text(value)
    given: Any = None
    if business_data is not None:
        try:
            given = json.loads(text_of(business_data, "--data"))
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--data") from None
    drive(_create(Shared.of(context), Out.of(context), fields, given, key, starts, waits))


async def _create(
    shared: Shared, out: Out, fields: dict[str, Any], data: Any, key: str | None, starts: bool, waits: bool
) -> None:
    async with opened(shared, create=True) as app:
        made, new = await app.bulk_jobs.create(
            fields, data=data, idempotency_key=key, start=starts or waits, who="command line"
        )
        if waits:
            out.say(f"bulk job {made.id}")
            await follow(app, out, made.id)
        elif out.json:
            out.data({**bulk_object(made), "created": new})
        else:
            out.show(summary(made))
            if not starts:
                out.say(f"start it: fusee bulk start {made.id} --wait")


for command in (create, list_jobs, show, start, stop, pause, resume, extend, wait, watch, rate, data,
                logs, log, quarantine, rerun, undo, delete):  # fmt: skip
    bulk.add_command(command)
