"""`fusee batch`: create, plan, apply, follow, cancel, retry, roll back."""

from __future__ import annotations

from typing import Any

import click

from fusee.batches.cli.files import targets_in
from fusee.batches.cli.look import list_batches, recount, show, targets
from fusee.batches.cli.plan import plan
from fusee.batches.cli.progress import follow, summary
from fusee.batches.cli.shapes import batch_object
from fusee.batches.cli.steer import apply, cancel, retry, rollback, wait
from fusee.surfaces.cli.inputs import json_or_text, member_from
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Group, Shared
from fusee.surfaces.cli.output import Out

__all__ = ["batch"]


@click.group(cls=Group)
def batch() -> None:
    """Do one operation to many targets, and be able to undo it.

    A batch is planned first: `plan` shows what would change, `apply` starts it. Workers need the operation:
    start them with the application that registers it.

    \b
    Example:
      fusee batch create "stop the old ones" --type cdc/cdc_job_stop --targets old.csv --canary 5
      fusee batch plan 17
      fusee batch apply 17 --wait
      fusee batch rollback 17 --wait
    """


@click.command(cls=Command)
@click.argument("name")
@click.option("--type", "kind", metavar="TARGET/OPERATION", required=True, help="Such as cdc/cdc_job_stop.")
@click.option("--targets", "file", metavar="FILE", required=True, help="JSON lines, CSV, JSON, YAML, or -.")
@click.option("--concurrency", metavar="N", type=click.IntRange(0), help="Targets at once; 0 is no cap.")
@click.option("--canary", metavar="N", type=click.IntRange(0), help="So many go first, alone.")
@click.option("--ramp", metavar="X", type=click.FloatRange(1), help="Then so many times more each round.")
@click.option("--max-errors", metavar="N|N%", help="More failures than this stop it.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "rollback"], case_sensitive=False),
    help="What else happens then.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["wait", "refuse"], case_sensitive=False),
    help="Wait for targets that another batch is changing (the default), or do not start.",
)
@click.option("--creator", metavar="NAME", help="Who asked for it.")
@click.option("--env", metavar="NAME")
@click.option("--region", metavar="NAME")
@click.option("--az", metavar="NAME")
@click.option("--set", "others", metavar="FIELD=VALUE", multiple=True, help="Any other field of a batch.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key creates it once only.")
@click.option("--apply", "start", is_flag=True, help="Start it at once, without looking at the plan.")
@click.option("--wait", "waits", is_flag=True, help="With --apply: follow it to its end.")
@click.pass_context
def create(
    context: click.Context,
    /,
    name: str,
    kind: str,
    file: str,
    others: tuple[str, ...],
    key: str | None,
    start: bool,
    waits: bool,
    **options: Any,
) -> None:
    """Take in a batch with its targets: all of them or nothing.

    CSV has the columns target_id, target_name, target_env, before.x and after.y. A line of JSON is
    {"target_id": "17", "before": {...}, "after": {...}}.

    \b
    Example:
      fusee batch create "more memory" --type cdc/cdc_change_config --targets jobs.csv --max-errors 2%
    """
    target_type, slash, batch_type = kind.partition("/")
    if not slash:
        raise click.BadParameter("write TARGET/OPERATION, such as cdc/cdc_job_stop", param_hint="--type")
    fields: dict[str, Any] = {"batch_name": name, "target_type": target_type, "batch_type": batch_type}
    fields |= {option: value for option, value in options.items() if value is not None}
    for other in others:
        field, value = member_from(other, "--set")
        fields[field] = json_or_text(value)
    drive(_create(Shared.of(context), Out.of(context), fields, file, key, start, waits))


async def _create(
    shared: Shared, out: Out, fields: dict[str, Any], file: str, key: str | None, start: bool, waits: bool
) -> None:
    async with opened(shared, create=True) as app:
        made, new = await app.batches.create(fields, targets_in(file), idempotency_key=key, apply=start)
        if start and waits:
            out.say(f"batch {made.id} of {made.total} targets")
            await follow(app, out, made.id, None)
        elif out.json:
            out.data({**batch_object(made), "created": new})
        else:
            out.show(summary(made))
            if not start:
                out.say(
                    f"look at it: fusee batch plan {made.id}; start it: fusee batch apply {made.id} --wait"
                )


for command in (create, list_batches, show, plan, targets, apply, wait, cancel, retry, rollback, recount):
    batch.add_command(command)
