"""`fusee task simulate`: what another policy would have done, drawn beside what was done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.moments import TIMES, local_text, moment, now_us
from fusee.surfaces.cli.options import duration, option
from fusee.surfaces.cli.output import Out, human, table
from fusee.tasks.cli.look import zone_of
from fusee.tasks.cli.steer import policy_of_words
from fusee.values.fields import shown

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from rich.table import Table

    from fusee.tasks.service.simulation import Compared, Simulation
    from fusee.tasks.service.tasks import TaskOperations

__all__ = ["Bar", "bars", "lanes", "marks", "simulate"]

DECISIONS = {"run": "ran", "queue": "stood in line", "skip": "skipped", "miss": "missed"}
MOST_LANES = 6
MOST_ROWS = 40
WIDEST = 100
BLOCKS = " ▁▂▃▄▅▆▇█"
"""How much of a cell's time was taken, in eighths."""


@command()
@click.argument("name", metavar="NAME")
@option("--from begin TIME", f"The first: {TIMES}.", required=True)
@option("--to end TIME", "The last.", default="now", show_default=True)
@option("--policy -p words FIELD=VALUE", "What would be different; repeatable.", multiple=True)
@option("--duration TIME", "How long a run takes when that is not recorded.", callback=duration())
@option("--all every", "List every fire, also those that would go the same way.")
async def simulate(
    tasks: TaskOperations, out: Out, /, name: str, begin: str, end: str, words: tuple[str, ...],
    duration: float | None, every: bool,
) -> Answer:  # fmt: skip
    """Show what another policy would have done, beside what was done.

    The same rules are run again over the fires of that time, with the durations and ends that the record has;
    for others, --duration or the usual time counts. Nothing is changed. Without --policy, it is the policy
    that the task has now. Catch-up plays no part: it is as if someone had been there to fire each in time.

    Fields: overlap_action, max_concurrency, concurrency_policy, queue_depth, failure_action, jitter, rate,
    burst.

    Example:
      fusee task simulate poll --from -1h --policy overlap_action=SKIP
      fusee task simulate poll --from 09:00 --to 10:00 -p max_concurrency=2 -p concurrency_policy=QUEUE
    """
    task = await tasks.get(name)
    zone, now = zone_of(task), now_us()
    first, last = moment(begin, zone, now, "--from"), moment(end, zone, now, "--to")
    policy = policy_of_words(words, "--policy")
    answer = await tasks.simulate(name, first, last, policy=policy, duration=duration)
    if not answer.fires:
        return Answer(lambda: shown(answer), say=["no fire lies in that time"])
    own = f"{_fires(answer.known)} took as long as recorded"
    remark = f"{own}; {human(answer.duration)} assumed where nothing is recorded"
    return Answer(lambda: shown(answer), lambda: list(_drawn(out, answer, zone, first, every)), say=[remark])


def _drawn(out: Out, answer: Simulation, zone: ZoneInfo, begin: int, every: bool) -> Iterator[Any]:
    fires = answer.fires
    yield from _timeline(answer, zone, begin, min(WIDEST, out.console().width - 12))
    listed = [one for one in fires if every or _differs(one)]
    if listed:
        yield ""
        yield _compared(zone).table(listed[:MOST_ROWS] if not every else listed)
        if not every and len(listed) > MOST_ROWS:
            yield f"… and {len(listed) - MOST_ROWS} more; --all lists every fire"
    same = len(fires) - sum(_differs(one) for one in fires)
    yield ""
    yield _counts(answer)
    yield f"{_fires(len(fires))}, {same} of them the same"


def _fires(count: int) -> str:
    return "1 fire" if count == 1 else f"{count} fires"


