"""Following what goes on: a live bar until a thing is over, a list that is kept fresh."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.output import Out, clean

if TYPE_CHECKING:
    from fusee.surfaces.cli.answer import Noun

__all__ = ["Progress", "follow", "progress", "watch_list"]

T = TypeVar("T")
Progress = tuple[str, int, int | None, str]
"""What a bar shows: a description, how many are done, of how many, and words behind the bar."""
SHORTEST_PAUSE = 0.01
"""The first looks come close together, for what ends at once; the pauses grow to a quarter of a second."""
WATCH_EVERY = 0.5
MOST_SEEN = 20_000


@contextmanager
def progress(out: Out) -> Iterator[Callable[..., None]]:
    """A bar on a terminal; `update(description, done, total, words)` moves it."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = out.progress_console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=None, words="")

        def update(description: str, done: int, total: int | None, words: str = "") -> None:
            words = words or (f"{done:,}" if total is None else f"{done:,}/{total:,}")
            bars.update(bar, description=clean(description), completed=done, total=total, words=words)

        yield update


async def follow(
    out: Out,
    look: Callable[[], Awaitable[T]],
    shown: Callable[[T], Progress],
    over: Callable[[T], bool],
    *,
    timeout: float | None = None,
    line: Callable[[T], str] = str,
    every: float = 0.25,
    seen: Callable[[T], None] = lambda thing: None,
) -> T:
    """Look until it is over; a failure with exit code 124 when it is not over after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST_PAUSE
    with progress(out) as update:
        while True:
            thing = await look()
            update(*shown(thing))
            seen(thing)
            if over(thing):
                return thing
            pause = min(pause * 1.5, every)
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            if left <= 0:
                raise Failure(f"it had not ended after {timeout:g} s: {line(thing)}", Exit.TIMED_OUT)
            await asyncio.sleep(left)


async def watch_list(out: Out, noun: Noun[T], look: Callable[[], Awaitable[Sequence[T]]]) -> None:
    """Until it is interrupted: a live table on a terminal, elsewhere a line whenever a thing has changed."""
    if not out.json and sys.stdout.isatty():
        from rich.live import Live

        with Live(console=out.console(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(noun.table(await look()), refresh=True)
                await asyncio.sleep(WATCH_EVERY)
    identify = next(iter(noun.columns.values()))
    known: dict[Any, int] = {}
    while True:
        found = await look()
        for thing in reversed(found):
            shape = json.dumps(noun.shape(thing), sort_keys=True)
            if known.get(identify(thing)) != hash(shape):
                known[identify(thing)] = hash(shape)
                out.data(noun.shape(thing), line=True) if out.json else click.echo(clean(noun.in_line(thing)))
        if len(known) > MOST_SEEN:  # forget those that have left the list
            known = {identify(thing): known[identify(thing)] for thing in found}
        await asyncio.sleep(WATCH_EVERY)
