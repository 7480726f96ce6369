"""`fusee run wait`: until runs have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import run_object

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.engine.model.states import RunStatus

__all__ = ["await_runs", "tell_ends", "wait"]

# The longest IN list that every database takes without complaint.
AT_ONCE = 500
SHOWN = 20


@click.command(cls=Command)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
@click.option("--timeout", metavar="TIME", callback=duration(), help="Give up after this, such as 5m.")
@click.pass_context
def wait(context: click.Context, run_ids: tuple[int, ...], timeout: float | None) -> None:
    """Wait until runs have ended, and tell how.

    Exits 0 when all succeeded, 5 when one ended in another way, 124 when the time was up first. The runs
    themselves go on: waiting changes nothing.

    Example: fusee run wait 42 43 --timeout 10m && echo done
    """
    drive(_wait(Shared.of(context), Out.of(context), run_ids, timeout))


async def _wait(shared: Shared, out: Out, run_ids: Sequence[int], timeout: float | None) -> None:
    async with opened(shared) as app:
        for run_id in run_ids:
            await app.store.run(run_id)
        ends = await await_runs(app, out, run_ids, timeout)
        await tell_ends(app, out, ends)


async def await_runs(
    app: Fusee, out: Out, run_ids: Sequence[int], timeout: float | None
) -> dict[int, RunStatus]:
    """How each ended; a spinner for one, a bar for many."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    deadline = None if timeout is None else time.monotonic() + timeout
    left = list(dict.fromkeys(run_ids))
    total = len(left)
    ends: dict[int, RunStatus] = {}
    pause = 0.01
    console = out.progress_console()
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(), MofNCompleteColumn()] if total > 1 else []
    what = f"waiting for run {left[0]}" if total == 1 else f"waiting for {total} runs"
    with Progress(
        *columns, Elapsed(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=total)
        while left:
            ended: dict[int, RunStatus] = {}
            for start in range(0, len(left), AT_ONCE):
                ended |= await app.store.ended(left[start : start + AT_ONCE])
            if ended:
                ends |= ended
                left = [run_id for run_id in left if run_id not in ended]
                progress.update(bar, completed=total - len(left))
                pause = 0.01
                continue
            if deadline is not None and time.monotonic() >= deadline:
                which = f"run {left[0]}" if total == 1 else f"{len(left)} of {total} runs"
                raise Failure(f"{which} had not ended after {timeout:g} s", Exit.TIMED_OUT)
            rest = pause if deadline is None else min(pause, max(0.001, deadline - time.monotonic()))
            await asyncio.sleep(rest)
            pause = min(pause * 1.5, 0.25)
    return ends


async def tell_ends(app: Fusee, out: Out, ends: dict[int, RunStatus]) -> None:
    """Print them, and exit with 5 when one did not succeed."""
    from fusee.runs.cli.show import ended_line

    bad = [run_id for run_id, status in ends.items() if status != "succeeded"]
    if len(ends) <= SHOWN or (out.json and len(ends) <= 1000):
        runs = [await app.store.run(run_id) for run_id in ends]
        if out.json:
            out.data(run_object(runs[0]) if len(runs) == 1 else {"items": [run_object(run) for run in runs]})
        else:
            retried = {run.id: await app.store.attempts(run.id) for run in runs if run.attempt > 1}
            out.show(*(ended_line(run, retried.get(run.id, ())) for run in runs))
    else:
        counts: dict[str, int] = {}
        for status in ends.values():
            counts[str(status)] = counts.get(str(status), 0) + 1
        if out.json:
            out.data({"counts": counts, "unsuccessful": bad[:1000]})
        else:
            out.show(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
            if bad:
                out.show(f"without success: {', '.join(map(str, bad[:SHOWN]))}{' …' * (len(bad) > SHOWN)}")
    if bad:
        raise click.exceptions.Exit(int(Exit.UNSUCCESSFUL))
