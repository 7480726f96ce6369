"""`fusee task show` and `fusee task next`."""

from __future__ import annotations

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import task_object, time_text
from fusee.tasks.cli.view import fires_table, show_next, show_task, zone_of

__all__ = ["next_fires", "show"]

LATEST = 5


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.pass_context
def show(context: click.Context, name: str) -> None:
    """Show one task: what it is, when it fires, and what was decided about its last fires.

    What is as by default is left out; --json has every field.

    Example:
      fusee task show nightly
      fusee task show nightly --json | jq .next_fires
    """
    drive(_show(Shared.of(context), Out.of(context), name))


async def _show(shared: Shared, out: Out, name: str) -> None:
    from fusee.tasks.store.history import FireFilter

    async with opened(shared) as app:
        task = await app.tasks.get(name)
        if out.json:
            out.data(task_object(task, app.tasks.upcoming(task)))
            return
        show_task(out, app, task)
        latest = await app.tasks.fires(name, FireFilter(limit=LATEST))
    if latest:
        out.show("", fires_table(latest, zone_of(task)))


@click.command("next", cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "-n", "count", metavar="N", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many."
)
@click.pass_context
def next_fires(context: click.Context, name: str, count: int) -> None:
    """Tell when a task fires next, in its time zone and in UTC.

    Example:
      fusee task next nightly
      fusee task next nightly -n 20 --json
    """
    drive(_next(Shared.of(context), Out.of(context), name, count))


async def _next(shared: Shared, out: Out, name: str, count: int) -> None:
    async with opened(shared) as app:
        task = await app.tasks.get(name)
        if out.json:
            times = app.tasks.upcoming(task, count)
            out.data({"task": task.name, "next_fires": [time_text(at) for at in times]})
        else:
            show_next(out, app, task, count)
