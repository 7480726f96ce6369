"""How the demo looks: live in a terminal, line by line elsewhere."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fusee.app.cli.demo.story import ACTS
from fusee.surfaces.cli.output import clean, human, status_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusee.app.cli.demo.story import Story

__all__ = ["Log", "picture", "print_line", "summary"]

LINES = 12


class Log:
    """The last lines of what happened."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lines: deque[str] = deque(maxlen=LINES)

    def add(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:5.1f}s  {text}")


def print_line(log: Log, text: str) -> None:
    log.add(text)
    click.echo(clean(log.lines[-1]))


def picture(story: Story, log: Log) -> RenderableType:
    """The cast above, the log below."""
    drawn = Table(expand=True, box=None, header_style="bold", padding=(0, 1))
    for column in ("run", "handler", "shows", "status", "attempt", "age", "why"):
        drawn.add_column(column, no_wrap=column != "why", ratio=1 if column == "why" else None)
    now = time.time_ns() // 1000
    for act in ACTS:
        run = story.runs.get(act.handler)
        if run is None:
            drawn.add_row("", Text(act.handler, "dim"), Text(act.title, "dim"), "", "", "", "")
            continue
        age = ((run.finished_at or now) - run.created_at) / 1e6
        why = (run.error or run.reason or str(run.result or "")).strip().splitlines()
        drawn.add_row(
            str(run.id),
            act.handler,
            act.title,
            status_text(run.status),
            str(run.attempt),
            human(age),
            Text(clean(why[0]) if why else "", "dim"),
        )
    lines = [*log.lines, *[""] * (LINES - len(log.lines))]
    return Group(
        Panel(drawn, title="fusee demo", border_style="cyan"),
        Panel(Text(clean("\n".join(lines))), title="what happens", border_style="dim"),
    )


def summary(story: Story) -> RenderableType:
    """Each run, how it ended, and the promise it showed."""
    drawn = table("", "shown", "ended", ">attempts", "promise")
    for act in ACTS:
        run = story.runs[act.handler]
        drawn.add_row(
            Text("✓", "green"), act.title, status_text(run.status), str(run.attempt), Text(act.promise)
        )
    ran, skipped = (sum(fire.decision == what for fire in story.fires) for what in ("run", "skip"))
    ended = Text(f"{ran} ran, {skipped} skipped")
    promise = Text("Every due fire leaves a row, with the rule that decided.")
    drawn.add_row(Text("✓", "green"), "a task, every second", ended, "", promise)
    return drawn
