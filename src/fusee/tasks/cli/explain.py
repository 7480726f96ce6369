"""`fusee task explain`, also as `fusee explain`, and `fusee cron`: why and when a task fires."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.moments import local_text, moment, now_us, time_text, times_table
from fusee.surfaces.cli.options import Command, option
from fusee.surfaces.cli.output import Out
from fusee.tasks.cli.look import COUNT, fires_table, zone_of
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.tasks.cron import CronError
    from fusee.tasks.model.fire import Fire
    from fusee.tasks.service.tasks import TaskOperations

__all__ = ["cron", "explain", "explain_alone", "pointed"]


class Explain(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `-5m` is a time here, not five options; times are stripped of blanks when they are read.
        return super().parse_args(ctx, [f" {word}" if re.match(r"-\d", word) else word for word in args])


@command(cls=Explain)
@click.argument("name", metavar="NAME")
@click.argument("at", metavar="TIME")
async def explain(tasks: TaskOperations, out: Out, /, name: str, at: str) -> Answer:
    """Explain why a task ran at a time, or did not: the rule that decided.

    TIME is 2027-01-31T03:00:00Z, or on the clocks of the task's time zone 2027-01-31 03:00 or 03:00 (today);
    or now, or -5m (five minutes ago). A whole second means all of it. Where there is no record, the
    answer says why.

    Example:
      fusee task explain nightly "2027-01-31 03:00"
      fusee task explain poll -5m
      fusee explain poll 14:05:30
    """
    from fusee.tasks.store.history import FireFilter

    task = await tasks.get(int(name) if name.isdecimal() else name, deleted=True)
    zone = zone_of(task)
    when = moment(at, zone, now_us(), "TIME")
    answer = await tasks.explain(task.id, when)
    earlier: list[Fire] = []
    if answer.verdict == "not_due":
        earlier = list(await tasks.fires(task.id, FireFilter(until=when, limit=1)))
    out.say(f"{task.name} at {local_text(when, zone)}:")
    lines: list[Any] = [answer.text]
    if answer.rule is not None:
        lines.append(f"rule: {answer.rule}")
    if len(answer.fires) > 1:
        lines += ["", lambda: fires_table(answer.fires, zone)]
    if earlier:
        lines += ["", "the last one before that time:", lambda: fires_table(earlier, zone)]
    return Answer(lambda: shown(answer), *lines)


explain_alone = Explain(
    "explain",
    callback=explain.callback,
    params=[parameter for parameter in explain.params if isinstance(parameter, click.Argument)],
    help="""Explain why a task ran at a time, or did not: the rule that decided.

    The same as `fusee task explain`.

    Example:
      fusee explain nightly "2027-01-31 03:00"
      fusee explain poll now
    """,
)


@command()
@click.argument("expression", metavar="EXPRESSION")
@option("--timezone ZONE", "Such as Europe/Berlin.", default="UTC", show_default=True)
@COUNT
@option("--from begin TIME", "From this time on.  [default: now]")
def cron(out: Out, /, expression: str, timezone: str, count: int, begin: str | None) -> Answer:
    """Describe a cron expression in words, and show when it fires.

    Five fields (minute, hour, day of month, month, day of week), six with seconds in front, or a macro such
    as @daily. Names, lists, ranges, steps, L, W and # are understood. An expression that is wrong, or that
    never fires, is refused with the field that is to blame. Needs no database.

    Example:
      fusee cron "*/15 * * * * *"
      fusee cron "0 9 * * MON-FRI" --timezone Asia/Shanghai -n 10
      fusee cron "30 2 * * *" --timezone Europe/Berlin --from 2027-03-27
    """
    from fusee.tasks.cron import Cron, CronError, next_fires
    from fusee.tasks.model.schedule import zone_named

    try:
        zone = zone_named(timezone)
    except ValueError as error:
        raise Failure(str(error), Exit.REFUSED, kind="invalid") from None
    try:
        parsed = Cron.parse(expression)
    except CronError as error:
        text = str(error) if out.json else pointed(expression, error)
        raise Failure(text, Exit.REFUSED, kind="invalid") from None
    now = now_us()
    after = now if begin is None else moment(begin, zone, now, "--from") - 1
    times = next_fires(parsed, after, zone, count)
    from fusee.tasks.fields import words_of

    words = words_of(parsed)
    data = {
        "expression": expression,
        "cron": parsed.text,
        "timezone": timezone,
        "description_words": words,
        "next_fires": [time_text(at) for at in times],
    }
    out.say(f"normalised: {parsed.text}")
    return Answer(data, words["en"], words["zh"], "", lambda: times_table(times, zone, now))


def pointed(expression: str, error: CronError) -> str:
    """What is wrong, and below it the expression with the field underlined."""
    words = list(re.finditer(r"[^ \t\r\n]+", expression))
    if error.position is None or not 0 < error.position <= len(words) or not expression.isprintable():
        return str(error)
    word = words[error.position - 1]
    return f"{error}\n       {expression}\n       {' ' * word.start()}{'^' * len(word[0])}"
