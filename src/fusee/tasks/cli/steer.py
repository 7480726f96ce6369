"""`fusee task enable`, `disable`, `pause`, `resume`, `delete`, `clear-queue`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import task_object
from fusee.tasks.cli.view import show_next

__all__ = ["clear_queue", "delete", "disable", "enable", "pause", "resume"]

VERSION = click.option(
    "--version", "version", metavar="N", type=int, help="Only if it is at this version still."
)
REASON = click.option("--reason", metavar="TEXT", help="Kept with the task, for people.")


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", metavar="NAME")(VERSION(click.pass_context(function)))


@click.command(cls=Command)
@_named
def enable(context: click.Context, name: str, version: int | None) -> None:
    """Let a task fire, from now on.

    What was due while it was disabled or paused does not fire; `fusee task backfill` makes up for it.

    Example: fusee task enable nightly
    """
    _steer(context, name, "enable", None, version)


@click.command(cls=Command)
@REASON
@_named
def disable(context: click.Context, name: str, version: int | None, reason: str | None) -> None:
    """Let a task not fire at all, not even by hand.

    What is under way goes on; fires that stand in line or wait for other tasks are left out, and recorded as
    skipped. To let it rest and still fire it by hand, pause it.

    Example: fusee task disable nightly --reason "moved to the other cluster"
    """
    _steer(context, name, "disable", reason, version)


@click.command(cls=Command)
@REASON
@_named
def pause(context: click.Context, name: str, version: int | None, reason: str | None) -> None:
    """Let a task's schedule rest; it can still be triggered by hand.

    What is under way goes on; fires that stand in line are held until the task is resumed. `fusee task
    clear-queue` leaves them out. Pausing a paused task changes nothing.

    Example: fusee task pause nightly --reason "the warehouse is down"
    """
    _steer(context, name, "pause", reason, version)


@click.command(cls=Command)
@_named
def resume(context: click.Context, name: str, version: int | None) -> None:
    """Let a paused task fire again, from now on.

    Fires that stood in line when it was paused start first, oldest first; `fusee task clear-queue` leaves
    them out. What was due while it was paused does not fire; `fusee task backfill` makes up for it.

    Example: fusee task resume nightly
    """
    _steer(context, name, "resume", None, version)


@click.command(cls=Command)
@_named
def delete(context: click.Context, name: str, version: int | None) -> None:
    """Delete a task; its runs and its record stay until they are pruned.

    Its name is free again. What is under way goes on, what waits is left out and recorded as skipped. Refused
    while other tasks wait for it.

    Example: fusee task delete nightly
    """
    _steer(context, name, "delete", None, version)


@click.command("clear-queue", cls=Command)
@click.option(
    "--reason", metavar="TEXT", default="cleared by hand", show_default=True, help="Kept with each fire."
)
@click.argument("name", metavar="NAME")
@click.pass_context
def clear_queue(context: click.Context, name: str, reason: str) -> None:
    """Leave out every fire of a task that stands in line.

    Each is recorded as skipped, with the reason. What runs goes on, and so does the schedule.

    Example: fusee task clear-queue nightly --reason "stale by now"
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            cleared = await app.tasks.clear_queue(name, reason=reason)
            if out.json:
                out.data({"cleared": cleared})
            else:
                out.show(f"{cleared} fire{'s' * (cleared != 1)} of {name} left out")

    drive(work(Shared.of(context), Out.of(context)))


def _steer(context: click.Context, name: str, verb: str, reason: str | None, version: int | None) -> None:
    drive(_steered(Shared.of(context), Out.of(context), name, verb, reason, version))


async def _steered(
    shared: Shared, out: Out, name: str, verb: str, reason: str | None, version: int | None
) -> None:
    async with opened(shared) as app:
        if verb == "delete":
            task = await app.tasks.delete(name, version=version)
        else:
            task = await app.tasks.steer(name, verb, reason=reason, version=version)
        if out.json:
            out.data(task_object(task, app.tasks.upcoming(task)))
            return
        out.show(f"{task.name} is {task.status}" + (f": {task.reason}" if task.reason else ""))
        if task.status == "enabled":
            show_next(out, app, task)
