"""`fusee task simulate`: what another policy would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.moments import TIMES, moment
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import time_text
from fusee.tasks.cli.simulation_view import counts_of, show_simulation
from fusee.tasks.cli.view import zone_of
from fusee.tasks.cli.words import policy_of_words

if TYPE_CHECKING:
    from fusee.tasks.service.simulation import Compared, Simulation

__all__ = ["simulate"]


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--from", "begin", metavar="TIME", required=True, help=f"The first: {TIMES}.")
@click.option("--to", "end", metavar="TIME", default="now", show_default=True, help="The last.")
@click.option(
    "--policy",
    "-p",
    "words",
    metavar="FIELD=VALUE",
    multiple=True,
    help="What would be different; repeatable.",
)
@click.option(
    "--duration", metavar="TIME", callback=duration(), help="How long a run takes where no record tells it."
)
@click.option("--all", "every", is_flag=True, help="List every fire, also those that would go the same way.")
@click.pass_context
def simulate(
    context: click.Context,
    name: str,
    begin: str,
    end: str,
    words: tuple[str, ...],
    duration: float | None,
    every: bool,
) -> None:
    """Show what another policy would have done, beside what was done.

    The same rules are run again over the fires of that time, with the durations and ends that the record has;
    for others, --duration or the usual time counts. Nothing is changed. Without --policy, it is the policy
    that the task has now. Catch-up plays no part: it is as if someone had been there to fire each in time.

    Fields: overlap_action, max_concurrency, concurrency_policy, queue_depth, failure_action, jitter, rate,
    burst.

    Example:
      fusee task simulate poll --from -1h --policy overlap_action=SKIP
      fusee task simulate poll --from 09:00 --to 10:00 -p max_concurrency=2 -p concurrency_policy=QUEUE
    """
    shared, out = Shared.of(context), Out.of(context)
    drive(_simulate(shared, out, name, begin, end, policy_of_words(words, "--policy"), duration, every))


async def _simulate(
    shared: Shared,
    out: Out,
    name: str,
    begin: str,
    end: str,
    policy: dict[str, Any],
    lasts: float | None,
    every: bool,
) -> None:
    async with opened(shared) as app:
        task = await app.tasks.get(name)
        zone, now = zone_of(task), app.clock.now_us()
        first, last = moment(begin, zone, now, "--from"), moment(end, zone, now, "--to")
        answer = await app.tasks.simulate(name, first, last, policy=policy, duration=lasts)
    if out.json:
        out.data(_object(answer))
    else:
        show_simulation(out, answer, zone, first, last, every)


def _object(answer: Simulation) -> dict[str, Any]:
    from fusee.tasks.service.fields import policy_fields

    return {
        "policy": policy_fields(answer.policy),
        "duration": answer.duration,
        "known": answer.known,
        **counts_of(answer),
        "fires": [_fire(one) for one in answer.fires],
    }


def _fire(one: Compared) -> dict[str, Any]:
    would, was = one.simulated, one.actual
    actual: dict[str, Any] | None = None
    if was is not None:
        actual = {
            "decision": str(was.decision),
            "rule": was.rule,
            "seconds": was.seconds,
            "failed": was.failed,
        }
    return {
        "fire_time": time_text(would.at),
        "decision": str(would.decision),
        "rule": would.rule,
        "starts_at": time_text(would.start),
        "ends_at": time_text(would.end),
        "canceled": would.canceled,
        "actual": actual,
    }
