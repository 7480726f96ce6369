"""`fusee batch`: create, plan, apply, follow, cancel, retry, roll back."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fusee.batches.cli.look import BATCHES, list_batches, recount, settled, show, targets
from fusee.batches.cli.plan import plan
from fusee.batches.cli.steer import apply, cancel, retry, rollback, wait
from fusee.batches.fields import BATCH
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.field_options import options_of
from fusee.surfaces.cli.inputs import fields_from, json_or_text
from fusee.surfaces.cli.options import KEY, Group, Wait, option, waits
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.batches.service.batches import BatchOperations

__all__ = ["batch"]


@click.group(cls=Group)
def batch() -> None:
    """Do one operation to many targets, and be able to undo it.

    A batch is planned first: `plan` shows what would change, `apply` starts it. Workers need the operation:
    start them with the application that registers it.

    Example:
      fusee batch create "stop the old ones" --type cdc/cdc_job_stop --targets old.csv --canary 5
      fusee batch plan 17
      fusee batch apply 17 --wait
      fusee batch rollback 17 --wait
    """


@command(create=True)
@click.argument("name")
@option("--type kind TARGET/OPERATION", "Such as cdc/cdc_job_stop.", required=True)
@option("--targets file FILE", "JSON lines, CSV, JSON, YAML, or -.", required=True)
@options_of(
    BATCH, "concurrency", "canary", "ramp", "max_errors", "on_error", "on_conflict", "queue", "priority",
    "timeout", "creator", "env", "region", "az",
)  # fmt: skip
@option("--set others FIELD=VALUE", "Any other field of a batch.", multiple=True)
@KEY
@option("--apply start", "Start it at once, without looking at the plan.")
@waits
async def create(
    batches: BatchOperations, out: Out, /, name: str, kind: str, file: str, others: tuple[str, ...],
    key: str | None, start: bool, wait: Wait | None, **options: Any,
) -> Answer:  # fmt: skip
    """Create a batch with its targets: all of them or nothing.

    CSV has the columns target_id, target_name, target_env, before.x and after.y. A line of JSON is
    {"target_id": "17", "before": {...}, "after": {...}}. --wait goes with --apply.

    Example: fusee batch create "more memory" --type cdc/cdc_change_config --targets jobs.csv --max-errors 2%
    """
    target_type, slash, batch_type = kind.partition("/")
    if not slash:
        raise click.BadParameter("write TARGET/OPERATION, such as cdc/cdc_job_stop", param_hint="--type")
    what = {"batch_name": name, "target_type": target_type, "batch_type": batch_type}
    fields = what | fields_from(options, others)
    made, new = await batches.create(fields, targets_in(file), idempotency_key=key, apply=start)
    if start and wait:
        out.say(f"batch {made.id} of {made.total} targets")
        return await settled(batches, out, made, wait)
    hint = f"look at it: fusee batch plan {made.id}; start it: fusee batch apply {made.id} --wait"
    return BATCHES.one(made, *([] if start else [hint]), created=new)


def targets_in(file: str) -> Iterator[Mapping[str, Any]]:
    """Targets from lines of JSON, CSV, or one JSON or YAML document, read as they are needed.

    `-` is standard input, as lines of JSON.
    """
    if file == "-":
        yield from _lines(sys.stdin, "standard input")
        return
    path = Path(file)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {file}", param_hint="--targets")
    with path.open(encoding="utf-8-sig", newline="") as text:
        match path.suffix.lower():
            case ".csv":
                yield from _rows(text)
            case ".json":
                yield from _array(json.load(text), file)
            case ".yaml" | ".yml":
                import yaml

                yield from _array(yaml.safe_load(text), file)
            case _:
                yield from _lines(text, file)


def _lines(text: IO[str], where: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise click.UsageError(f"{where}, line {number}: not JSON: {error}") from None


def _array(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    targets = value.get("targets") if isinstance(value, dict) else value
    if not isinstance(targets, list):
        raise click.UsageError(f"{where}: targets must be a list")
    yield from targets


def _rows(text: IO[str]) -> Iterator[Mapping[str, Any]]:
    """Columns target_id, target_name, target_env, before.x, after.y; JSON values are read as such."""
    for row in csv.DictReader(text):
        target: dict[str, Any] = {}
        for column, value in row.items():
            side, _, name = str(column).partition(".")
            if name and side in ("before", "after"):
                target.setdefault(side, {})[name] = json_or_text(value or "")
            else:
                target[str(column)] = value
        yield target


for command_ in (create, list_batches, show, plan, targets, apply, wait, cancel, retry, rollback, recount):
    batch.add_command(command_)
