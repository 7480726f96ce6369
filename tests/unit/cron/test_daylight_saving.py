"""Every rule about clocks that change, against a walk over the wall clock."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron, next_fires
from tests.unit.cron.oracle import (
    EVERY_DAY,
    Wanted,
    instant,
    transitions,
    walk,
    walk_by_minutes,
    wall_minutes,
    walls,
)

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Shanghai")
START, END = instant(2024, 1, 1), instant(2027, 1, 1)
ALL_HOURS, ALL_SIXTY = frozenset(range(24)), frozenset(range(60))


def engine(text: str, zone: ZoneInfo, start: int, end: int) -> list[int]:
    """The fires after `start` and before `end`, in seconds."""
    found = []
    for at in Cron.parse(text).fires(start * 1_000_000, zone):
        if at >= end * 1_000_000:
            break
        assert at % 1_000_000 == 0
        found.append(at // 1_000_000)
    return found


# --- three years, every minute -----------------------------------------------------------------------

THREE_YEARS = [
    Wanted("37 2 * * *", True, frozenset({2}), frozenset({37})),
    Wanted("0,15,30,45 0-3 * * *", True, frozenset(range(4)), frozenset({0, 15, 30, 45})),
    Wanted("0 0 * * sun,fri", True, frozenset({0}), frozenset({0}), weekdays=frozenset({4, 6})),
    Wanted("*/20 * * * *", False, ALL_HOURS, frozenset({0, 20, 40})),
    Wanted("30 */2 * * *", False, frozenset(range(0, 24, 2)), frozenset({30})),
]


@pytest.mark.parametrize("name", ZONES)
def test_three_years_minute_by_minute(name: str) -> None:
    zone = ZoneInfo(name)
    clock = wall_minutes(zone, START, END)
    for wanted in THREE_YEARS:
        assert engine(wanted.text, zone, START, END) == walk_by_minutes(wanted, START, clock), wanted.text


# --- the days round each change, any expression ------------------------------------------------------


@st.composite
def part(draw: st.DrawFn, low: int, high: int) -> tuple[str, frozenset[int], bool]:
    """A field's text, its values, and whether it is a rhythm."""
    kind = draw(st.sampled_from(["star", "step", "from", "range", "range step", "list"]))
    a = draw(st.integers(low, high))
    b = draw(st.integers(a, high))
    step = draw(st.integers(1, high))
    if kind == "star":
        return "*", frozenset(range(low, high + 1)), True
    if kind == "step":
        return f"*/{step}", frozenset(range(low, high + 1, step)), True
    if kind == "from":
        return f"{a}/{step}", frozenset(range(a, high + 1, step)), True
    if kind == "range":
        return f"{a}-{b}", frozenset(range(a, b + 1)), (a, b) == (low, high)
    if kind == "range step":
        return f"{a}-{b}/{step}", frozenset(range(a, b + 1, step)), True
    values = draw(st.sets(st.integers(low, high), min_size=1, max_size=4))
    return ",".join(map(str, values)), frozenset(values), False


# Most changes happen between midnight and four.
early = st.sets(st.integers(0, 4), min_size=1, max_size=3).map(
    lambda hours: (",".join(map(str, hours)), frozenset(hours), False)
)


@st.composite
def expressions(draw: st.DrawFn, *, seconds: bool) -> Wanted:
    minute, minutes, minute_rhythm = draw(part(0, 59))
    hour, hours, hour_rhythm = draw(early | part(0, 23))
    second, chosen = "0", frozenset({0})
    if seconds:
        second, chosen, _ = draw(part(0, 59))
    weekday, weekdays = draw(
        st.sampled_from([("*", EVERY_DAY), ("sun", frozenset({6})), ("fri-mon", frozenset({4, 5, 6, 0}))])
    )
    fixed = not minute_rhythm and not hour_rhythm
    return Wanted(f"{second} {minute} {hour} * * {weekday}", fixed, hours, minutes, chosen, weekdays)


changes = st.deferred(
    lambda: st.sampled_from([(name, at) for name in ZONES for at in transitions(ZoneInfo(name), START, END)])
)


def test_the_zones_do_change() -> None:
    found = {name: len(transitions(ZoneInfo(name), START, END)) for name in ZONES}
    assert found == {name: 0 if name == "Asia/Shanghai" else 6 for name in ZONES}


@given(changes, expressions(seconds=False))
@settings(max_examples=150, deadline=None)
def test_round_a_change_minute_by_minute(change: tuple[str, int], wanted: Wanted) -> None:
    zone, at = ZoneInfo(change[0]), change[1]
    start, end = at - 86_400, at + 86_400
    clock = list(walls(zone, start, end, 60))
    assert engine(wanted.text, zone, start, end) == walk(wanted, clock, 60)


