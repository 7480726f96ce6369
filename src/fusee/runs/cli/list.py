"""`fusee run list`, also live."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.surfaces.cli.shapes import run_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from fusee.app.fusee import Fusee
    from fusee.engine.model.run import Run
    from fusee.engine.store.runs import RunFilter

__all__ = ["list_runs", "runs_table"]

STATUSES = (
    "blocked", "delayed", "pending", "dispatched", "running", "waiting",
    "succeeded", "failed", "timed_out", "canceled", "skipped", "missed",
)  # fmt: skip
WATCH_EVERY = 0.5


@click.command("list", cls=Command)
@click.option(
    "--status",
    "-s",
    multiple=True,
    type=click.Choice(STATUSES, case_sensitive=False),
    help="Only these; repeatable.",
)
@click.option("--handler", metavar="NAME", help="Only runs of this handler.")
@click.option("--queue", metavar="NAME", help="Only runs of this queue.")
@click.option("--before", metavar="ID", type=int, help="Only runs older than this one, for the next page.")
@click.option(
    "--limit",
    "-n",
    metavar="N",
    default=25,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="How many.",
)
@click.option("--watch", "-w", is_flag=True, help="Keep looking until Ctrl-C.")
@click.pass_context
def list_runs(
    context: click.Context,
    status: tuple[str, ...],
    handler: str | None,
    queue: str | None,
    before: int | None,
    limit: int,
    watch: bool,
) -> None:
    """List runs, newest first.

    With --watch the list is live; with --watch --json each change of a run is one line of JSON.

    Example:
      fusee run list --status failed --status timed_out --handler send_mail
      fusee run list --json | jq '.items[].id'
    """
    from fusee.engine.model.states import RunStatus
    from fusee.engine.store.runs import RunFilter

    wanted = RunFilter(
        status=[RunStatus(s) for s in status], handler=handler, queue=queue, before=before, limit=limit
    )
    drive(_list(Shared.of(context), Out.of(context), wanted, watch))


async def _list(shared: Shared, out: Out, wanted: RunFilter, watch: bool) -> None:
    async with opened(shared) as app:
        if watch:
            await (
                _stream(app, out, wanted) if out.json or not sys.stdout.isatty() else _live(app, out, wanted)
            )
            return
        found = await app.runs.list(wanted)
        if out.json:
            following = found[-1].id if len(found) == wanted.limit else None
            out.data({"items": [run_object(run) for run in found], "next_before": following})
        elif found:
            out.show(runs_table(found))
            if len(found) == wanted.limit:
                out.say(f"more: --before {found[-1].id}")
        else:
            out.say("no runs" + (" match" if wanted.status or wanted.handler or wanted.queue else " yet"))


async def _live(app: Fusee, out: Out, wanted: RunFilter) -> None:
    from rich.live import Live

    with Live(console=out.console(), auto_refresh=False, screen=True) as live:
        while True:
            live.update(runs_table(await app.runs.list(wanted)), refresh=True)
            await asyncio.sleep(WATCH_EVERY)


async def _stream(app: Fusee, out: Out, wanted: RunFilter) -> None:
    seen: dict[int, tuple[Any, ...]] = {}
    while True:
        found = await app.runs.list(wanted)
        for run in reversed(found):
            state = (run.status, run.attempt)
            if seen.get(run.id) != state:
                if out.json:
                    out.data(run_object(run), line=True)
                else:
                    click.echo(f"{run.id}\t{run.handler}\t{run.status}\tattempt {run.attempt}")
                seen[run.id] = state
        if len(seen) > 20_000:  # forget those that have left the list
            seen = {run.id: seen[run.id] for run in found}
        await asyncio.sleep(WATCH_EVERY)


def runs_table(runs: Sequence[Run]) -> Table:
    from rich.text import Text

    drawn = table(">id", "handler", "status", ">attempt", "queue", ">age", ">took", "why")
    now = time.time_ns() // 1000
    for run in runs:
        took = None if run.started_at is None else ((run.finished_at or now) - run.started_at) / 1e6
        drawn.add_row(
            str(run.id),
            Text(clean(run.handler)),
            status_text(run.status),
            str(run.attempt),
            Text(clean(run.queue)),
            human((now - run.created_at) / 1e6),
            "" if took is None else human(took),
            Text(_why(run)),
        )
    return drawn


def _why(run: Run) -> str:
    lines = (run.error or run.reason or "").strip().splitlines()
    if run.error and run.reason and not run.ended:
        lines = [f"{run.reason}: {lines[0]}"]
    text = clean(lines[0]) if lines else ""
    return text if len(text) <= 80 else text[:77] + "..."
