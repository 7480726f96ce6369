"""Output: results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.options import Shared

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["Out", "ago", "clean", "facts", "human", "status_text", "table", "told_error"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# A pipe has no width; wide enough that nothing is cut off there.
PIPE_WIDTH = 240

STYLES = {
    "blocked": "dim",
    "delayed": "blue",
    "pending": "cyan",
    "dispatched": "cyan",
    "running": "yellow",
    "waiting": "magenta",
    "succeeded": "green",
    "failed": "bold red",
    "timed_out": "red",
    "canceled": "dim",
    "skipped": "dim",
    "missed": "dim red",
    "alive": "green",
    "draining": "yellow",
    "ended": "dim",
    "lost": "bold red",
    "enabled": "green",
    "paused": "yellow",
    "disabled": "dim",
    "run": "green",
    "queue": "cyan",
    "skip": "yellow",
    "created": "cyan",
    "waiting_business": "magenta",
    "stopping": "yellow",
    "stopped": "dim",
    "finished": "green",
    "open": "yellow",
    "done": "green",
    "miss": "dim red",
}


def clean(text: str) -> str:
    """Safe to show: a handler's error must not steer the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def human(seconds: float) -> str:
    """A duration at a glance: 0.4s, 12s, 3m05s, 2h10m, 4d."""
    if seconds < 0:
        return "-" + human(-seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def status_text(status: str) -> Text:
    from rich.text import Text

    return Text(status, STYLES.get(status, ""))


def table(*columns: str) -> Table:
    """A table that reads well and pastes well."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return made


def ago(at: int | None, then: int | None = None) -> str:
    """How long ago that was, or how long it lasted until `then`."""
    return "" if at is None else human(((then or time.time_ns() // 1000) - at) / 1e6)


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """One row for each fact about a thing; what is empty is left out."""
    from rich.text import Text

    drawn = table("", "")
    drawn.show_header = False
    for name, value in pairs:
        if value not in (None, "", {}):
            text = value if isinstance(value, Text) else Text(clean(str(value)))
            drawn.add_row(Text(clean(name), "bold"), text)
    return drawn


def told_error(message: str) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {clean(message)}", err=True)


class Out:
    """Where a command writes to."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    @classmethod
    def of(cls, context: click.Context) -> Out:
        return cls(Shared.of(context))

    @property
    def json(self) -> bool:
        return self.shared.json

    def data(self, document: Any, *, line: bool = False) -> None:
        """One JSON document, or one line of a stream."""
        indent = 2 if sys.stdout.isatty() and not line else None
        click.echo(json.dumps(document, ensure_ascii=False, indent=indent))
        if line:
            sys.stdout.flush()

    def show(self, *things: Any) -> None:
        """A result for a person; text is cleaned, tables and the like are drawn."""
        console = self.console()
        for thing in things:
            console.print(clean(thing) if isinstance(thing, str) else thing, markup=False)

    def say(self, text: str) -> None:
        """A remark beside the result."""
        if not self.shared.quiet and not self.json:
            click.echo(clean(text), err=True)

    def console(self) -> Console:
        from rich.console import Console

        wide = None if sys.stdout.isatty() else PIPE_WIDTH
        return Console(file=sys.stdout, highlight=False, width=wide, soft_wrap=False)

    def progress_console(self) -> Console:
        from rich.console import Console

        return Console(file=sys.stderr, highlight=False, quiet=self.json or self.shared.quiet)
