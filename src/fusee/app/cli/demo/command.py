"""`fusee demo`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.opening import drive
from fusee.surfaces.cli.options import Command
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import fire_object, run_object

__all__ = ["demo"]


@click.command(cls=Command)
@click.argument("what", type=click.Choice(["runs", "cdc"]), default="runs")
@click.option("--plain", is_flag=True, help="Line by line, without a live picture.")
@click.pass_context
def demo(context: click.Context, what: str, plain: bool) -> None:
    """See it work, in under a minute: delayed, retried, canceled, timed out, recovered, scheduled.

    Two workers run six pieces of work on a database of their own in a temporary folder; one worker is killed
    in the middle of a run, and the other one takes the run over. A task is due every second beside them, and
    is skipped while it runs. No port is opened, and nothing is left behind, also after Ctrl-C.

    `fusee demo cdc` shows a batch: 300 jobs of a control plane are moved to another zone, a few fail, one
    hangs after it was moved; the failed ones are retried, everything is rolled back, and the control plane's
    own journal is held against what the batch says. That one listens on a free port of the loopback address.

    Example:
      fusee demo
      fusee demo cdc
      fusee demo --json
    """
    out = Out.of(context)
    live = not (plain or out.json) and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="fusee-demo-", ignore_cleanup_errors=True) as folder:
        drive((_demo_cdc if what == "cdc" else _demo)(out, Path(folder), live))


async def _demo(out: Out, folder: Path, live: bool) -> None:
    from fusee.app.cli.demo.story import Story
    from fusee.app.cli.demo.view import Log, picture, print_line, summary

    log = Log()

    def tell(text: str) -> None:
        if live:
            log.add(text)
        elif not out.json:
            print_line(log, text)

    story = Story(folder, tell)
    began = time.monotonic()
    await _play(out, story.play(), (lambda: picture(story, log)) if live else None)
    if out.json:
        runs = {handler: run_object(run) for handler, run in story.runs.items()}
        fires = [fire_object(fire) for fire in story.fires]
        out.data({"seconds": round(time.monotonic() - began, 1), "runs": runs, "fires": fires})
        return
    out.show("", summary(story), "")
    out.show(
        f"{time.monotonic() - began:.0f} s, and nothing is left behind. Next: `fusee config init`, then"
        " `fusee up --app myproject.jobs:app`."
    )


async def _demo_cdc(out: Out, folder: Path, live: bool) -> None:
    from fusee.app.cli.demo.cdc_story import CdcStory
    from fusee.app.cli.demo.cdc_view import picture, summary
    from fusee.app.cli.demo.view import Log, print_line

    log = Log()

    def tell(text: str) -> None:
        if live:
            log.add(text)
        elif not out.json:
            print_line(log, text)

    story = CdcStory(folder, tell)
    began = time.monotonic()
    await _play(out, story.play(), (lambda: picture(story, log)) if live else None)
    seconds = time.monotonic() - began
    if out.json:
        verdict = {"agrees": bool(story.verdict), "found": dict(story.verdict.found)}
        out.data({"seconds": round(seconds, 1), "acts": story.counts, "verdict": verdict})
        return
    out.show("", summary(story), "")
    out.show(f"{seconds:.0f} s, and nothing is left behind. Next: docs/cdc.md, and docs/handler-packs.md.")


async def _play(out: Out, story: Coroutine[Any, Any, None], picture: Callable[[], Any] | None) -> None:
    """To its end; with a picture that is drawn anew all the time, or without."""
    with _terminated_like_interrupted():
        try:
            await (story if picture is None else _live(out, story, picture))
        except TimeoutError:
            raise Failure("the demo took too long: this machine is very busy", Exit.TIMED_OUT) from None


async def _live(out: Out, story: Coroutine[Any, Any, None], picture: Callable[[], Any]) -> None:
    from rich.live import Live

    with Live(console=out.console(), auto_refresh=False, transient=True) as screen:

        async def draw() -> None:
            while True:
                screen.update(picture(), refresh=True)
                await asyncio.sleep(0.1)

        drawing = asyncio.create_task(draw())
        try:
            await story
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing
            screen.update(picture(), refresh=True)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    told = False

    def terminate() -> None:
        nonlocal told
        told = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise Failure("interrupted", Exit.INTERRUPTED) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
