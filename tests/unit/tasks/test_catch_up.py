"""Which fires are due after a while, and what the catch-up mode makes of those that are late."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron
from fusee.tasks.model.catch_up import MOST_ROWS, Due, due_fires
from fusee.tasks.model.policy import CatchUp, Policy
from fusee.tasks.model.schedule import CronSchedule, IntervalSchedule, OnceSchedule, zone_named

SECOND = 1_000_000
MINUTE = 60 * SECOND
START = 1_800_000_000 * SECOND
EVERY_MINUTE = IntervalSchedule(MINUTE, START)


def minutes(fires: list[Due]) -> str:
    """The fires as text: minute after minute, `!` when it is missed, `~` when it is late and runs."""
    shown = []
    for fire in fires:
        assert (fire.at - START) % MINUTE == 0
        mark = "!" if fire.missed else ("~" if fire.late else "")
        shown.append(f"{(fire.at - START) // MINUTE}{mark}")
    return " ".join(shown)


def after(outage: float, **policy: object) -> str:
    """What is decided at the end of an outage that began before minute 1; in minutes."""
    now = START + round(outage * MINUTE)
    due = due_fires(EVERY_MINUTE, START + MINUTE, now, Policy(**policy))  # type: ignore[arg-type]
    assert due.next_fire_at == EVERY_MINUTE.next(now)
    return minutes(due.fires)


@pytest.mark.parametrize(
    ("mode", "outage", "decided"),
    [
        # Decided within `grace` (10 s): on time, whatever the mode.
        (CatchUp.NONE, 1.1, "1"),
        (CatchUp.COMPACT, 1.1, "1"),
        (CatchUp.FULL, 1.1, "1"),
        # Late: one fire.
        (CatchUp.NONE, 1.5, "1!"),
        (CatchUp.COMPACT, 1.5, "1~"),
        (CatchUp.FULL, 1.5, "1~"),
        # Late: several.
        (CatchUp.NONE, 5.5, "1! 2! 3! 4! 5!"),
        (CatchUp.COMPACT, 5.5, "1! 2! 3! 4! 5~"),
        (CatchUp.FULL, 5.5, "1~ 2~ 3~ 4~ 5~"),
        # The last of them on time.
        (CatchUp.NONE, 5.1, "1! 2! 3! 4! 5"),
        (CatchUp.COMPACT, 5.1, "1! 2! 3! 4! 5"),
        (CatchUp.FULL, 5.1, "1~ 2~ 3~ 4~ 5"),
    ],
)
def test_the_modes(mode: CatchUp, outage: float, decided: str) -> None:
    assert after(outage, catch_up=mode) == decided


def test_what_was_due_before_the_window_is_missed_whatever_the_mode() -> None:
    assert after(5.5, catch_up=CatchUp.FULL, catch_up_window=150.0) == "1! 2! 3~ 4~ 5~"
    assert after(5.5, catch_up=CatchUp.COMPACT, catch_up_window=150.0) == "1! 2! 3! 4! 5~"
    assert after(5.5, catch_up=CatchUp.COMPACT, catch_up_window=10.0) == "1! 2! 3! 4! 5!"


def test_the_cap_of_full_takes_the_latest() -> None:
    assert after(5.5, catch_up=CatchUp.FULL, catch_up_cap=2) == "1! 2! 3! 4~ 5~"


@pytest.mark.parametrize(
    ("mode", "decided"),
    [(CatchUp.NONE, "1! 2! 3"), (CatchUp.COMPACT, "1! 2! 3"), (CatchUp.FULL, "1~ 2~ 3")],
)
def test_a_fire_is_on_time_until_the_next_is_due_however_long_the_grace(mode: CatchUp, decided: str) -> None:
    assert after(3.5, catch_up=mode, grace=180.0) == decided
    assert after(1.5, catch_up=mode, grace=180.0) == "1"


@pytest.mark.parametrize(("mode", "run"), [(CatchUp.NONE, 1), (CatchUp.COMPACT, 1), (CatchUp.FULL, 6)])
def test_after_a_stop_a_frequent_task_runs_as_often_as_its_mode_says(mode: CatchUp, run: int) -> None:
    """Every 2 s, stopped for 13 s, with the default grace of 10 s."""
    schedule = IntervalSchedule(2 * SECOND, START)
    due = due_fires(schedule, START + 2 * SECOND, START + 13 * SECOND, Policy(catch_up=mode))
    assert len(due.fires) == 6
    assert sum(fire.missed is None for fire in due.fires) == run


def test_an_irregular_schedule_has_the_grace_of_each_gap() -> None:
    """Due at 8:00, 8:01 and 9:00: the fire of 8:00 is late from 8:01 on, that of 8:01 has its whole grace."""
    schedule = CronSchedule(Cron.parse("0 0,1 8 * * *"), zone_named("UTC"))
    eight = round(datetime(2027, 1, 4, 8, tzinfo=UTC).timestamp()) * SECOND
    due = due_fires(schedule, eight, eight + 5 * MINUTE, Policy(catch_up=CatchUp.NONE, grace=600.0))
    assert [(fire.at - eight, fire.missed is None) for fire in due.fires] == [(0, False), (MINUTE, True)]


def test_a_grace_of_none_is_on_time_at_its_very_time() -> None:
    assert after(1.0, catch_up=CatchUp.NONE, grace=0.0) == "1", "decided at its very time"


def test_each_missed_fire_carries_the_rule_that_left_it_out() -> None:
    now = START + 330 * SECOND
    full = Policy(catch_up=CatchUp.FULL, catch_up_window=150.0, catch_up_cap=2)
    rules = [fire.missed for fire in due_fires(EVERY_MINUTE, START + MINUTE, now, full).fires]
    assert rules == [
        "catch_up_window 150 s: due longer ago than that",
        "catch_up_window 150 s: due longer ago than that",
        "catch_up_cap 2: of 3 missed ones only the latest run",
        None,
        None,
    ]
    for mode, rule in (
        (CatchUp.NONE, "catch_up_mode NONE: nothing could fire it when it was due"),
        (CatchUp.COMPACT, "catch_up_mode COMPACT: a later fire runs for all that were missed"),
    ):
        first = due_fires(EVERY_MINUTE, START + MINUTE, now, Policy(catch_up=mode)).fires[0]
        assert first.missed == rule


def test_a_task_that_fires_once_has_no_next_time() -> None:
    due = due_fires(OnceSchedule(START), START, START + 5 * SECOND, Policy())
    assert (due.fires, due.next_fire_at) == ([Due(START)], None)


@settings(max_examples=40, deadline=None)
@given(
    every=st.integers(1, 3600),
    lag=st.integers(0, 200_000),
    mode=st.sampled_from(CatchUp),
    window=st.floats(0, 100_000),
    cap=st.integers(1, 50),
    grace=st.floats(0, 1000),
)
def test_every_fire_is_accounted_for_and_none_is_invented(
    every: int, lag: int, mode: CatchUp, window: float, cap: int, grace: float
) -> None:
    schedule = IntervalSchedule(every * SECOND, START)
    first, now = START + every * SECOND, START + (every + lag) * SECOND
    policy = Policy(catch_up=mode, catch_up_window=window, catch_up_cap=cap, grace=grace)
    due = due_fires(schedule, first, now, policy)
    assert due.next_fire_at == schedule.next(now)
    at = first
    for fire in due.fires:
        assert fire.at == at
        last = fire.at if fire.through is None else fire.through
        at = schedule.next(last) or 0
        assert fire.through is None or (fire.missed is not None and fire is due.fires[0])
    assert at == due.next_fire_at
    run_late = [fire for fire in due.fires if fire.late and not fire.missed]
    assert len(run_late) <= {CatchUp.NONE: 0, CatchUp.COMPACT: 1, CatchUp.FULL: cap}[mode]
    assert all(now - fire.at <= round(window * SECOND) for fire in run_late)
    on_time = [fire for fire in due.fires if not fire.late and not fire.missed]
    assert all(now - fire.at <= round(grace * SECOND) for fire in on_time)
    assert on_time in ([], due.fires[-1:]), "only the latest can be on time"
    if mode is not CatchUp.FULL:
        assert len(run_late) + len(on_time) <= 1


# --- a long outage of a frequent task ------------------------------------------------------------------


@pytest.mark.parametrize("days", [1, 3650])
def test_after_a_long_outage_one_row_stands_for_all_but_the_latest(days: int) -> None:
    schedule = CronSchedule(Cron.parse("* * * * * *"), zone_named("UTC"))
    now = START + days * 86400 * SECOND
    due = due_fires(schedule, START, now, Policy(catch_up=CatchUp.FULL, catch_up_window=1e9))
    many, rest = due.fires[0], due.fires[1:]
    assert (many.at, many.missed is not None) == (START, True)
    assert many.through is not None and schedule.next(many.through) == rest[0].at
    assert [fire.at for fire in rest] == list(range(rest[0].at, now + 1, SECOND))
    most = MOST_ROWS + Policy().catch_up_cap
    assert most <= len(rest) <= 2 * most
    assert (
        many.missed == f"missed in a long outage: this row stands for every fire up to the last {len(rest)}"
    )
    late = [fire for fire in rest if fire.late]
    assert [fire.missed is None for fire in late] == [False] * (len(late) - 100) + [True] * 100
    assert due.next_fire_at == now + SECOND


def test_a_schedule_that_was_busy_long_ago_and_quiet_since_still_catches_up() -> None:
    """Every second on 15 January only; the outage began then and ends in March."""
    schedule = CronSchedule(Cron.parse("* * * 15 1 *"), zone_named("UTC"))
    now = round(datetime(2027, 3, 1, tzinfo=UTC).timestamp()) * SECOND
    policy = Policy(catch_up=CatchUp.FULL, catch_up_window=1e9, catch_up_cap=5)
    due = due_fires(schedule, START, now, policy)
    midnight = round(datetime(2027, 1, 16, tzinfo=UTC).timestamp()) * SECOND
    assert [fire.at for fire in due.fires if not fire.missed] == [
        midnight - n * SECOND for n in range(5, 0, -1)
    ]
    assert due.next_fire_at == round(datetime(2028, 1, 15, tzinfo=UTC).timestamp()) * SECOND


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 30), st.integers(0, 86400))
def test_an_uneven_schedule_loses_no_fire_either(seconds: int, hours: int, lag: int) -> None:
    """Some seconds of each minute, some hours of each day: bursts and silences."""
    schedule = CronSchedule(Cron.parse(f"0-{seconds} * 0-{hours % 24} * * *"), zone_named("UTC"))
    first = schedule.next(START) or 0
    now = first + lag * SECOND
    due = due_fires(schedule, first, now, Policy(catch_up=CatchUp.NONE))
    told = sum(1 for fire in due.fires if fire.through is None)
    if due.fires[0].through is not None:
        until = due.fires[0].through
        told += 1 + sum(1 for _ in takewhile(lambda at: at <= until, schedule.fires(first)))
    assert told == 1 + sum(1 for _ in takewhile(lambda at: at <= now, schedule.fires(first)))
