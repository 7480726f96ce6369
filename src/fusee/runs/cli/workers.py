"""`fusee workers`: the registry; and `fusee worker drain`, which asks one to leave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.surfaces.cli.shapes import worker_object

if TYPE_CHECKING:
    from fusee.engine.model.session import Session

__all__ = ["drain", "workers"]


@click.command(cls=Command)
@click.option("--all", "all_states", is_flag=True, help="Also those that ended or were lost.")
@click.option(
    "--state",
    type=click.Choice(["alive", "draining", "ended", "lost", "down"], case_sensitive=False),
    help="Only those; down is ended or lost.",
)
@click.option("--queue", metavar="NAME", help="Those that take runs from this queue.")
@click.option("--handler", metavar="NAME", help="Those that have this handler.")
@click.option("--region", metavar="NAME", help="Those of this region.")
@click.option("--release", "version", metavar="VERSION", help="Those that run this version of Fusee.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Those with it; repeatable.")
@click.pass_context
def workers(context: click.Context, /, all_states: bool, labels: tuple[str, ...], **wanted: Any) -> None:
    """List the workers, what each can run and how busy it is.

    A worker is alive while it renews its lease; one that stops doing so is lost, and its runs go to others.

    Example:
      fusee workers
      fusee workers --queue mail --label gpu=yes
      fusee workers --all --json | jq '.items[] | select(.state == "lost")'
    """
    drive(_workers(Shared.of(context), Out.of(context), all_states, {**wanted, "labels": _by_name(labels)}))


def _by_name(labels: tuple[str, ...]) -> dict[str, str]:
    for text in labels:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--label")
    return dict(text.split("=", 1) for text in labels)


async def _workers(shared: Shared, out: Out, all_states: bool, wanted: Mapping[str, Any]) -> None:
    from fusee.runs.service.workers import WorkerFilter

    async with opened(shared) as app:
        sessions = await app.workers.list(WorkerFilter(**wanted), all_states=all_states)
    if out.json:
        out.data({"items": [worker_object(session) for session in sessions]})
        return
    if not sessions:
        asked = any(value for value in wanted.values())
        out.say(
            "no worker is like that"
            if asked
            else "no worker is alive: `fusee worker --app myproject.jobs:app` starts one"
        )
        return
    drawn = table(
        ">id",
        "name",
        "state",
        ">running",
        ">cpu",
        ">memory",
        "queues",
        "region",
        "version",
        ">seen",
        "handlers",
    )
    for session in sessions:
        _add(drawn, session)
    out.show(drawn)


def _add(drawn: Any, session: Session) -> None:
    from rich.text import Text

    info = session.info
    extra = [f"({executor})" for executor in info.executors if executor != "python"]
    drawn.add_row(
        str(session.id),
        Text(clean(info.name)),
        status_text(session.state),
        f"{session.running}/{info.capacity}",
        "" if info.cpu is None else f"{session.cpu_free:g}/{info.cpu:g}",
        "" if info.memory is None else f"{_size(session.memory_free)}/{_size(info.memory)}",
        Text(clean(", ".join(info.queues))),
        Text(clean(info.region)),
        Text(clean(info.version)),
        human((time.time_ns() // 1000 - session.seen_at) / 1e6) + " ago",
        Text(clean(", ".join([*info.handlers, *extra]))),
    )


def _size(size: int | None) -> str:
    from fusee.config.units import format_size

    return format_size(size or 0)


@click.command(cls=Command)
@click.argument("name")
@click.option(
    "--wait",
    metavar="TIME",
    callback=duration(),
    help="Wait this long for it to have left; exits 124 when it has not.",
)
@click.pass_context
def drain(context: click.Context, name: str, wait: float | None) -> None:
    """Have a worker leave, wherever it runs.

    From now on it claims nothing. It finishes what runs, hands back what does not end within its
    worker.drain_timeout, and its process ends, as with SIGTERM: nothing is lost and no attempt is spent. It
    sees this within two seconds. There is no way back: start it again. A supervisor that restarts whatever
    ends will do just that.

    Example:
      fusee worker drain worker-7
      fusee worker drain worker-7 --wait 2m && echo "safe to turn off"
    """
    drive(_drain(Shared.of(context), Out.of(context), name, wait))


async def _drain(shared: Shared, out: Out, name: str, wait: float | None) -> None:
    async with opened(shared) as app:
        asked = await app.workers.drain(name)
        left = await app.workers.wait_until_down(asked, wait) if wait is not None else asked
    if out.json:
        out.data({"items": [worker_object(session) for session in asked], "left": len(asked) - len(left)})
    elif wait is None or not left:
        out.show(f"{name}: " + ("is draining" if wait is None else "has left"))
    if wait is not None and left:
        held = sum(session.running for session in left)
        raise Failure(
            f"{name} still has {held} runs after {human(wait)}: it goes on draining", Exit.TIMED_OUT
        )
