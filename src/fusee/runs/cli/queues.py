"""`fusee queue`: what waits where, and the limits that hold across all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists, steer
from fusee.surfaces.cli.options import Group, option
from fusee.surfaces.cli.output import ago, clean
from fusee.values.fields import shown

if TYPE_CHECKING:
    from rich.text import Text

    from fusee.engine.model.queue import QueueLimits, QueueStats
    from fusee.runs.service.queues import QueueOperations

__all__ = ["queue"]

STRATEGIES = ("shared", "round_robin", "least_loaded", "affinity", "consistent_hash", "broadcast")


def _limits(limits: QueueLimits) -> str:
    parts = ["paused"] if limits.paused else []
    if limits.concurrency is not None:
        parts.append(f"{limits.concurrency} at once")
    if limits.rate is not None:
        parts.append(f"{limits.rate:g}/s" + (f", bursts of {limits.burst}" if limits.burst else ""))
    if limits.strategy is not None:
        parts.append(limits.strategy)
    return "; ".join(parts)


def _styled(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(clean(text), style)


QUEUES: Noun[QueueStats] = Noun(
    shape=shown,
    line=lambda queue: f"{queue.name}: {_limits(queue.limits) or 'no limits'}",
    none="no queue has work or limits",
    columns={
        "queue": lambda queue: queue.name,
        ">pending": lambda queue: queue.pending,
        ">oldest": lambda queue: ago(queue.oldest_pending_at),
        ">running": lambda queue: queue.running + queue.waiting,
        ">delayed": lambda queue: queue.delayed,
        ">blocked": lambda queue: queue.blocked,
        "limits": lambda queue: _styled(_limits(queue.limits), "yellow" if queue.limits.paused else ""),
        "unserved": lambda queue: _styled(", ".join(queue.unserved), "red"),
    },
)


@click.group(cls=Group)
def queue() -> None:
    """List queues; limit, pause or resume one, for all workers at once.

    Limits are counted in the database, so they hold however many workers there are.

    Example:
      fusee queues
      fusee queue limit mail --rate 50 --burst 100
      fusee queue pause mail
    """


@lists(QUEUES, limit=None)
async def list_queues(queues: QueueOperations, /) -> Sequence[QueueStats]:
    """List the queues: what waits, what runs, their limits. The same as `fusee queues`.

    A queue appears when it has work or limits. "unserved" names handlers that have runs waiting and no live
    worker that could take them.

    Example: fusee queue list
    """
    return await queues.list()


@command(create=True)
@click.argument("name")
@option("--concurrency N", "Runs at once; 0: no limit.", type=click.IntRange(0))
@option("--rate N", "Starts a second; 0: no limit.", type=click.FloatRange(0))
@option("--burst N", "Starts saved up at most; 0: as the rate.", type=click.IntRange(0))
async def limit(queues: QueueOperations, /, name: str, **said: Any) -> Answer:
    """Set a queue's limits; what is not named stays as it is.

    They hold within a second, across all workers. Runs over a limit wait; nothing fails.

    Example:
      fusee queue limit mail --concurrency 10
      fusee queue limit mail --rate 50 --burst 100
      fusee queue limit mail --concurrency 0 --rate 0        (no limits any more)
    """
    changes = {limit: value or None for limit, value in said.items() if value is not None}
    if not changes:
        raise click.UsageError("say which limit: --concurrency, --rate or --burst")
    return QUEUES.one(await queues.change(name, changes))


@command(create=True)
@click.argument("name")
@click.argument("strategy", type=click.Choice(STRATEGIES, case_sensitive=False))
async def strategy(queues: QueueOperations, /, name: str, strategy: str) -> Answer:
    """Choose how a queue's runs find their worker, where they do not say so themselves.

    shared is the default: the next free worker takes them. docs/workers.md says when to use which of the
    others. Workers follow within a second; running work is not disturbed.

    Example:
      fusee queue strategy reports least_loaded
      fusee queue strategy reports shared
    """
    return QUEUES.one(await queues.place(name, strategy))


@steer(QUEUES, "name", "NAME", create=True)
async def pause(queues: QueueOperations, /, name: str) -> QueueStats:
    """Start no more runs of a queue; running ones continue.

    Runs can still be submitted to it and wait there until `fusee queue resume`.

    Example: fusee queue pause mail
    """
    return await queues.pause(name, True)


@steer(QUEUES, "name", "NAME", create=True)
async def resume(queues: QueueOperations, /, name: str) -> QueueStats:
    """Start runs of a paused queue again.

    Its other limits are as they were.

    Example: fusee queue resume mail
    """
    return await queues.pause(name, False)


for command_ in (list_queues, limit, strategy, pause, resume):
    queue.add_command(command_)