def _timeline(answer: Simulation, zone: ZoneInfo, begin: int, width: int) -> Iterator[Any]:
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
    yield (
        Text(f"{'':10}{local_text(low, zone)} … {local_text(-(-high // 1_000_000) * 1_000_000, zone)}", "dim")
    )
    for label, drawn, left_out, style in (
        ("was", was, [o.simulated.at for o in fires if o.actual and o.actual.decision == "skip"], "cyan"),
        ("would be", would, [o.simulated.at for o in fires if o.simulated.decision == "skip"], "green"),
    ):
        rows = lanes(drawn)
        for number, row in enumerate(rows[:MOST_LANES]):
            yield (
                Text(f"{label if not number else '':10}", "bold") + Text(bars(row, low, high, width), style)
            )
        if len(rows) > MOST_LANES:
            yield (f"{'':10}… and {len(rows) - MOST_LANES} more at a time")
        if left_out:
            name = "" if rows else label
            yield (Text(f"{name:10}", "bold") + Text(marks(left_out, low, high, width, "×"), "yellow"))
        if not rows and not left_out:
            yield (Text(f"{label:10}", "bold") + Text("no record", "dim"))


def _compared(zone: ZoneInfo) -> Noun[Compared]:
    def was(one: Compared) -> Any:
        from rich.text import Text

        return Text("none", "dim") if one.actual is None else one.actual.decision

    def took(one: Compared) -> str:
        return "" if one.actual is None or one.actual.seconds is None else human(one.actual.seconds)

    def waits(one: Compared) -> str:
        would = one.simulated
        return "" if would.start is None else human((would.start - would.at) / 1e6)

    def rule(one: Compared) -> str:
        return one.simulated.rule + ("; canceled by a later fire" if one.simulated.canceled else "")

    return Noun(
        shape=shown,
        columns={
            f"fire time ({zone.key})": lambda one: local_text(one.simulated.at, zone),
            "was": was,
            ">took": took,
            "would be": lambda one: one.simulated.decision,
            ">waits": waits,
            "rule": rule,
        },
    )


def _counts(answer: Simulation) -> Table:
    drawn = table("", ">was", ">would be")
    for name, label in DECISIONS.items():
        drawn.add_row(label, *(str(counts.get(name, 0)) for counts in (answer.actual, answer.simulated)))
    if none := sum(one.actual is None for one in answer.fires):
        drawn.add_row("no record", str(none), "")
    if canceled := sum(one.simulated.canceled for one in answer.fires):
        drawn.add_row("canceled by a later one", "", str(canceled))
    return drawn


def _differs(one: Compared) -> bool:
    return one.actual is None or one.actual.decision != one.simulated.decision or one.simulated.canceled


@dataclass(frozen=True, slots=True)
class Bar:
    """From `start` until `end`; both in microseconds."""

    start: int
    end: int


def lanes(given: Iterable[Bar]) -> list[list[Bar]]:
    """As few rows as hold them without two at a time in one."""
    rows: list[list[Bar]] = []
    for bar in sorted(given, key=lambda bar: (bar.start, bar.end)):
        free = next((row for row in rows if row[-1].end <= bar.start), None)
        if free is None:
            rows.append(free := [])
        free.append(bar)
    return rows


def bars(row: Sequence[Bar], begin: int, end: int, width: int) -> str:
    """One row as text: a cell is as high as the share of its time that was taken, and empty only for none."""
    cell = max(1, end - begin) / width
    taken = [0.0] * width
    for bar in row:
        low, high = (bar.start - begin) / cell, (bar.end - begin) / cell
        for at in range(max(0, int(low)), min(width - 1, int(high)) + 1):
            taken[at] += max(0.0, min(high, at + 1) - max(low, at))
    return "".join(BLOCKS[min(8, max(1, round(share * 8)))] if share > 0 else " " for share in taken)


def marks(times: Iterable[int], begin: int, end: int, width: int, mark: str) -> str:
    """A mark in each cell in which one of the times lies."""
    cell = max(1, end - begin) / width
    cells = {min(width - 1, int((at - begin) / cell)) for at in times}
    return "".join(mark if at in cells else " " for at in range(width))