@given(changes, expressions(seconds=True), st.integers(-4, 4))
@settings(max_examples=100, deadline=None)
def test_round_a_change_second_by_second(change: tuple[str, int], wanted: Wanted, quarters: int) -> None:
    zone, at = ZoneInfo(change[0]), change[1]
    # The walk must begin outside what is repeated: it takes its first second for the high-water mark.
    start, end = at - 4 * 900, at + (8 + quarters) * 900
    clock = list(walls(zone, start, end, 1))
    assert engine(wanted.text, zone, start, end) == walk(wanted, clock, 1)


@given(changes, expressions(seconds=True), st.integers(-7_200, 7_200))
@settings(max_examples=150, deadline=None)
def test_starting_anywhere_gives_the_same_fires(change: tuple[str, int], wanted: Wanted, shift: int) -> None:
    """In the middle of a repeated hour too: what its first pass fired is known without having seen it."""
    zone, at = ZoneInfo(change[0]), change[1]
    start, end = at - 10_800, at + 10_800
    whole = engine(wanted.text, zone, start, end)
    assert engine(wanted.text, zone, at + shift, end) == [second for second in whole if second > at + shift]


@given(changes, expressions(seconds=True), st.integers(-7_200, 7_200), st.integers(0, 999_999))
@settings(max_examples=150, deadline=None)
def test_matches_agrees_with_next(change: tuple[str, int], wanted: Wanted, shift: int, fraction: int) -> None:
    cron, zone = Cron.parse(wanted.text), ZoneInfo(change[0])
    after = (change[1] + shift) * 1_000_000 + fraction
    found = cron.next(after, zone)
    assert found is not None and found > after
    assert cron.matches(found, zone)
    assert not cron.matches(found + 1, zone)
    for between in {after + 1, (after + found) // 2, found - 1, (after // 1_000_000 + 1) * 1_000_000}:
        if after < between < found:
            assert not cron.matches(between, zone)
    assert cron.matches(after, zone) is (cron.next(after - 1, zone) == after)


# --- by example --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "expression", "after", "fires"),
    [
        # Berlin, 2026-03-29: 02:00 becomes 03:00.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00+01:00", ["29T03:00+02:00", "30T02:30+02:00"]),
        ("Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00+01:00", ["29T03:00+02:00", "30T02:00+02:00"]),
        ("Europe/Berlin", "0 2,3 * * *", "2026-03-28T12:00+01:00", ["29T03:00+02:00", "30T02:00+02:00"]),
        ("Europe/Berlin", "*/15 0 2 * * *", "2026-03-28T12:00+01:00", ["29T03:00+02:00", "30T02:00+02:00"]),
        ("Europe/Berlin", "*/30 2 * * *", "2026-03-28T12:00+01:00", ["30T02:00+02:00", "30T02:30+02:00"]),
        ("Europe/Berlin", "30 * * * *", "2026-03-29T01:00+01:00", ["29T01:30+01:00", "29T03:30+02:00"]),
        # Berlin, 2026-10-25: 03:00 becomes 02:00 again.
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:00+02:00", ["25T02:30+02:00", "26T02:30+01:00"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:15+01:00", ["26T02:30+01:00", "27T02:30+01:00"]),
        ("Europe/Berlin", "30 * * * *", "2026-10-25T02:00+02:00", ["25T02:30+02:00", "25T02:30+01:00"]),
        # Lord Howe moves by half an hour: 02:00 becomes 02:30, and back to 01:30.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00+10:30", ["04T02:30+11:00", "05T02:15+11:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05T00:00+11:00", ["05T01:45+11:00", "06T01:45+10:30"]),
        # In Cairo the last Friday of April 2026 begins at one o'clock, and 29 October ends twice.
        ("Africa/Cairo", "0 0 * * fri", "2026-04-20T00:00+02:00", ["24T01:00+03:00"]),
        ("Africa/Cairo", "@daily", "2026-10-29T12:00+03:00", ["30T00:00+02:00", "31T00:00+02:00"]),
        ("Africa/Cairo", "30 23 * * *", "2026-10-29T12:00+03:00", ["29T23:30+03:00", "30T23:30+02:00"]),
    ],
)
def test_by_example(zone: str, expression: str, after: str, fires: list[str]) -> None:
    start = int(datetime.fromisoformat(after).timestamp()) * 1_000_000
    found = next_fires(Cron.parse(expression), start, ZoneInfo(zone), len(fires))
    shown = [datetime.fromtimestamp(at / 1_000_000, ZoneInfo(zone)) for at in found]
    assert [f"{at:%dT%H:%M}{at.isoformat()[-6:]}" for at in shown] == fires


def test_a_schedule_can_wait_through_many_changes() -> None:
    """The next 29 February that is a Sunday after 2032: fourteen years' worth of changes, twice."""
    zone = ZoneInfo("Europe/Berlin")
    found = next_fires(Cron.parse("30 2 */28 2 sun#5"), instant(2026, 1, 1) * 1_000_000, zone, 3)
    shown = [datetime.fromtimestamp(at / 1_000_000, zone).isoformat() for at in found]
    assert shown == ["2032-02-29T02:30:00+01:00", "2060-02-29T02:30:00+01:00", "2088-02-29T02:30:00+01:00"]
