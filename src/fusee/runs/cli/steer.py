"""`fusee run cancel` and `fusee run retry`: for one run or many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee

__all__ = ["cancel", "retry"]

Steer = Callable[["Fusee", int], Awaitable[tuple[str, dict[str, Any]]]]


@click.command(cls=Command)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
@click.option("--reason", default="canceled by request", show_default=True, help="Kept with the run.")
@click.pass_context
def cancel(context: click.Context, run_ids: tuple[int, ...], reason: str) -> None:
    """Cancel runs; when this returns, no attempt of theirs will start any more.

    A run that has not started is over at once. A running one is told to stop within two seconds, and killed
    after its grace where it can be; `fusee run wait` tells how it ended.

    Example: fusee run cancel 42 43 --reason "wrong customer list"
    """

    async def one(app: Fusee, run_id: int) -> tuple[str, dict[str, Any]]:
        answer = await app.runs.cancel(run_id, reason)
        fields = {"id": run_id, "status": str(answer.run.status), "canceled": answer.canceled}
        over = "canceled" if answer.canceled else f"told to stop ({answer.run.status})"
        return f"run {run_id} {over}", fields

    drive(_each(Shared.of(context), Out.of(context), run_ids, one))


@click.command(cls=Command)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key makes one run only.")
@click.pass_context
def retry(context: click.Context, run_ids: tuple[int, ...], key: str | None) -> None:
    """Do ended runs again, each as a new run with the same payload.

    The new run names the old one as its origin; the old one stays as it ended. A run of a task becomes a new
    fire, under the task's policies. A run of a batch, a workflow or a bulk job is refused with the command of
    its owner that does it.

    Example:
      fusee run retry 42
      fusee run list -s failed --json | jq '.items[].id' | xargs fusee run retry
    """

    if key is not None and len(run_ids) > 1:
        raise click.UsageError("--key is for one run: give each run a key of its own")

    async def one(app: Fusee, run_id: int) -> tuple[str, dict[str, Any]]:
        made = await app.runs.retry(run_id, idempotency_key=key)
        rule = f" ({made.status}): {made.rule}" if made.rule is not None else ""
        fields = {"id": made.id, "origin_id": run_id, "status": str(made.status), "rule": made.rule}
        return f"run {run_id} again as run {made.id}{rule}", fields

    drive(_each(Shared.of(context), Out.of(context), run_ids, one))


async def _each(shared: Shared, out: Out, run_ids: tuple[int, ...], steer: Steer) -> None:
    """All of them, also when one is refused; the exit code is the first refusal's."""
    from fusee.errors import StoreUnavailable
    from fusee.surfaces.cli.exits import failure_of

    results: list[dict[str, Any]] = []
    code = Exit.OK
    async with opened(shared) as app:
        for run_id in run_ids:
            try:
                line, fields = await steer(app, run_id)
            except StoreUnavailable:
                raise
            except Exception as error:
                failure = failure_of(error)
                if failure is None or len(run_ids) == 1:
                    raise
                code = code or failure.exit
                results.append({"id": run_id, "error": {"kind": failure.kind, "message": str(failure)}})
                if not out.json:
                    click.echo(
                        f"{click.style('error:', fg='red', bold=True)} {clean(str(failure))}", err=True
                    )
                continue
            results.append(fields)
            if not out.json:
                out.show(line)
    if out.json:
        out.data({"items": results})
    if code:
        raise click.exceptions.Exit(int(code))
