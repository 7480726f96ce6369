"""`fusee task trigger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.runs.cli.steer import ended
from fusee.surfaces.cli.inputs import object_from
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, Wait, duration
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.tasks.store.triggers import Triggered

__all__ = ["restart", "trigger"]

DECIDED = {"run": "runs", "queue": "stands in line", "skip": "was skipped", "miss": "was missed"}


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--payload", metavar="JSON", help="Goes over the task's own: JSON, @FILE, or - for stdin.")
@click.option(
    "-p", "members", metavar="KEY=VALUE", multiple=True, help="One argument; JSON where it is, else text."
)
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key fires once only.")
@click.option(
    "--reason", metavar="TEXT", default="triggered by hand", show_default=True, help="Kept with it."
)
@click.option("--wait", "-w", is_flag=True, help="Wait for the end; exit 5 when it is no success.")
@click.option("--wait-timeout", metavar="TIME", callback=duration(), help="With --wait: exit 124 after this.")
@click.pass_context
def trigger(context: click.Context, /, name: str, **given: Any) -> None:
    """Fire a task now, under its policies.

    It may be skipped or stand in line, as any other fire; the answer has the rule that decided. Other tasks
    that it waits for are not waited for. A paused task can be triggered, a disabled one cannot.

    Example:
      fusee task trigger nightly --wait
      fusee task trigger report -p year=2030 --key report-2030
    """
    drive(_trigger(Shared.of(context), Out.of(context), name, given))


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key restarts once only.")
@click.option("--wait", "-w", is_flag=True, help="Wait for the end; exit 5 when it is no success.")
@click.option("--wait-timeout", metavar="TIME", callback=duration(), help="With --wait: exit 124 after this.")
@click.pass_context
def restart(context: click.Context, /, name: str, **given: Any) -> None:
    """Do the last fire of a task again, under its policies.

    All of its shards, with the payload and the logical time of that fire, also when it succeeded. A fire that
    the policies would skip is refused; one that is under way is not stopped: `fusee run cancel` does that.

    Example: fusee task restart nightly --wait
    """
    drive(_restart(Shared.of(context), Out.of(context), name, given))


async def _restart(shared: Shared, out: Out, name: str, given: dict[str, Any]) -> None:
    async with opened(shared) as app:
        await _tell(app, out, name, await app.tasks.restart(name, idempotency_key=given["key"]), given)


async def _trigger(shared: Shared, out: Out, name: str, given: dict[str, Any]) -> None:
    payload = object_from(given["payload"], given["members"])
    async with opened(shared) as app:
        fired = await app.tasks.trigger(
            name, payload=payload, idempotency_key=given["key"], reason=given["reason"]
        )
        await _tell(app, out, name, fired, given)


async def _tell(app: Fusee, out: Out, name: str, fired: Triggered, given: dict[str, Any]) -> None:
    if given["wait"]:
        _say(out, name, fired)
        (await ended(app.runs, out, fired.run_ids, Wait(given["wait_timeout"]))).print(out)
    elif out.json:
        out.data(
            {
                "fire_time": time_text(fired.fire_time),
                "decision": str(fired.decision),
                "rule": fired.rule,
                "run_ids": list(fired.run_ids),
                "created": fired.created,
            }
        )
    else:
        out.show(f"{name} {DECIDED[fired.decision]}: {_runs(fired)}; {fired.rule}")
        if not fired.created:
            out.say("this key was used before: that is its fire, nothing new")


def _say(out: Out, name: str, fired: Triggered) -> None:
    out.say(f"{name} {DECIDED[fired.decision]}: {_runs(fired)}; {fired.rule}")


def _runs(fired: Triggered) -> str:
    ids = list(fired.run_ids)
    return f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs from {ids[0]} on"
