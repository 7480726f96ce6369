"""`fusee batch list`, `show`, `targets` and `recount`."""

from __future__ import annotations

from typing import Any

import click

from fusee.batches.cli.progress import summary
from fusee.batches.cli.shapes import batch_object, target_object
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, status_text, table
from fusee.surfaces.cli.shapes import time_text

__all__ = ["BATCH_ID", "list_batches", "recount", "show", "targets"]

BATCH_ID = click.argument("batch_id", metavar="ID", type=click.IntRange(1))
LIMIT = click.option(
    "--limit", metavar="N", default=50, type=click.IntRange(1, 1000), help="At most so many."
)


@click.command("list", cls=Command)
@click.option("--status", multiple=True, metavar="STATUS", help="Only these; may be repeated.")
@click.option("--type", "batch_type", metavar="OPERATION")
@click.option("--creator", metavar="NAME")
@click.option("--env", metavar="NAME")
@click.option("--region", metavar="NAME")
@click.option("--az", metavar="NAME")
@LIMIT
@click.pass_context
def list_batches(context: click.Context, /, status: tuple[str, ...], limit: int, **filters: Any) -> None:
    """List batches, newest first.

    \b
    Example:
      fusee batch list --status partial_fail --env live
    """
    drive(_list(Shared.of(context), Out.of(context), status, limit, filters))


async def _list(
    shared: Shared, out: Out, status: tuple[str, ...], limit: int, filters: dict[str, Any]
) -> None:
    from fusee.batches.store.queries import BatchFilter

    wanted = BatchFilter(status=_statuses(status), limit=limit, **filters)
    async with opened(shared) as app:
        found = await app.batches.list(wanted)
    if out.json:
        out.data({"items": [batch_object(one) for one in found]})
        return
    from rich.text import Text

    drawn = table(">id", "name", "operation", "status", ">targets", ">success", ">fail", "creator")
    for one in found:
        counts = {str(name): count for name, count in one.counts.items()}
        drawn.add_row(
            str(one.id),
            Text(clean(one.spec.batch_name)),
            f"{one.spec.target_type}/{one.spec.batch_type}",
            status_text(str(one.status)),
            str(one.total),
            str(counts["success"]),
            str(counts["fail"]),
            Text(clean(one.spec.creator)),
        )
    out.show(drawn) if found else out.say("no batch")


@click.command(cls=Command)
@BATCH_ID
@click.pass_context
def show(context: click.Context, batch_id: int) -> None:
    """Show a batch: where its targets stand.

    \b
    Example:
      fusee batch show 17
    """
    drive(_show(Shared.of(context), Out.of(context), batch_id))


async def _show(shared: Shared, out: Out, batch_id: int) -> None:
    async with opened(shared) as app:
        found = await app.batches.get(batch_id)
    if out.json:
        out.data(batch_object(found))
        return
    spec = found.spec
    out.show(summary(found))
    drawn = table("field", "value")
    for field in ("batch_name", "batch_type", "target_type", "creator", "env", "region", "az", "concurrency",
                  "canary", "ramp", "max_errors", "on_error", "on_conflict"):  # fmt: skip
        if (value := getattr(spec, field)) not in ("", None):
            drawn.add_row(field, clean(str(value)))
    drawn.add_row("phase", str(found.phase))
    if found.kept_until is not None:
        drawn.add_row("kept until", f"{time_text(found.kept_until)}; it can be rolled back until then")
    drawn.add_row("version", str(found.version))
    out.show(drawn)


@click.command(cls=Command)
@BATCH_ID
@click.option("--status", multiple=True, metavar="STATUS", help="Only these; may be repeated.")
@LIMIT
@click.pass_context
def targets(context: click.Context, batch_id: int, status: tuple[str, ...], limit: int) -> None:
    """List a batch's targets, each with where it stands and why.

    \b
    Example:
      fusee batch targets 17 --status fail
    """
    drive(_targets(Shared.of(context), Out.of(context), batch_id, status, limit))


async def _targets(shared: Shared, out: Out, batch_id: int, status: tuple[str, ...], limit: int) -> None:
    from fusee.batches.store.queries import TargetFilter

    async with opened(shared) as app:
        wanted = TargetFilter(status=_statuses(status), limit=limit)
        found = await app.batches.tasks(batch_id, wanted)
    if out.json:
        out.data({"items": [target_object(task) for task in found]})
        return
    drawn = table("target", "name", "status", "effect", ">retries", ">run", "info")
    for task in found:
        drawn.add_row(
            clean(task.target_id),
            clean(task.target_name),
            status_text(str(task.status)),
            str(task.effect or ""),
            str(task.retry_time),
            str(task.rollback_run_id or task.run_id or ""),
            clean((task.info or "").splitlines()[0] if task.info else ""),
        )
    out.show(drawn) if found else out.say("no such target")


@click.command(cls=Command)
@BATCH_ID
@click.pass_context
def recount(context: click.Context, batch_id: int) -> None:
    """Look at every target and compare with the counts that are kept.

    Exits 5 when they differ, which would be a bug worth reporting. Slow for a large batch.

    \b
    Example:
      fusee batch recount 17
    """
    drive(_recount(Shared.of(context), Out.of(context), batch_id))


async def _recount(shared: Shared, out: Out, batch_id: int) -> None:
    async with opened(shared) as app:
        kept, counted = await app.batches.recount(batch_id)
    equal = kept == counted
    if out.json:
        out.data(
            {
                "equal": equal,
                "kept": {str(s): n for s, n in kept.items()},
                "counted": {str(s): n for s, n in counted.items()},
            }
        )
    else:
        drawn = table("status", ">kept", ">counted")
        for status in kept:
            if kept[status] or counted[status]:
                drawn.add_row(status_text(str(status)), str(kept[status]), str(counted[status]))
        out.show(drawn, "equal" if equal else "NOT equal")
    if not equal:
        raise SystemExit(Exit.UNSUCCESSFUL)


def _statuses(names: tuple[str, ...]) -> tuple[Any, ...]:
    from fusee.batches.model.batch import BatchStatus

    try:
        return tuple(BatchStatus(name) for name in names)
    except ValueError:
        raise click.BadParameter(f"one of {', '.join(BatchStatus)}", param_hint="--status") from None
