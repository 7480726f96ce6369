"""`fusee batch plan`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.batches.cli.look import BATCH_ID
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out, clean, table

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.batches.model.batch import Planned

__all__ = ["plan"]

PAGE = 500
"""Targets that are looked at in one go."""
NOT_KNOWN = ("unreachable", "invalid")


@click.command(cls=Command)
@BATCH_ID
@click.option(
    "--limit", metavar="N", default=1000, type=click.IntRange(1, 1_000_000), help="At most so many."
)
@click.option(
    "--timeout",
    metavar="TIME",
    default="1m",
    callback=duration(least=0.1),
    help="Targets that nobody saw by then are unreachable; 1m by default.",
)
@click.option("--recorded", is_flag=True, help="Compare what is on record; look at no target.")
@click.pass_context
def plan(context: click.Context, batch_id: int, limit: int, timeout: float, recorded: bool) -> None:
    """Show what applying a batch would do to each target; nothing is done.

    Workers that have the operation look at the targets, many at once. Each target is one of: create, change,
    none (it is as wanted already), unreachable, invalid (its parameters do not fit the operation). Exits 5
    when some are unreachable or invalid.

    \b
    Example:
      fusee batch plan 17 --limit 200 --timeout 30s
    """
    drive(_plan(Shared.of(context), Out.of(context), batch_id, limit, timeout, recorded))


async def _plan(shared: Shared, out: Out, batch_id: int, limit: int, timeout: float, recorded: bool) -> None:
    async with opened(shared) as app:
        batch = await app.batches.get(batch_id)
        limit = min(limit, batch.total)
        if recorded:
            items = await _recorded(app, batch_id, limit)
        else:
            items = await _look(app, out, batch_id, limit, timeout)
    counts = {} if recorded else dict(Counter(item["action"] for item in items))
    if out.json:
        out.data({"items": items} if recorded else {"items": items, "counts": counts})
    else:
        _show(out, items, recorded)
        if counts:
            out.say(", ".join(f"{count} {action}" for action, count in sorted(counts.items())))
        if batch.total > len(items):
            out.say(f"the first {len(items)} of {batch.total} targets; --limit shows more")
    if any(action in counts for action in NOT_KNOWN):
        raise SystemExit(Exit.UNSUCCESSFUL)


async def _look(app: Fusee, out: Out, batch_id: int, limit: int, timeout: float) -> list[dict[str, Any]]:
    """Page by page, with a bar that shows how many were looked at."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fusee.batches.store.queries import TargetFilter

    deadline = time.monotonic() + timeout
    found: list[Planned] = []
    columns = (TextColumn("looking at targets"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out.progress_console(), transient=True) as bar:
        shown = bar.add_task("", total=limit)

        def progress(done: int) -> None:
            bar.update(shown, completed=len(found) + done)

        while len(found) < limit:
            after = found[-1].task.position if found else None
            wanted = TargetFilter(after=after, limit=min(PAGE, limit - len(found)))
            left = min(300.0, max(0.1, deadline - time.monotonic()))
            page = await app.batches.plan(batch_id, wanted, timeout=left, progress=progress)
            if not page:
                break
            found += page
    return [_object(one) for one in found]


async def _recorded(app: Fusee, batch_id: int, limit: int) -> list[dict[str, Any]]:
    from fusee.batches.store.queries import TargetFilter

    items: list[dict[str, Any]] = []
    after: int | None = None
    while len(items) < limit:
        wanted = TargetFilter(after=after, limit=min(PAGE, limit - len(items)))
        page = await app.batches.recorded_plan(batch_id, wanted)
        if not page:
            break
        items += [_row(task.target_id, task.target_name, changes) for task, changes in page]
        after = page[-1][0].position
    return items


def _object(one: Planned) -> dict[str, Any]:
    row = _row(one.task.target_id, one.task.target_name, one.changes)
    return {**row, "action": str(one.action), "info": one.info}


def _row(target_id: str, name: str, changes: Any) -> dict[str, Any]:
    listed = [{"name": n, "before": before, "after": after} for n, (before, after) in changes.items()]
    return {"target_id": target_id, "target_name": name, "changes": listed}


def _show(out: Out, items: Sequence[dict[str, Any]], recorded: bool) -> None:
    drawn = table("target", "name", *(() if recorded else ("action",)), "change")
    for item in items:
        words = ", ".join(f"{c['name']}: {c['before']!r} → {c['after']!r}" for c in item["changes"])
        text = item.get("info") or words
        action = () if recorded else (item["action"],)
        drawn.add_row(clean(item["target_id"]), clean(item["target_name"]), *action, clean(text))
    out.show(drawn)
