"""`fusee batch plan`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.batches.cli.look import BATCH_ID
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.follow import progress
from fusee.surfaces.cli.options import duration, option
from fusee.surfaces.cli.output import Out, clean, table

if TYPE_CHECKING:
    from rich.table import Table

    from fusee.batches.model.batch import Planned
    from fusee.batches.service.batches import BatchOperations

__all__ = ["plan"]

PAGE = 500
"""Targets that are looked at in one call."""
NOT_KNOWN = ("unreachable", "invalid")


@command()
@BATCH_ID
@option("--limit N", "Look at this many at most.", default=1000, type=click.IntRange(1, 1_000_000))
@option(
    "--timeout TIME",
    "Targets that no worker has looked at by then are unreachable; 1m by default.",
    default="1m",
    callback=duration(least=0.1),
)
@option("--recorded", "Compare what is recorded; look at no target.")
async def plan(
    batches: BatchOperations, out: Out, /, batch_id: int, limit: int, timeout: float, recorded: bool
) -> Answer:
    """Show what applying a batch would do to each target; nothing is done.

    Workers that have the operation look at the targets, many at once. Each target is one of: create, change,
    none (it is as wanted already), unreachable, invalid (its parameters do not fit the operation). Exits 5
    when some are unreachable or invalid.

    Example: fusee batch plan 17 --limit 200 --timeout 30s
    """
    batch = await batches.get(batch_id)
    limit = min(limit, batch.total)
    if recorded:
        items = await _recorded(batches, batch_id, limit)
    else:
        items = await _look(batches, out, batch_id, limit, timeout)
    counts = {} if recorded else dict(Counter(item["action"] for item in items))
    say = [", ".join(f"{count} {action}" for action, count in sorted(counts.items()))] if counts else []
    if batch.total > len(items):
        say.append(f"the first {len(items)} of {batch.total} targets; --limit shows more")
    return Answer(
        {"items": items} if recorded else {"items": items, "counts": counts},
        lambda: _table(items, recorded),
        say=say,
        exit=Exit.UNSUCCESSFUL if any(action in counts for action in NOT_KNOWN) else Exit.OK,
    )


async def _look(
    batches: BatchOperations, out: Out, batch_id: int, limit: int, timeout: float
) -> list[dict[str, Any]]:
    """Page by page, with a bar that shows how many were looked at."""
    from fusee.batches.store.queries import TargetFilter

    deadline = time.monotonic() + timeout
    found: list[Planned] = []
    with progress(out) as update:

        def looked(done: int) -> None:
            update("looking at targets", len(found) + done, limit)

        while len(found) < limit:
            after = found[-1].task.position if found else None
            wanted = TargetFilter(after=after, limit=min(PAGE, limit - len(found)))
            left = min(300.0, max(0.1, deadline - time.monotonic()))
            page = await batches.plan(batch_id, wanted, timeout=left, progress=looked)
            if not page:
                break
            found += page
    return [_object(one) for one in found]


async def _recorded(batches: BatchOperations, batch_id: int, limit: int) -> list[dict[str, Any]]:
    from fusee.batches.store.queries import TargetFilter

    items: list[dict[str, Any]] = []
    after: int | None = None
    while len(items) < limit:
        wanted = TargetFilter(after=after, limit=min(PAGE, limit - len(items)))
        page = await batches.recorded_plan(batch_id, wanted)
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


def _table(items: Sequence[dict[str, Any]], recorded: bool) -> Table:
    drawn = table("target", "name", *(() if recorded else ("action",)), "change")
    for item in items:
        words = ", ".join(f"{c['name']}: {c['before']!r} → {c['after']!r}" for c in item["changes"])
        text = item.get("info") or words
        action = () if recorded else (item["action"],)
        drawn.add_row(clean(item["target_id"]), clean(item["target_name"]), *action, clean(text))
    return drawn
