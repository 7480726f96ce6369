"""`fusee batch apply`, `wait`, `cancel`, `retry` and `rollback`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from fusee.batches.cli.look import BATCH_ID
from fusee.batches.cli.progress import GOOD, SOME_UNDONE, follow, summary
from fusee.batches.cli.shapes import batch_object
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.batches.model.batch import Batch

__all__ = ["apply", "cancel", "retry", "rollback", "wait"]

WAIT = click.option("--wait", "waits", is_flag=True, help="Follow it to its end; exit 5 when it is not good.")
VERSION = click.option(
    "--version", metavar="N", type=click.IntRange(1), help="Only if the batch is at this version."
)


@click.command(cls=Command)
@BATCH_ID
@WAIT
@VERSION
@click.pass_context
def apply(context: click.Context, batch_id: int, waits: bool, version: int | None) -> None:
    """Start a batch that was planned.

    \b
    Example:
      fusee batch apply 17 --wait
    """
    _steer(context, batch_id, waits, lambda app: app.batches.apply(batch_id, version=version))


@click.command(cls=Command)
@BATCH_ID
@click.option("--timeout", metavar="TIME", callback=duration(), help="Give up after this, such as 5m.")
@click.pass_context
def wait(context: click.Context, batch_id: int, timeout: float | None) -> None:
    """Follow a batch to its end, with a bar that shows how far it is.

    Exits 0 when it ended well, 5 when not, 124 when the time was up first.

    \b
    Example:
      fusee batch wait 17
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            await follow(app, out, batch_id, timeout)

    drive(work(Shared.of(context), Out.of(context)))


@click.command(cls=Command)
@BATCH_ID
@click.option("--reason", default="canceled by request", metavar="TEXT", help="Kept with the batch.")
@WAIT
@VERSION
@click.pass_context
def cancel(context: click.Context, batch_id: int, reason: str, waits: bool, version: int | None) -> None:
    """Start no further targets; what runs keeps its real outcome.

    \b
    Example:
      fusee batch cancel 17 --reason "wrong list"
    """
    _steer(context, batch_id, waits, lambda app: app.batches.cancel(batch_id, reason=reason, version=version))


@click.command(cls=Command)
@BATCH_ID
@click.option("--canceled", is_flag=True, help="Also the targets that were canceled.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key tries them again once only.")
@WAIT
@VERSION
@click.pass_context
def retry(
    context: click.Context, batch_id: int, canceled: bool, key: str | None, waits: bool, version: int | None
) -> None:
    """Try the failed targets again, and no others.

    \b
    Example:
      fusee batch retry 17 --wait
    """

    async def again(app: Fusee) -> Batch:
        made, count = await app.batches.retry(
            batch_id, canceled=canceled, version=version, idempotency_key=key
        )
        Out.of(context).say(f"{count} targets are tried again")
        return made

    _steer(context, batch_id, waits, again)


@click.command(cls=Command)
@BATCH_ID
@click.option("--target", "chosen", metavar="ID", multiple=True, help="Only this one; may be repeated.")
@click.option("--force", is_flag=True, help="Also targets that have drifted.")
@WAIT
@VERSION
@click.pass_context
def rollback(
    context: click.Context,
    batch_id: int,
    chosen: tuple[str, ...],
    force: bool,
    waits: bool,
    version: int | None,
) -> None:
    """Undo what was applied, or may have been; newest first.

    A target that is no longer as the batch left it is reported and left alone, unless forced. With --wait:
    exits 5 unless all is undone (rollback_success); with --target, that of those chosen none is left
    (partial_rollback) will do.

    \b
    Example:
      fusee batch rollback 17 --wait
      fusee batch rollback 17 --target 4711 --target 4712
    """
    targets = list(chosen) or None
    _steer(
        context,
        batch_id,
        waits,
        lambda app: app.batches.roll_back(batch_id, targets=targets, force=force, version=version),
        SOME_UNDONE if chosen else GOOD,
    )


def _steer(
    context: click.Context,
    batch_id: int,
    waits: bool,
    command: Callable[[Any], Awaitable[Batch]],
    good: tuple[str, ...] = GOOD,
) -> None:
    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            made = await command(app)
            if waits:
                await follow(app, out, batch_id, None, good)
            elif out.json:
                out.data(batch_object(made))
            else:
                out.show(summary(made))

    drive(work(Shared.of(context), Out.of(context)))
