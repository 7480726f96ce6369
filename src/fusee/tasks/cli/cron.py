"""`fusee cron`: what an expression means, and when it fires."""

from __future__ import annotations

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.moments import moment, times_table
from fusee.surfaces.cli.options import Command
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import time_text, words_object
from fusee.tasks.cli.carets import pointed

__all__ = ["cron"]


@click.command(cls=Command)
@click.argument("expression", metavar="EXPRESSION")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Such as Europe/Berlin.")
@click.option(
    "-n", "count", metavar="N", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many."
)
@click.option("--from", "begin", metavar="TIME", help="From this time on.  [default: now]")
@click.pass_context
def cron(context: click.Context, expression: str, timezone: str, count: int, begin: str | None) -> None:
    """Say a cron expression in words, and tell when it fires.

    Five fields (minute, hour, day of month, month, day of week), six with seconds in front, or a macro such
    as @daily. Names, lists, ranges, steps, L, W and # are understood. An expression that is wrong, or that
    never fires, is refused with the field that is to blame. Needs no database.

    Example:
      fusee cron "*/15 * * * * *"
      fusee cron "0 9 * * MON-FRI" --timezone Asia/Shanghai -n 10
      fusee cron "30 2 * * *" --timezone Europe/Berlin --from 2027-03-27
    """
    import time

    from fusee.tasks.cron import Cron, CronError, next_fires
    from fusee.tasks.model.schedule import zone_named

    out = Out.of(context)
    try:
        zone = zone_named(timezone)
    except ValueError as error:
        raise Failure(str(error), Exit.REFUSED, kind="invalid") from None
    try:
        parsed = Cron.parse(expression)
    except CronError as error:
        text = str(error) if out.json else pointed(expression, error)
        raise Failure(text, Exit.REFUSED, kind="invalid") from None
    now = time.time_ns() // 1000
    after = now if begin is None else moment(begin, zone, now, "--from") - 1
    times = next_fires(parsed, after, zone, count)
    words = words_object(expression)
    if out.json:
        out.data(
            {
                "expression": expression,
                "cron": parsed.text,
                "timezone": timezone,
                "description_words": words,
                "next_fires": [time_text(at) for at in times],
            }
        )
        return
    out.show(words["en"], words["zh"])
    out.say(f"normalised: {parsed.text}")
    out.show("", times_table(times, zone, now))
