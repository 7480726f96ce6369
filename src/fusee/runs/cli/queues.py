"""`fusee queues` and `fusee queue`: what waits where, and the limits that hold across all workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Group, Shared
from fusee.surfaces.cli.output import Out, clean, human, table
from fusee.surfaces.cli.shapes import queue_object

if TYPE_CHECKING:
    from fusee.engine.model.queue import QueueLimits, QueueStats

__all__ = ["queue", "queues"]

STRATEGIES = ("shared", "round_robin", "least_loaded", "affinity", "consistent_hash", "broadcast")


@click.command(cls=Command)
@click.pass_context
def queues(context: click.Context) -> None:
    """List the queues: what waits, what runs, their limits.

    A queue appears when it has work or limits. "unserved" names handlers that have runs waiting and no live
    worker that could take them.

    Example: fusee queues
    """
    drive(_queues(Shared.of(context), Out.of(context)))


async def _queues(shared: Shared, out: Out) -> None:
    async with opened(shared) as app:
        found = await app.queues.list()
    if out.json:
        out.data({"items": [queue_object(stats) for stats in found]})
    elif found:
        _show(out, found)
    else:
        out.say("no queue has work or limits")


def _show(out: Out, found: Sequence[QueueStats]) -> None:
    from rich.text import Text

    drawn = table("queue", ">pending", ">oldest", ">running", ">delayed", ">blocked", "limits", "unserved")
    now = time.time_ns() // 1000
    for stats in found:
        oldest = stats.oldest_pending_at
        drawn.add_row(
            Text(clean(stats.name)),
            str(stats.pending),
            "" if oldest is None else human((now - oldest) / 1e6),
            str(stats.running + stats.waiting),
            str(stats.delayed),
            str(stats.blocked),
            Text(_limits(stats.limits), "yellow" if stats.limits.paused else ""),
            Text(clean(", ".join(stats.unserved)), "red"),
        )
    out.show(drawn)


def _limits(limits: QueueLimits) -> str:
    parts = ["paused"] if limits.paused else []
    if limits.concurrency is not None:
        parts.append(f"{limits.concurrency} at once")
    if limits.rate is not None:
        parts.append(f"{limits.rate:g}/s" + (f", bursts of {limits.burst}" if limits.burst else ""))
    if limits.strategy is not None:
        parts.append(limits.strategy)
    return "; ".join(parts)


@click.group(cls=Group)
def queue() -> None:
    """Limit, pause or resume a queue, for all workers at once.

    Limits are counted in the database, so they hold however many workers there are.

    Example:
      fusee queue limit mail --rate 50 --burst 100
      fusee queue pause mail
    """


@queue.command()
@click.argument("name")
@click.option("--concurrency", metavar="N", type=click.IntRange(0), help="Most runs at once; 0 lifts it.")
@click.option("--rate", metavar="N", type=click.FloatRange(0), help="Most starts a second; 0 lifts it.")
@click.option("--burst", metavar="N", type=click.IntRange(0), help="Starts saved up at most; 0: as the rate.")
@click.pass_context
def limit(
    context: click.Context, name: str, concurrency: int | None, rate: float | None, burst: int | None
) -> None:
    """Set a queue's limits; what is not named stays as it is.

    They hold within a second, across all workers. Runs over a limit wait; nothing fails.

    Example:
      fusee queue limit mail --concurrency 10
      fusee queue limit mail --rate 50 --burst 100
      fusee queue limit mail --concurrency 0 --rate 0        (no limits any more)
    """
    if concurrency is None and rate is None and burst is None:
        raise click.UsageError("say which limit: --concurrency, --rate or --burst")
    drive(_limit(Shared.of(context), Out.of(context), name, concurrency, rate, burst))


async def _limit(
    shared: Shared, out: Out, name: str, concurrency: int | None, rate: float | None, burst: int | None
) -> None:
    said = {"concurrency": concurrency, "rate": rate, "burst": burst}
    changes = {limit: value or None for limit, value in said.items() if value is not None}
    async with opened(shared, create=True) as app:
        _tell(out, await app.queues.change(name, changes))


@queue.command()
@click.argument("name")
@click.argument("strategy", type=click.Choice(STRATEGIES, case_sensitive=False))
@click.pass_context
def strategy(context: click.Context, name: str, strategy: str) -> None:
    """Choose how a queue's runs find their worker, where they do not say so themselves.

    shared is the default: the next free worker takes them. docs/workers.md tells when to use which of the
    others. Workers follow within a second; what is under way is not disturbed.

    Example:
      fusee queue strategy reports least_loaded
      fusee queue strategy reports shared
    """
    drive(_place(Shared.of(context), Out.of(context), name, strategy))


async def _place(shared: Shared, out: Out, name: str, strategy: str) -> None:
    async with opened(shared, create=True) as app:
        _tell(out, await app.queues.place(name, strategy))


@queue.command()
@click.argument("name")
@click.pass_context
def pause(context: click.Context, name: str) -> None:
    """Start no more runs of a queue; what runs goes on.

    Runs can still be submitted to it and wait there until `fusee queue resume`.

    Example: fusee queue pause mail
    """
    drive(_pause(Shared.of(context), Out.of(context), name, True))


@queue.command()
@click.argument("name")
@click.pass_context
def resume(context: click.Context, name: str) -> None:
    """Start runs of a paused queue again.

    Its other limits are as they were.

    Example: fusee queue resume mail
    """
    drive(_pause(Shared.of(context), Out.of(context), name, False))


async def _pause(shared: Shared, out: Out, name: str, paused: bool) -> None:
    async with opened(shared, create=True) as app:
        _tell(out, await app.queues.pause(name, paused))


def _tell(out: Out, stats: QueueStats) -> None:
    if out.json:
        out.data(queue_object(stats))
    else:
        out.show(f"{stats.name}: {_limits(stats.limits) or 'no limits'}")
