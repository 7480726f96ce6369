"""How `fusee demo cdc` looks: a bar with the targets by status, and what happens below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from fusee.app.cli.demo.cdc_story import ACTS
from fusee.app.cli.demo.view import LINES, Log
from fusee.batches.model.batch import BatchStatus
from fusee.surfaces.cli.output import clean, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusee.app.cli.demo.cdc_story import CdcStory

__all__ = ["picture", "summary"]

BAR = 72
STYLES = {
    BatchStatus.SUCCESS: "green",
    BatchStatus.RUNNING: "yellow",
    BatchStatus.PENDING: "bright_black",
    BatchStatus.RETRY_PENDING: "cyan",
    BatchStatus.FAIL: "red",
    BatchStatus.CANCEL: "bright_black",
    BatchStatus.ROLLBACK_PENDING: "bright_black",
    BatchStatus.ROLLBACK_RUNNING: "yellow",
    BatchStatus.ROLLBACK_SUCCESS: "blue",
    BatchStatus.ROLLBACK_FAIL: "magenta",
}


def picture(story: CdcStory, log: Log) -> RenderableType:
    lines = [*log.lines, *[""] * (LINES - len(log.lines))]
    return Group(
        Panel(Group(_bar(story), _counts(story)), title="fusee demo cdc", border_style="cyan"),
        Panel(Text(clean("\n".join(lines))), title="what happens", border_style="dim"),
    )


def _bar(story: CdcStory) -> Text:
    """Every status as wide as its share; what is there at all is seen."""
    bar = Text()
    if story.batch is not None:
        for status, style in STYLES.items():
            if count := story.batch.counts.get(status, 0):
                bar.append("━" * max(1, round(BAR * count / story.batch.total)), style)
    return bar


def _counts(story: CdcStory) -> Text:
    told = Text(f"{story.act or 'plan'}: ")
    if story.batch is not None:
        for status, style in STYLES.items():
            if count := story.batch.counts.get(status, 0):
                told.append(f"{count} {status}  ", style)
        told.append(f"({story.batch.window} at once)", "dim")
    return told


def summary(story: CdcStory) -> RenderableType:
    """Each act, how the targets stood after it, and what the journal says to that."""
    drawn = table("", "act", "the batch says")
    for act in ACTS:
        counts = ", ".join(f"{count} {status}" for status, count in story.counts[act].items() if count)
        drawn.add_row(Text("✓", "green"), act, counts)
    found = ", ".join(f"{count} {what}" for what, count in sorted(story.verdict.found.items()))
    verdict = Text.assemble(
        ("✓ ", "green"), "The control plane's own journal agrees, target by target: ", (found, "bold")
    )
    return Group(drawn, Text(), verdict)
