"""When a task fires by itself: intervals, one time, cron in a zone."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.tasks.model.schedule import CronSchedule, IntervalSchedule, OnceSchedule, zone_named
from fusee.tasks.model.task import TaskSpec

SECOND = 1_000_000
START = 1_800_000_000 * SECOND


def us(*moment: int) -> int:
    return round(datetime(*moment, tzinfo=UTC).timestamp()) * SECOND  # type: ignore[misc,arg-type]


def spec(**fields: object) -> TaskSpec:
    return TaskSpec(name="t", handler="work", **fields)  # type: ignore[arg-type]


@given(every=st.integers(SECOND, 86400 * SECOND), anchor=st.integers(0, 2**50), after=st.integers(0, 2**50))
def test_an_interval_beats_evenly_from_one_interval_after_its_anchor(
    every: int, anchor: int, after: int
) -> None:
    schedule = IntervalSchedule(every, anchor)
    following = schedule.next(after)
    assert following is not None
    assert following > after and following > anchor and (following - anchor) % every == 0
    assert following - every <= max(after, anchor), "none is passed over"
    assert schedule.matches(following) and not schedule.matches(following + 1)
    assert not schedule.matches(anchor)
    assert list(islice(schedule.fires(after), 3)) == [following + n * every for n in range(3)]


def test_one_time_is_one_time() -> None:
    schedule = OnceSchedule(START)
    assert schedule.next(START - 1) == START
    assert schedule.next(START) is None
    assert list(schedule.fires(0)) == [START]
    assert list(schedule.fires(START)) == []
    assert schedule.matches(START) and not schedule.matches(START + 1)


def test_cron_is_meant_in_the_zone_of_the_task() -> None:
    schedule = spec(cron="0 9 * * *", timezone="Asia/Shanghai").schedule(0)
    assert isinstance(schedule, CronSchedule)
    assert schedule.next(us(2027, 1, 15, 0, 0)) == us(2027, 1, 15, 1, 0)
    assert schedule.matches(us(2027, 1, 15, 1, 0)) and not schedule.matches(us(2027, 1, 15, 9, 0))


def test_a_zone_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match="write it like Europe/Berlin or UTC"):
        zone_named("Mars/Olympus")


@pytest.mark.parametrize(
    ("fields", "trigger"),
    [
        ({"cron": "@daily"}, "cron"),
        ({"every": 60}, "interval"),
        ({"at": START}, "once"),
        ({"after": ("other",)}, "after"),
        ({"cron": "@daily", "after": ("other",)}, "cron"),
        ({}, "manual"),
    ],
)
def test_what_makes_a_task_fire(fields: dict[str, object], trigger: str) -> None:
    made = spec(**fields)
    assert made.trigger == trigger
    assert (made.schedule(START) is None) == (trigger in ("after", "manual"))


def test_seen_from_before_it_was_made_an_interval_keeps_its_beat() -> None:
    minute = 60 * SECOND
    schedule = spec(every=60).schedule_since(START - 10 * minute, START + 7 * SECOND)
    assert schedule is not None
    assert list(islice(schedule.fires(START - 10 * minute - 1), 2)) == [
        START - 10 * minute + 7 * SECOND,
        START - 9 * minute + 7 * SECOND,
    ]


@given(st.integers(1, 86400), st.integers(0, 2**50), st.integers(0, 2**50))
def test_seen_from_any_time_an_interval_has_the_same_beat(every: int, begin: int, anchor: int) -> None:
    schedule = spec(every=float(every)).schedule_since(begin, anchor)
    first = schedule.next(begin - 1) if schedule is not None else None
    assert first is not None
    assert (first - anchor) % (every * SECOND) == 0
    if begin <= anchor:
        assert begin <= first < begin + every * SECOND
