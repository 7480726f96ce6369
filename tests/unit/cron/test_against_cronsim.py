"""Beside another engine, where both mean the same: UTC, and the dialect that the two share.

Left out, because cronsim reads it otherwise or not at all:
- `?`, `L-3`, `15W`, `FRIL` (it takes only `5L`) and macros: not in its dialect;
- ranges that run backwards, which it refuses, and steps longer than the field, which it reads as "once";
- `5-5/2`: it reads that as `5/2`, a range of one value as an open one;
- any zone with daylight saving: six fields fire twice or never there, which is why our engine exists.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron, CronError, next_fires

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905
WEEKDAYS = "sun mon tue wed thu fri sat".split()  # noqa: SIM905


@st.composite
def items(draw: st.DrawFn, low: int, high: int, names: list[str]) -> str:
    def said(value: int) -> str:
        name = names[value - low] if value - low < len(names) else str(value)
        return draw(st.sampled_from([str(value), name, name.upper()])) if names else str(value)

    size = 7 if high == 7 else high - low + 1
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, size))
    kinds = ["*", f"*/{step}", said(first), f"{first}/{step}"]
    if first < last:
        kinds += [f"{said(first)}-{last}", f"{first}-{last}/{step}"]
    return draw(st.sampled_from(kinds))


def field(low: int, high: int, names: list[str] | None = None, *special: str) -> st.SearchStrategy[str]:
    item = items(low, high, names or [])
    if special:
        item |= st.sampled_from(special)
    return st.just("*") | item | st.lists(item, min_size=2, max_size=4).map(",".join)


sharps = [f"{day}#{n}" for day in [*range(8), "fri", "MON"] for n in range(1, 6)]
lasts = [f"{day}L" for day in range(8)]
minutes = st.tuples(
    field(0, 59),
    field(0, 23),
    field(1, 31, None, "L", "LW"),
    field(1, 12, MONTHS),
    field(0, 7, WEEKDAYS, *sharps, *lasts),
).map(" ".join)
seconds = st.tuples(field(0, 59), minutes).map(" ".join)

moments = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


@given(minutes | seconds, moments)
@settings(max_examples=500, deadline=None)
def test_the_same_fires(expression: str, after: datetime) -> None:
    micros = int(after.timestamp()) * 1_000_000 + after.microsecond
    try:
        cron = Cron.parse(expression)
    except CronError as refused:
        assert "never fires" in str(refused)
        assert theirs(expression, after) == []
        return
    ours = [
        datetime.fromtimestamp(at // 1_000_000, UTC) for at in next_fires(cron, micros, ZoneInfo("UTC"), 6)
    ]
    assert ours == theirs(expression, after)


def theirs(expression: str, after: datetime) -> list[datetime]:
    try:
        return list(islice(CronSim(expression, after), 6))
    except CronSimError:
        return []
