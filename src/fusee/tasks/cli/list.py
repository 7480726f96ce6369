"""`fusee task list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.moments import away
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, status_text, table
from fusee.surfaces.cli.shapes import task_object
from fusee.tasks.cli.view import short_trigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from fusee.tasks.model.task import Task
    from fusee.tasks.store.tasks import TaskFilter

__all__ = ["list_tasks"]


@click.command("list", cls=Command)
@click.option(
    "--status",
    "-s",
    multiple=True,
    type=click.Choice(("enabled", "paused", "disabled"), case_sensitive=False),
    help="Only these; repeatable.",
)
@click.option("--prefix", metavar="TEXT", default="", help="Only names that begin so.")
@click.option("--after", metavar="NAME", help="Only names behind this one, for the next page.")
@click.option(
    "--limit",
    "-n",
    metavar="N",
    default=50,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="How many.",
)
@click.pass_context
def list_tasks(
    context: click.Context, status: tuple[str, ...], prefix: str, after: str | None, limit: int
) -> None:
    """List tasks by name: what fires them, when next, and how the last one went.

    Example:
      fusee task list
      fusee task list --status paused
      fusee task list --prefix billing/ --json | jq -r '.items[].name'
    """
    from fusee.tasks.model.task import TaskStatus
    from fusee.tasks.store.tasks import TaskFilter

    wanted = TaskFilter(status=[TaskStatus(s) for s in status], prefix=prefix, after=after, limit=limit)
    drive(_list(Shared.of(context), Out.of(context), wanted))


async def _list(shared: Shared, out: Out, wanted: TaskFilter) -> None:
    async with opened(shared) as app:
        found = await app.tasks.list(wanted)
        full = len(found) == wanted.limit
        if out.json:
            items = [task_object(task, app.tasks.upcoming(task)) for task in found]
            out.data({"items": items, "next_after": found[-1].name if full else None})
        elif found:
            out.show(_table(found, app.clock.now_us()))
            if full:
                out.say(f"more: --after {found[-1].name}")
        else:
            out.say(
                "no task matches" if wanted.status or wanted.prefix else "no tasks yet: fusee task create"
            )


def _next(at: int | None, now: int) -> str:
    """One that is due and has not fired waits for a dispatcher."""
    if at is None:
        return ""
    return away(at, now) if at > now else f"due {away(at, now)}"


def _table(tasks: Sequence[Task], now: int) -> Table:
    from rich.text import Text

    drawn = table("name", "fires", "status", "next", "last", ">failures", "why")
    for task in tasks:
        last = "" if task.last_status is None else str(task.last_status)
        drawn.add_row(
            Text(clean(task.name)),
            Text(clean(short_trigger(task.spec))),
            status_text(str(task.status)),
            _next(task.next_fire_at, now),
            status_text(last),
            Text(str(task.failures), "red") if task.failures else "",
            Text(clean(task.reason or "")),
        )
    return drawn
