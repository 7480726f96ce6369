"""A simulation on a terminal: bars of what was and of what would be, the fires that differ, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fusee.surfaces.cli.moments import local_text
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.tasks.cli.bars import Bar, bars, lanes, marks

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from rich.table import Table

    from fusee.tasks.service.simulation import Compared, Simulation

__all__ = ["counts_of", "show_simulation"]

DECISIONS = {"run": "ran", "queue": "stood in line", "skip": "skipped", "miss": "missed"}
MOST_LANES = 6
MOST_ROWS = 40
WIDEST = 100


def counts_of(answer: Simulation) -> dict[str, dict[str, int]]:
    """Fires by what would be decided, and by what was."""
    would = Counter(str(one.simulated.decision) for one in answer.fires)
    was = Counter(str(one.actual.decision) for one in answer.fires if one.actual is not None)
    return {"simulated": dict(sorted(would.items())), "actual": dict(sorted(was.items()))}


def show_simulation(out: Out, answer: Simulation, zone: ZoneInfo, begin: int, end: int, every: bool) -> None:
    fires = answer.fires
    if not fires:
        out.say("no fire lies in that time")
        return
    _timeline(out, answer, zone, begin, end)
    listed = [one for one in fires if every or _differs(one)]
    if listed:
        out.show("", _table(listed[:MOST_ROWS] if not every else listed, zone))
        if not every and len(listed) > MOST_ROWS:
            out.show(f"… and {len(listed) - MOST_ROWS} more; --all lists every fire")
    same = len(fires) - sum(_differs(one) for one in fires)
    out.show("", _counts(answer), f"{_fires(len(fires))}, {same} of them the same")
    own = f"{_fires(answer.known)} took as long as recorded"
    out.say(f"{own}; {human(answer.duration)} counted where no record tells it")


def _fires(count: int) -> str:
    return "1 fire" if count == 1 else f"{count} fires"


def _timeline(out: Out, answer: Simulation, zone: ZoneInfo, begin: int, end: int) -> None:
    from rich.text import Text

    fires = answer.fires
    was = [
        Bar(one.actual.started_at, one.actual.started_at + round(one.actual.seconds * 1e6))
        for one in fires
        if one.actual and one.actual.started_at is not None and one.actual.seconds is not None
    ]
    would = [Bar(o.simulated.start, o.simulated.end) for o in fires if o.simulated.start and o.simulated.end]
    # From the first fire on, and as long as anything went on: mostly empty pictures tell nothing.
    low = max(begin, fires[0].simulated.at)
    high = max([low + 1, fires[-1].simulated.at, *(bar.end for bar in (*was, *would))])
    width = min(WIDEST, out.console().width - 12)
    out.show(
        Text(f"{'':10}{local_text(low, zone)} … {local_text(-(-high // 1_000_000) * 1_000_000, zone)}", "dim")
    )
    for label, drawn, left_out, style in (
        ("was", was, [o.simulated.at for o in fires if o.actual and o.actual.decision == "skip"], "cyan"),
        ("would be", would, [o.simulated.at for o in fires if o.simulated.decision == "skip"], "green"),
    ):
        rows = lanes(drawn)
        for number, row in enumerate(rows[:MOST_LANES]):
            out.show(
                Text(f"{label if not number else '':10}", "bold") + Text(bars(row, low, high, width), style)
            )
        if len(rows) > MOST_LANES:
            out.show(f"{'':10}… and {len(rows) - MOST_LANES} more at a time")
        if left_out:
            name = "" if rows else label
            out.show(Text(f"{name:10}", "bold") + Text(marks(left_out, low, high, width, "×"), "yellow"))
        if not rows and not left_out:
            out.show(Text(f"{label:10}", "bold") + Text("no record", "dim"))


def _table(listed: Iterable[Compared], zone: ZoneInfo) -> Table:
    from rich.text import Text

    drawn = table(f"fire time ({zone.key})", "was", ">took", "would be", ">waits", "rule")
    for one in listed:
        was, would = one.actual, one.simulated
        took = "" if was is None or was.seconds is None else human(was.seconds)
        waits = "" if would.start is None else human((would.start - would.at) / 1e6)
        rule = would.rule + ("; canceled by a later fire" if would.canceled else "")
        drawn.add_row(
            local_text(would.at, zone),
            Text("none", "dim") if was is None else status_text(str(was.decision)),
            took,
            status_text(str(would.decision)),
            waits,
            Text(clean(rule)),
        )
    return drawn


def _counts(answer: Simulation) -> Table:
    counts = counts_of(answer)
    drawn = table("", ">was", ">would be")
    for name, label in DECISIONS.items():
        drawn.add_row(label, *(str(counts[side].get(name, 0)) for side in ("actual", "simulated")))
    if none := sum(one.actual is None for one in answer.fires):
        drawn.add_row("no record", str(none), "")
    if canceled := sum(one.simulated.canceled for one in answer.fires):
        drawn.add_row("canceled by a later one", "", str(canceled))
    return drawn


def _differs(one: Compared) -> bool:
    return one.actual is None or one.actual.decision != one.simulated.decision or one.simulated.canceled
