"""`fusee workers`."""

from __future__ import annotations

import time

import click

from fusee.cli.opening import drive, opened
from fusee.cli.options import Command, Shared
from fusee.cli.output import Out, clean, human, status_text, table
from fusee.cli.shapes import worker_object

__all__ = ["workers"]


@click.command(cls=Command)
@click.option("--all", "all_states", is_flag=True, help="Also those that ended or were lost.")
@click.pass_context
def workers(context: click.Context, all_states: bool) -> None:
    """List the workers, what each can run and how busy it is.

    A worker is alive while it renews its lease; one that stops doing so is lost, and its runs go to others.

    \b
    Example:
      fusee workers
      fusee workers --all --json | jq '.items[] | select(.state == "lost")'
    """
    drive(_workers(Shared.of(context), Out.of(context), all_states))


async def _workers(shared: Shared, out: Out, all_states: bool) -> None:
    from rich.text import Text

    async with opened(shared) as app:
        sessions = await app.workers.list(all_states=all_states)
    if out.json:
        out.data({"items": [worker_object(session) for session in sessions]})
        return
    if not sessions:
        out.say("no worker is alive: `fusee worker --app myproject.jobs:app` starts one")
        return
    drawn = table(">id", "name", "state", ">running", "queues", "region", ">seen", "handlers")
    now = time.time_ns() // 1000
    for session in sessions:
        info = session.info
        extra = [f"({executor})" for executor in info.executors if executor != "python"]
        drawn.add_row(
            str(session.id),
            Text(clean(info.name)),
            status_text(session.state),
            f"{session.running}/{info.capacity}",
            Text(clean(", ".join(info.queues))),
            Text(clean(info.region)),
            human((now - session.seen_at) / 1e6) + " ago",
            Text(clean(", ".join([*info.handlers, *extra]))),
        )
    out.show(drawn)
