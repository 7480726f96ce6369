"""What is read, what it becomes, and what is refused with which words."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from fusee.tasks.cron import Cron, CronError

NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
FIELDS = "minute, hour, day of month, month, day of week"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("*/5 * * * *", "0 */5 * * * *"),
        ("  0\t9 *  * mon-Fri\n", "0 0 9 * * MON-FRI"),
        ("30 0 9 ? jan lw", None),
        ("0 0 9 lw jan ?", "0 0 9 LW JAN ?"),
        ("0 0 9 L-3,15w * ?", "0 0 9 L-3,15W * ?"),
        ("0 0 * * fril,5#5", "0 0 0 * * FRIL,5#5"),
        ("@yearly", "0 0 0 1 1 *"),
        ("@annually", "0 0 0 1 1 *"),
        ("@monthly", "0 0 0 1 * *"),
        ("@weekly", "0 0 0 * * 0"),
        ("@Daily", "0 0 0 * * *"),
        (" @midnight ", "0 0 0 * * *"),
        ("@hourly", "0 0 * * * *"),
        ("@every_minute", "0 * * * * *"),
        ("@every_second", "* * * * * *"),
    ],
)
def test_normalised_to_six_fields(written: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(CronError):
            Cron.parse(written)
        return
    cron = Cron.parse(written)
    assert cron.text == text
    assert Cron.parse(cron.text) == cron == Cron(written)


@pytest.mark.parametrize(
    ("expression", "message", "field", "position"),
    [
        # A value, a step or a name that does not fit.
        ("0 61 * * * *", "minute 61 is not in 0-59 (field 2)", "minute", 2),
        ("61 * * * *", "minute 61 is not in 0-59 (field 1)", "minute", 1),
        ("60 * * * * *", "second 60 is not in 0-59 (field 1)", "second", 1),
        ("0 24 * * *", "hour 24 is not in 0-23 (field 2)", "hour", 2),
        ("0 0 0 * *", "day of month 0 is not in 1-31 (field 3)", "day of month", 3),
        ("0 0 32W * *", "day of month 32 is not in 1-31 (field 3)", "day of month", 3),
        ("0 0 * 13 *", "month 13 is not in 1-12 (field 4)", "month", 4),
        ("0 0 * 0 *", "month 0 is not in 1-12 (field 4)", "month", 4),
        ("0 0 * * 8", "day of week 8 is not in 0-7 (field 5)", "day of week", 5),
        ("0 0 0 * * 8", "day of week 8 is not in 0-7 (field 6)", "day of week", 6),
        ("0 0 * * 8L", "day of week 8 is not in 0-7 (field 5)", "day of week", 5),
        ("0 0 * foo *", 'month "FOO" is not a number in 1-12 or JAN-DEC (field 4)', "month", 4),
        (
            "0 0 * * monday",
            'day of week "MONDAY" is not a number in 0-7 or SUN-SAT (field 5)',
            "day of week",
            5,
        ),
        ("0 0 mon * *", 'day of month "MON" is not a number in 1-31 (field 3)', "day of month", 3),
        ("-5 * * * *", 'minute "" is not a number in 0-59 (field 1)', "minute", 1),
        ("1-2-3 * * * *", 'minute "2-3" is not a number in 0-59 (field 1)', "minute", 1),
        ("+5 * * * *", 'minute "+5" is not a number in 0-59 (field 1)', "minute", 1),
        ("1.5 * * * *", 'minute "1.5" is not a number in 0-59 (field 1)', "minute", 1),
        ("** * * * *", 'minute "**" is not a number in 0-59 (field 1)', "minute", 1),
        ("*/0 * * * *", "minute step 0 is not in 1-60 (field 1)", "minute", 1),
        ("*/90 * * * *", "minute step 90 is not in 1-60 (field 1)", "minute", 1),
        ("0 */25 * * *", "hour step 25 is not in 1-24 (field 2)", "hour", 2),
        ("0 0 * * */8", "day of week step 8 is not in 1-7 (field 5)", "day of week", 5),
        ("*/x * * * *", 'minute step "X" is not a number (field 1)', "minute", 1),
        ("*/ * * * *", 'minute step "" is not a number (field 1)', "minute", 1),
        ("*/2/3 * * * *", 'minute step "2/3" is not a number (field 1)', "minute", 1),
        ("1,,2 * * * *", 'minute "1,,2" has a comma with nothing beside it (field 1)', "minute", 1),
        (", * * * *", 'minute "," has a comma with nothing beside it (field 1)', "minute", 1),
        # The days.
        (
            "0 0 25-5 * *",
            "day of month range 25-5 runs backwards; write 25-31,1-5 (field 3)",
            "day of month",
            3,
        ),
        ("0 0 L-31 * *", "day of month L-31: 31 is not in 1-30 (field 3)", "day of month", 3),
        ("0 0 L-0 * *", "day of month L-0: 0 is not in 1-30 (field 3)", "day of month", 3),
        ("0 0 1-5W * *", 'day of month "5W" is not a number in 1-31 (field 3)', "day of month", 3),
        ("0 0 W * *", 'day of month "W" is not a number in 1-31 (field 3)', "day of month", 3),
        ("0 0 L/2 * *", 'day of month "L" is not a number in 1-31 (field 3)', "day of month", 3),
        ("0 0 * * fri#6", 'day of week "FRI#6": a month has weekdays #1 to #5 (field 5)', "day of week", 5),
        ("0 0 * * fri#", 'day of week "FRI#": a month has weekdays #1 to #5 (field 5)', "day of week", 5),
        (
            "0 0 * * mon-fri#2",
            'day of week "MON-FRI" is not a number in 0-7 or SUN-SAT (field 5)',
            "day of week",
            5,
        ),
        (
            "0 0 * * L",
            'day of week "L" needs a weekday: 5L or FRIL is the last Friday of the month (field 5)',
            "day of week",
            5,
        ),
        ("0 L * * *", 'hour "L" is not a number in 0-23 (field 2)', "hour", 2),
        ("0 ? * * *", 'hour takes no "?", only the two day fields do; write * (field 2)', "hour", 2),
        ("0 0 ?/2 * *", 'day of month "?" is not a number in 1-31 (field 3)', "day of month", 3),
    ],
)
def test_a_refusal_points_at_the_field(expression: str, message: str, field: str, position: int) -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse(expression)
    assert str(refused.value) == f'cron "{expression}": {message}'
    assert (refused.value.field, refused.value.position) == (field, position)


@pytest.mark.parametrize(
    ("expression", "reason", "position"),
    [
        ("0 0 31 2 *", "31 is not a day of February", 3),
        ("0 0 0 30 2 ?", "30 is not a day of February", 4),
        ("0 0 L-30 2 *", "L-30 is not a day of February", 3),
        ("0 0 L-29 2 *", "L-29 is not a day of February", 3),
        ("0 0 30,31 2 *", "30, 31 are not days of February", 3),
        ("0 0 30-31 feb ?", "30-31 is not a day of February", 3),
        ("0 0 31W 4,6 *", "31W is not a day of April or June", 3),
        ("0 0 31 2,4,6,9,11 *", "31 is not a day of February, April, June, September or November", 3),
        # Debian's rule makes these "and": one field starts with a star.
        ("0 0 */31 * mon#2", "no day of any month is both */31 in day of month and MON#2 in day of week", 3),
        ("0 0 */30 2 1#5", "no day of February is both */30 in day of month and 1#5 in day of week", 3),
    ],
)
def test_what_can_never_fire_is_refused(expression: str, reason: str, position: int) -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse(expression)
    assert str(refused.value) == f'cron "{expression}" never fires: {reason}'
    assert (refused.value.field, refused.value.position) == ("day of month", position)


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("0 0 29 2 *", "2028-02-29"),
        ("0 0 L 2 *", "2026-02-28"),
        ("0 0 L-28 2 *", "2028-02-01"),
        ("0 0 29W 2 *", "2028-02-29"),
        ("0 0 * 2 mon#5", "2044-02-29"),
        # "or": the impossible day does not stop the weekday.
        ("0 0 31 2 mon", "2026-02-02"),
        # Rare, but not never: a 29th of February on a Sunday; 2100 is no leap year.
        ("0 0 */28 2 sun#5", "2032-02-29"),
    ],
)
def test_what_is_only_rare_is_read(expression: str, first: str) -> None:
    at = Cron.parse(expression).next(NEW_YEAR, ZoneInfo("UTC"))
    assert at is not None
    assert datetime.fromtimestamp(at / 1_000_000, UTC).date().isoformat() == first


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "cron is empty; every day at nine is 0 9 * * *"),
        (" \n", "cron is empty; every day at nine is 0 9 * * *"),
        ("*", f'cron "*" has 1 field; it takes 5 ({FIELDS}), or 6 with the second in front'),
        ("* * *", f'cron "* * *" has 3 fields; it takes 5 ({FIELDS}), or 6 with the second in front'),
        (
            "0 0 9 * * ? 2026",
            'cron "0 0 9 * * ? 2026" has 7 fields (a year, as in Quartz, is not supported);'
            f" it takes 5 ({FIELDS}), or 6 with the second in front",
        ),
        ("@reboot", 'cron "@reboot": nothing here reboots; give the times, or trigger the task by hand'),
        ("@every 5m", 'cron "@every 5m": that is an interval, not a cron expression'),
        (
            "@noon",
            'cron "@noon" is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly,'
            " @every_minute, @every_second",
        ),
    ],
)
def test_a_line_that_is_wrong_as_a_whole(expression: str, message: str) -> None:
    with pytest.raises(CronError) as refused:
        Cron.parse(expression)
    assert str(refused.value) == message
    assert (refused.value.field, refused.value.position) == (None, None)


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"] * 5, object()])
def test_only_text_is_read(value: object) -> None:
    with pytest.raises(CronError, match="a cron expression is text, not "):
        Cron.parse(value)  # type: ignore[arg-type]


def test_an_error_is_a_value_error_and_survives_pickling() -> None:
    with pytest.raises(ValueError) as refused:
        Cron.parse("61 * * * *")
    again = pickle.loads(pickle.dumps(refused.value))
    assert (str(again), again.field, again.position) == (str(refused.value), "minute", 1)


def test_equal_hashable_and_copied() -> None:
    cron = Cron.parse("0 9 * * mon")
    assert cron == Cron.parse("0 0 9 * * MON") != Cron.parse("0 9 * * tue")
    assert len({cron, Cron("0 0 9 * * mon")}) == 1
    assert repr(cron) == "Cron(text='0 0 9 * * MON')"
    for twin in (copy.deepcopy(cron), pickle.loads(pickle.dumps(cron))):
        assert twin == cron
        assert twin.next(NEW_YEAR, ZoneInfo("UTC")) == cron.next(NEW_YEAR, ZoneInfo("UTC"))


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 5-7", "0 0 * * fri,sat,sun"),
        ("0 0 * * sat-sun", "0 0 * * 6,0"),
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * * 7-2", "0 0 * * sun,mon,tue"),
        ("0 0 * * 7-7", "0 0 * * sun"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * mon-5", "0 0 * * 1-5"),
        ("0 0 * * 1/2", "0 0 * * mon,wed,fri,sun"),
        ("0 0 * * fri-tue/2", "0 0 * * fri,sun,tue"),
        ("0 0 * * 7#1", "0 0 * * sun#1"),
        ("0 0 * * 7L", "0 0 * * SUNL"),
        ("0 22-6/2 * * *", "0 22,0,2,4,6 * * *"),
        ("50-10/5 * * * *", "50,55,0,5,10 * * * *"),
        ("0 0 1 nov-feb *", "0 0 1 11,12,1,2 *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("10-30/10 * * * *", "10,20,30 * * * *"),
        ("0 0 */10 * *", "0 0 1,11,21,31 * *"),
        ("0 0 L-0030 * *", "0 0 L-30 * *"),
        ("07 08 * * *", "7 8 * * *"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 0 1,1,1 * *", "0 0 1 * *"),
    ],
)
def test_two_ways_to_write_the_same(expression: str, same: str) -> None:
    zone = ZoneInfo("UTC")
    found, expected = (islice(Cron.parse(e).fires(NEW_YEAR, zone), 60) for e in (expression, same))
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("expression", "fixed"),
    [
        ("30 2 * * *", True),
        ("0,30 2 * * *", True),
        ("0 1-5 * * *", True),
        ("*/15 0 2 * * *", True),
        ("* 30 2 * * *", True),
        ("@daily", True),
        ("* 2 * * *", False),
        ("30 * * * *", False),
        ("*/30 2 * * *", False),
        ("0/30 2 * * *", False),
        ("0 1-5/2 * * *", False),
        ("0 0-23 * * *", False),
        ("0-59 2 * * *", False),
        ("@hourly", False),
    ],
)
def test_fixed_or_a_rhythm(expression: str, fixed: bool) -> None:
    assert Cron.parse(expression).fixed is fixed
