"""`fusee task explain`, also as `fusee explain`: why a task ran at a time, or did not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.moments import local_text, moment
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import fire_object, time_text
from fusee.tasks.cli.view import fires_table, zone_of

if TYPE_CHECKING:
    from fusee.tasks.model.fire import Fire
    from fusee.tasks.service.explain import Explanation

__all__ = ["explain", "explain_alone"]


class Explain(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `-5m` is a time here, not five options; times are stripped of blanks when they are read.
        return super().parse_args(ctx, [f" {word}" if re.match(r"-\d", word) else word for word in args])


@click.command(cls=Explain)
@click.argument("name", metavar="NAME")
@click.argument("at", metavar="TIME")
@click.pass_context
def explain(context: click.Context, name: str, at: str) -> None:
    """Tell why a task ran at a time, or did not: the rule that decided.

    TIME is 2027-01-31T03:00:00Z, or on the clocks of the task's time zone 2027-01-31 03:00 or 03:00 (today);
    or now, or -5m (five minutes ago). A whole second means all of it. Where there is no record, the answer
    tells why.

    Example:
      fusee task explain nightly "2027-01-31 03:00"
      fusee task explain poll -5m
      fusee explain poll 14:05:30
    """
    drive(_explain(Shared.of(context), Out.of(context), name, at))


explain_alone = Explain(
    "explain",
    callback=explain.callback,
    params=[parameter for parameter in explain.params if isinstance(parameter, click.Argument)],
    help="""Tell why a task ran at a time, or did not: the rule that decided.

    The same as `fusee task explain`.

    Example:
      fusee explain nightly "2027-01-31 03:00"
      fusee explain poll now
    """,
)


async def _explain(shared: Shared, out: Out, name: str, text: str) -> None:
    from fusee.tasks.store.history import FireFilter

    async with opened(shared) as app:
        task = await app.tasks.get(int(name) if name.isdecimal() else name, deleted=True)
        zone = zone_of(task)
        at = moment(text, zone, app.clock.now_us(), "TIME")
        answer = await app.tasks.explain(task.id, at)
        earlier: list[Fire] = []
        if answer.verdict == "not_due":
            earlier = list(await app.tasks.fires(task.id, FireFilter(until=at, limit=1)))
    if out.json:
        out.data(_object(answer))
        return
    out.say(f"{task.name} at {local_text(at, zone)}:")
    out.show(answer.text)
    if answer.rule is not None:
        out.show(f"rule: {answer.rule}")
    if len(answer.fires) > 1:
        out.show("", fires_table(answer.fires, zone))
    if earlier:
        out.show("", "the last one before that time:", fires_table(earlier, zone))


def _object(answer: Explanation) -> dict[str, Any]:
    return {
        "task": answer.task,
        "at": time_text(answer.at),
        "verdict": answer.verdict,
        "text": answer.text,
        "rule": answer.rule,
        "fires": [fire_object(fire) for fire in answer.fires],
    }
