"""`fusee task runs`: the record of a task's fires."""

from __future__ import annotations

import re
from typing import Any

import click

from fusee.surfaces.cli.moments import TIMES, moment
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import fire_object
from fusee.tasks.cli.view import fires_table, zone_of

__all__ = ["runs"]


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option(
    "--decision",
    "-d",
    multiple=True,
    type=click.Choice(("run", "queue", "skip", "miss"), case_sensitive=False),
    help="Only these; repeatable.",
)
@click.option("--since", metavar="TIME", help=f"Not before: {TIMES}.")
@click.option("--until", metavar="TIME", help="Not after.")
@click.option("--before", metavar="PLACE", help="Only older ones, for the next page.")
@click.option(
    "--limit",
    "-n",
    metavar="N",
    default=25,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="How many.",
)
@click.pass_context
def runs(context: click.Context, /, name: str, **given: Any) -> None:
    """List the fires of a task, newest first: what was decided about each, by which rule, and its run.

    Every due fire has a row here, also one that was skipped or missed. The record of a deleted task is
    found by its name or its number.

    Example:
      fusee task runs nightly
      fusee task runs nightly --decision skip --decision miss --since -24h
    """
    drive(_runs(Shared.of(context), Out.of(context), name, given))


async def _runs(shared: Shared, out: Out, name: str, given: dict[str, Any]) -> None:
    from fusee.tasks.model.policy import Decision
    from fusee.tasks.store.history import FireFilter

    async with opened(shared) as app:
        task = await app.tasks.get(int(name) if name.isdecimal() else name, deleted=True)
        zone, now = zone_of(task), app.clock.now_us()
        since, until = (
            None if given[which] is None else moment(given[which], zone, now, f"--{which}")
            for which in ("since", "until")
        )
        limit = given["limit"]
        decisions = [Decision(one) for one in given["decision"]]
        before = None if given["before"] is None else _place(given["before"])
        wanted = FireFilter(since=since, until=until, decision=decisions, before=before, limit=limit)
        found = await app.tasks.fires(task.id, wanted)
    following = f"{found[-1].fire_time}.{found[-1].shard}" if len(found) == limit else None
    if out.json:
        out.data({"items": [fire_object(fire) for fire in found], "next_before": following})
    elif found:
        out.show(fires_table(found, zone))
        if following is not None:
            out.say(f"more: --before {following}")
    else:
        out.say("no fire matches" if decisions or since or until or before else f"{name} has not fired yet")


def _place(text: str) -> tuple[int, int]:
    """(fire time, shard) of the last one seen."""
    found = re.fullmatch(r"(\d{1,18})\.(\d{1,5})", text)
    if found is None:
        raise click.BadParameter("give the next_before of the page before", param_hint="--before")
    return int(found[1]), int(found[2])
