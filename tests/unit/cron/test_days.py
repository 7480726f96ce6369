"""`L`, `W`, `#` and the two day fields together, against the calendar."""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron, CronError

Rule = Callable[[date], bool]
NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def nearest(day: date, to: int) -> bool:
    """Looks through the weekdays of the month for the nearest; two are never equally far."""
    if to > length(day):
        return False
    month = [day.replace(day=number) for number in range(1, length(day) + 1)]
    work = [other for other in month if other.weekday() < 5]
    return day == min(work, key=lambda other: abs(other.day - to))


def of_month() -> st.SearchStrategy[tuple[str, Rule]]:
    def last(n: int) -> tuple[str, Rule]:
        return f"L-{n}", lambda day: day.day == length(day) - n

    def near(n: int) -> tuple[str, Rule]:
        return f"{n}W", lambda day: nearest(day, n)

    def plain(n: int) -> tuple[str, Rule]:
        return str(n), lambda day: day.day == n

    def last_work(day: date) -> bool:
        month = [day.replace(day=number) for number in range(1, length(day) + 1)]
        return day == [other for other in month if other.weekday() < 5][-1]

    return st.one_of(
        st.just(("L", lambda day: day.day == length(day))),
        st.just(("LW", last_work)),
        st.integers(1, 30).map(last),
        st.integers(1, 31).map(near),
        st.integers(1, 31).map(plain),
    )


def of_week() -> st.SearchStrategy[tuple[str, Rule]]:
    def nth(weekday: int, n: int) -> tuple[str, Rule]:
        return f"{NAMES[weekday]}#{n}", lambda day: day.weekday() == weekday and (day.day - 1) // 7 == n - 1

    def last(weekday: int) -> tuple[str, Rule]:
        return f"{NAMES[weekday]}L", lambda day: day.weekday() == weekday and day.day + 7 > length(day)

    def plain(weekday: int) -> tuple[str, Rule]:
        return NAMES[weekday], lambda day: day.weekday() == weekday

    weekdays = st.integers(0, 6)
    return st.one_of(st.builds(nth, weekdays, st.integers(1, 5)), weekdays.map(last), weekdays.map(plain))


def lists(item: st.SearchStrategy[tuple[str, Rule]]) -> st.SearchStrategy[tuple[str, Rule]]:
    def joined(found: list[tuple[str, Rule]]) -> tuple[str, Rule]:
        return ",".join(text for text, _ in found), lambda day: any(rule(day) for _, rule in found)

    return st.lists(item, min_size=1, max_size=3).map(joined)


def everyday(day: date) -> bool:
    return True


def odd(day: date) -> bool:
    return day.day % 2 == 1


stars: st.SearchStrategy[tuple[str, Rule]] = st.sampled_from([("*", everyday), ("?", everyday), ("*/2", odd)])


@given(
    lists(of_month()) | stars,
    lists(of_week()) | stars.filter(lambda one: one[0] != "*/2"),
    st.integers(1971, 2400),
)
@settings(max_examples=200, deadline=None)
def test_the_days_of_a_year(of_month: tuple[str, Rule], of_week: tuple[str, Rule], year: int) -> None:
    (day_text, day_rule), (week_text, week_rule) = of_month, of_week
    starred = day_text[0] in "*?" or week_text[0] in "*?"
    start, end = date(year, 1, 1), date(year + 1, 1, 1)
    days = [start + timedelta(days=n) for n in range((end - start).days)]
    if starred:
        expected = [day for day in days if day_rule(day) and week_rule(day)]
    else:
        expected = [day for day in days if day_rule(day) or week_rule(day)]
    try:
        cron = Cron.parse(f"0 0 {day_text} * {week_text}")
    except CronError as refused:
        assert "never fires" in str(refused)
        assert expected == []
        return
    found = []
    before = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000 - 1
    for at in cron.fires(before, ZoneInfo("UTC")):
        day = (datetime(1970, 1, 1) + timedelta(microseconds=at)).date()
        if day >= end:
            break
        found.append(day)
    assert found == expected


@pytest.mark.parametrize(
    ("days", "month", "found"),
    [
        ("L", "2028-02", [29]),
        ("L-3", "2026-02", [25]),
        ("LW", "2026-05", [29]),  # the 31st is a Sunday
        ("15W", "2026-08", [14]),  # a Saturday: the day before
        ("15W", "2026-02", [16]),  # a Sunday: the day after
        ("1W", "2026-08", [3]),  # the first is a Saturday: not back into July
        ("31W", "2026-05", [29]),  # the last is a Sunday: not on into June
        ("31W", "2026-04", []),  # there is no such day
    ],
)
def test_by_example(days: str, month: str, found: list[int]) -> None:
    first = datetime.fromisoformat(f"{month}-01").replace(tzinfo=UTC)
    before = int(first.timestamp()) * 1_000_000 - 1
    met = []
    for at in Cron.parse(f"0 0 {days} * ?").fires(before, ZoneInfo("UTC")):
        day = datetime.fromtimestamp(at // 1_000_000, UTC)
        if day.month != first.month:
            break
        met.append(day.day)
    assert met == found


def test_or_unless_a_star_comes_first() -> None:
    """Friday the 13th: "or" as written plainly, "and" once a star leads either field."""

    def first_five(expression: str) -> list[str]:
        found = []
        after = int(datetime(2026, 2, 1, tzinfo=UTC).timestamp()) * 1_000_000
        for at in Cron.parse(expression).fires(after, ZoneInfo("UTC")):
            found.append(f"{datetime.fromtimestamp(at // 1_000_000, UTC):%m-%d}")
            if len(found) == 5:
                break
        return found

    assert first_five("0 0 14 * fri") == ["02-06", "02-13", "02-14", "02-20", "02-27"]
    assert first_five("0 0 14 * *") == ["02-14", "03-14", "04-14", "05-14", "06-14"]
    assert first_five("0 0 */13 * fri") == ["02-27", "03-27", "05-01", "08-14", "11-27"]
    assert first_five("0 0 13 * */5") == ["02-13", "03-13", "09-13", "11-13", "12-13"]
