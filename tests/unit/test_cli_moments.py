"""Times as people write them, also on the days when clocks change; and bars of text."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import click
import pytest

from fusee.surfaces.cli.moments import away, local_text, moment
from fusee.tasks.cli.explain import pointed
from fusee.tasks.cli.simulate import Bar, bars, lanes, marks
from fusee.tasks.cron import Cron, CronError
from fusee.values.durations import duration_text, seconds_from
from fusee.values.times import iso

BERLIN = ZoneInfo("Europe/Berlin")
NOW = 1_800_000_000_500_000
"""2027-01-15T08:00:00.5Z: nine in the morning in Berlin."""


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-01-31T03:00:00Z", "2027-01-31T03:00:00Z"),
        ("2027-01-31T03:00:00+05:30", "2027-01-30T21:30:00Z"),
        ("2027-01-31T03:00", "2027-01-31T02:00:00Z"),
        ("2027-07-31 03:00:15", "2027-07-31T01:00:15Z"),
        ("2027-01-31", "2027-01-30T23:00:00Z"),
        ("03:00", "2027-01-15T02:00:00Z"),
        ("3:00:15", "2027-01-15T02:00:15Z"),
        ("now", "2027-01-15T08:00:00Z"),
        ("-5m", "2027-01-15T07:55:00Z"),
        (" -1h30m", "2027-01-15T06:30:00Z"),
        ("+1d", "2027-01-16T08:00:00Z"),
    ],
)
def test_a_time_is_on_the_clocks_of_its_zone(text: str, instant: str) -> None:
    assert iso(moment(text, BERLIN, NOW, "TIME")) == instant


@pytest.mark.parametrize("text", ["2027-03-28 02:00", "2027-03-28 02:30", "2027-03-28 02:59:59"])
def test_what_clocks_skip_is_right_after_the_gap(text: str) -> None:
    """There a task fires that was due in it: so `explain` finds it."""
    at = moment(text, BERLIN, NOW, "TIME")
    assert iso(at) == "2027-03-28T01:00:00Z"
    assert Cron.parse("30 2 * * *").matches(at, BERLIN)


def test_of_two_that_clocks_repeat_it_is_the_first() -> None:
    assert iso(moment("2027-10-31 02:30", BERLIN, NOW, "TIME")) == "2027-10-31T00:30:00Z"


@pytest.mark.parametrize("text", ["", "then", "-", "-5x", "24:00", "2027-02-30", "1800000000", "99999-01-01"])
def test_what_is_no_time_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write a time such as"):
        moment(text, BERLIN, NOW, "TIME")


def test_times_are_read_with_their_zone_and_distance() -> None:
    assert local_text(1_800_000_000_000_000, BERLIN) == "Fri 2027-01-15 09:00:00 CET"
    assert local_text(1_800_000_000_000_001, BERLIN) == "Fri 2027-01-15 09:00:00.000001 CET"
    assert away(NOW + 12_000_000, NOW) == "in 12s"
    assert away(NOW - 185_000_000, NOW) == "3m05s ago"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (15, "15s"),
        (5400, "1h30m"),
        (86400, "1d"),
        (90061, "1d1h1m1s"),
        (0.5, "0.5s"),
        (1.5, "1.5s"),
    ],
)
def test_a_duration_as_a_person_would_write_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert seconds_from(text, "it") == seconds


def test_the_caret_stands_under_the_field() -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse("0  25 * * *")
    _, written, caret = pointed("0  25 * * *", refused.value).splitlines()
    assert caret.index("^^") == written.index("25")


def test_what_goes_on_at_a_time_has_a_row_each() -> None:
    rows = lanes([Bar(0, 10), Bar(5, 15), Bar(10, 20), Bar(15, 20)])
    assert rows == [[Bar(0, 10), Bar(10, 20)], [Bar(5, 15), Bar(15, 20)]]


def test_a_cell_is_as_high_as_its_share_of_time() -> None:
    assert bars([Bar(0, 20), Bar(25, 30), Bar(40, 41)], 0, 50, 5) == "██▄ ▁"
    assert marks([0, 12, 50], 0, 50, 5, "×") == "××  ×"
