"""`fusee batch`: create, apply, wait, cancel, retry, roll back."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fusee.batches.cli.look import (
    BATCH_ID,
    BATCHES,
    GOOD,
    SOME_UNDONE,
    list_batches,
    recount,
    settled,
    show,
    targets,
)
from fusee.batches.cli.plan import plan
from fusee.batches.fields import BATCH
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.inputs import fields_from, json_or_text
from fusee.surfaces.cli.options import (
    KEY,
    TIMEOUT,
    VERSION,
    Group,
    WaitOption,
    option,
    options_of,
    reasoned,
    waits,
)
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
    key: str | None, start: bool, wait: WaitOption | None, **options: Any,
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


@command()
@BATCH_ID
@waits
@VERSION
async def apply(
    batches: BatchOperations, out: Out, /, batch_id: int, version: int | None, wait: WaitOption | None
) -> Answer:
    """Start a batch that was planned.

    Example: fusee batch apply 17 --wait
    """
    return await settled(batches, out, await batches.apply(batch_id, version=version), wait)


@command()
@BATCH_ID
@TIMEOUT
async def wait(batches: BatchOperations, out: Out, /, batch_id: int, timeout: float | None) -> Answer:
    """Follow a batch to its end, with a bar that shows its progress.

    Exits 0 when it ended well, 5 when it did not, 124 when it did not end within --timeout.

    Example: fusee batch wait 17
    """
    return await settled(batches, out, await batches.get(batch_id), WaitOption(timeout))


@steer(BATCHES, "batch_id")
@reasoned("canceled by request", kept="the batch")
@waits
@VERSION
async def cancel(
    batches: BatchOperations,
    out: Out,
    /,
    batch_id: int,
    reason: str,
    version: int | None,
    wait: WaitOption | None,
) -> Answer:
    """Start no further targets; running ones keep their real outcome.

    Example: fusee batch cancel 17 --reason "wrong list"
    """
    made = await batches.cancel(batch_id, reason=reason, version=version)
    return await settled(batches, out, made, wait)


@command()
@BATCH_ID
@option("--canceled", "Also the targets that were canceled.")
@KEY
@waits
@VERSION
async def retry(
    batches: BatchOperations,
    out: Out,
    /,
    batch_id: int,
    canceled: bool,
    key: str | None,
    version: int | None,
    wait: WaitOption | None,
) -> Answer:  # fmt: skip
    """Try the failed targets again, and no others.

    Example: fusee batch retry 17 --wait
    """
    made, count = await batches.retry(batch_id, canceled=canceled, version=version, idempotency_key=key)
    out.say(f"{count} targets are tried again")
    return await settled(batches, out, made, wait)


@command()
@BATCH_ID
@option("--target chosen ID", "Only this target; repeatable.", multiple=True)
@option("--force", "Also targets that have drifted.")
@waits
@VERSION
async def rollback(
    batches: BatchOperations,
    out: Out,
    /,
    batch_id: int,
    chosen: tuple[str, ...],
    force: bool,
    version: int | None,
    wait: WaitOption | None,
) -> Answer:
    """Undo what was applied, or may have been applied, newest first.

    A target that is no longer as the batch left it is reported and left alone, unless --force is given. With
    --wait: exits 5 unless everything is undone (rollback_success); with --target, it is enough that all
    chosen targets are undone (partial_rollback).

    Example:
      fusee batch rollback 17 --wait
      fusee batch rollback 17 --target 4711 --target 4712
    """
    targets = list(chosen) or None
    made = await batches.roll_back(batch_id, targets=targets, force=force, version=version)
    return await settled(batches, out, made, wait, SOME_UNDONE if chosen else GOOD)


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
