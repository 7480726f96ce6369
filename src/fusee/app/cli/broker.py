"""`fusee broker`: what the message broker gave up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Group, Shared
from fusee.surfaces.cli.output import Out, clean, human, table
from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.engine.store.dead_letters import DeadLetter

__all__ = ["broker"]

LETTER = click.argument("letter_id", metavar="ID", type=click.IntRange(1))


@click.group(cls=Group)
def broker() -> None:
    """Look after the message broker (broker.type = "rabbitmq").

    Example: fusee broker dead list
    """


@broker.group(cls=Group)
def dead() -> None:
    """Dead letters: messages that no worker could take.

    A message that cannot be read is dead at once, and its runs are held. One that was delivered too often
    without an answer (broker.delivery_limit) is given up, and its runs are published again, each alone; a run
    that this happens to three times is held, as it may be what kills its workers. Held is until someone
    requeues or drops the letter here.

    Example:
      fusee broker dead list
      fusee broker dead requeue 3
    """


@dead.command("list", cls=Command)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many."
)
@click.pass_context
def list_letters(context: click.Context, limit: int) -> None:
    """List dead letters, the oldest first.

    Example: fusee broker dead list
    """
    drive(_list(Shared.of(context), Out.of(context), limit))


async def _list(shared: Shared, out: Out, limit: int) -> None:
    async with opened(shared) as app:
        letters = await app.dead_letters.list(limit=limit)
    if out.json:
        out.data({"items": [_object(letter) for letter in letters]})
        return
    if not letters:
        out.say("no dead letters")
        return
    drawn = table(">id", "queue", "why", ">age", "runs")
    now = time.time_ns() // 1000
    for letter in letters:
        runs = ", ".join(map(str, letter.run_ids[:5])) + (" …" if len(letter.run_ids) > 5 else "")
        age = human((now - letter.died_at) / 1e6)
        drawn.add_row(str(letter.id), clean(letter.queue), letter.reason, age, runs or "unreadable")
    out.show(drawn)


@dead.command(cls=Command)
@LETTER
@click.pass_context
def show(context: click.Context, letter_id: int) -> None:
    """Show a dead letter with what it said.

    Example: fusee broker dead show 3
    """
    drive(_show(Shared.of(context), Out.of(context), letter_id))


async def _show(shared: Shared, out: Out, letter_id: int) -> None:
    async with opened(shared) as app:
        letter = await app.dead_letters.get(letter_id)
    if out.json:
        out.data(_object(letter) | {"body": letter.body, "binary": letter.binary})
        return
    out.show(f"letter {letter.id} of {clean(letter.queue)}: {letter.reason}, {time_text(letter.died_at)}")
    out.show(f"runs: {', '.join(map(str, letter.run_ids)) or 'unreadable'}")
    out.show(clean(letter.body))


@dead.command(cls=Command)
@LETTER
@click.pass_context
def requeue(context: click.Context, letter_id: int) -> None:
    """Publish its runs again, and forget the letter.

    Example: fusee broker dead requeue 3
    """
    drive(_requeue(Shared.of(context), Out.of(context), letter_id))


async def _requeue(shared: Shared, out: Out, letter_id: int) -> None:
    async with opened(shared) as app:
        runs = await app.dead_letters.requeue(letter_id)
    if out.json:
        out.data({"id": letter_id, "runs": runs})
    else:
        out.show(f"letter {letter_id} is forgotten; runs to be published again: {runs}")


@dead.command(cls=Command)
@LETTER
@click.pass_context
def drop(context: click.Context, letter_id: int) -> None:
    """Forget the letter, and cancel those of its runs that are held.

    Example: fusee broker dead drop 3
    """
    drive(_drop(Shared.of(context), Out.of(context), letter_id))


async def _drop(shared: Shared, out: Out, letter_id: int) -> None:
    async with opened(shared) as app:
        runs = await app.dead_letters.drop(letter_id)
    if out.json:
        out.data({"id": letter_id, "canceled": runs})
    else:
        out.show(f"letter {letter_id} is forgotten; runs canceled: {runs}")


def _object(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": time_text(letter.died_at),
        "run_ids": list(letter.run_ids),
    }
