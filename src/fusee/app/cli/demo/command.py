"""`fusee demo`: plays a story, with a live picture on a terminal, line by line elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import option
from fusee.surfaces.cli.output import Out, clean

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LINES", "Log", "demo"]

LINES = 12
NEXT = {
    "runs": "`fusee config init`, then `fusee up --app myproject.jobs:app`",
    "cdc": "docs/cdc.md, and docs/handler-packs.md",
}


class Log:
    """The last lines of what happened."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lines: deque[str] = deque(maxlen=LINES)

    def add(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:5.1f}s  {text}")


class Story(Protocol):
    """What a demo plays."""

    async def play(self) -> None: ...

    def picture(self, log: Log) -> RenderableType:
        """How it stands now, for a terminal."""

    def summary(self) -> RenderableType: ...

    def data(self) -> dict[str, Any]: ...


@command()
@click.argument("what", type=click.Choice(["runs", "cdc"]), default="runs")
@option("--plain", "Print line by line, without a live picture.")
async def demo(out: Out, /, what: str, plain: bool) -> Answer:
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
    live = not (plain or out.json) and sys.stdout.isatty()
    log = Log()

    def tell(text: str) -> None:
        log.add(text)
        if not live and not out.json:
            click.echo(clean(log.lines[-1]))

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fusee-demo-", ignore_cleanup_errors=True) as folder:
        story = _story(what, Path(folder), tell)
        await _play(out, story.play(), (lambda: story.picture(log)) if live else None)
    seconds = time.monotonic() - began
    end = f"{seconds:.0f} s, and nothing is left behind. Next: {NEXT[what]}."
    return Answer(
        lambda: {"seconds": round(seconds, 1), **story.data()}, "", lambda: story.summary(), "", end
    )


def _story(what: str, folder: Path, tell: Callable[[str], None]) -> Story:
    if what == "cdc":
        from fusee.app.cli.demo.cdc import CdcStory

        return CdcStory(folder, tell)
    from fusee.app.cli.demo.runs import RunsStory

    return RunsStory(folder, tell)


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
