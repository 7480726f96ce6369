"""`fusee broker`: the dead letters of the message broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.moments import time_text
from fusee.surfaces.cli.options import Group
from fusee.surfaces.cli.output import ago, clean

if TYPE_CHECKING:
    from fusee.engine.store.dead_letters import DeadLetter
    from fusee.runs.service.dead_letters import DeadLetterOperations

__all__ = ["broker"]

ID = click.argument("letter_id", metavar="ID", type=click.IntRange(1))


def _object(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": time_text(letter.died_at),
        "run_ids": list(letter.run_ids),
    }


def _runs(letter: DeadLetter, most: int) -> str:
    more = " …" if len(letter.run_ids) > most else ""
    return ", ".join(map(str, letter.run_ids[:most])) + more or "unreadable"


DEAD_LETTERS: Noun[DeadLetter] = Noun(
    shape=_object,
    none="no dead letters",
    columns={
        ">id": lambda letter: letter.id,
        "queue": lambda letter: letter.queue,
        "reason": lambda letter: letter.reason,
        ">age": lambda letter: ago(letter.died_at),
        "runs": lambda letter: _runs(letter, 5),
    },
)


@click.group(cls=Group)
def broker() -> None:
    """Look after the message broker (broker.type = "rabbitmq").

    Example: fusee broker dead list
    """


@broker.group(cls=Group)
def dead() -> None:
    """Dead letters: messages that RabbitMQ gave up.

    A message that cannot be read becomes a dead letter at once, and its runs are held. A message that was
    delivered more often than broker.delivery_limit without an acknowledgement becomes one too, and its runs
    are published again, each alone. A run to which this happens three times is held: it may be what kills its
    workers. A held run starts only after someone requeues its dead letter.

    Example:
      fusee broker dead list
      fusee broker dead requeue 3
    """


@lists(DEAD_LETTERS, limit=100, watch=False)
async def list_dead_letters(dead_letters: DeadLetterOperations, /, limit: int) -> Sequence[DeadLetter]:
    """List dead letters, the oldest first.

    Example: fusee broker dead list
    """
    return await dead_letters.list(limit=limit)


@command()
@ID
async def show(dead_letters: DeadLetterOperations, /, letter_id: int) -> Answer:
    """Show a dead letter and the body of its message.

    Example: fusee broker dead show 3
    """
    letter = await dead_letters.get(letter_id)
    return Answer(
        _object(letter) | {"body": letter.body, "binary": letter.binary},
        f"dead letter {letter.id} of {clean(letter.queue)}: {letter.reason}, {time_text(letter.died_at)}",
        f"runs: {_runs(letter, len(letter.run_ids))}",
        clean(letter.body),
    )


@command()
@ID
async def requeue(dead_letters: DeadLetterOperations, /, letter_id: int) -> Answer:
    """Publish the runs of a dead letter again, and delete the dead letter.

    Example: fusee broker dead requeue 3
    """
    runs = await dead_letters.requeue(letter_id)
    text = f"dead letter {letter_id} was deleted; runs to be published again: {runs}"
    return Answer({"id": letter_id, "runs": runs}, text)


@command()
@ID
async def drop(dead_letters: DeadLetterOperations, /, letter_id: int) -> Answer:
    """Delete a dead letter, and cancel those of its runs that are held.

    Example: fusee broker dead drop 3
    """
    runs = await dead_letters.drop(letter_id)
    text = f"dead letter {letter_id} was deleted; runs canceled: {runs}"
    return Answer({"id": letter_id, "canceled": runs}, text)


for command_ in (list_dead_letters, show, requeue, drop):
    dead.add_command(command_)
