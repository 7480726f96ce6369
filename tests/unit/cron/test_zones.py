"""The offsets of time zones, against the files of the tz database; and zones that did strange things."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from io import BytesIO
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron, zones
from fusee.tasks.cron.zones import EARLIEST, LATEST, Offsets
from tests.unit.cron.oracle import instant
from tests.unit.cron.test_daylight_saving import Wanted, engine, expressions, walk, walls

RESTLESS = [
    *("Africa/Freetown", "America/Boa_Vista", "Asia/Gaza", "Africa/Casablanca", "Europe/Riga"),
    *("Pacific/Apia", "Pacific/Kwajalein", "Asia/Manila", "America/Juneau", "Antarctica/Troll"),
]


@lru_cache
def contents() -> dict[str, bytes]:
    """Each different zone of the database once."""
    root = resources.files("tzdata.zoneinfo")
    names = resources.files("tzdata").joinpath("zones").read_text().split()
    files = {name: root.joinpath(*name.split("/")).read_bytes() for name in sorted(names)}
    return {name: data for data, name in {data: name for name, data in files.items()}.items()}


def changes(data: bytes) -> list[tuple[int, int]]:
    """When the offset changes, and to what: the second half of a TZif file (RFC 8536)."""

    def header(at: int) -> tuple[int, ...]:
        assert data[at : at + 4] == b"TZif"
        return struct.unpack(">6l", data[at + 20 : at + 44])

    isutc, isstd, leaps, times, types, letters = header(0)
    second = 44 + times * 5 + types * 6 + letters + leaps * 8 + isstd + isutc
    _, _, _, times, types, _ = header(second)
    at = second + 44
    instants = struct.unpack(f">{times}q", data[at : at + 8 * times])
    kinds = data[at + 8 * times : at + 9 * times]
    offsets = [struct.unpack_from(">l", data, at + 9 * times + 6 * kind)[0] for kind in range(types)]
    found, before = [], offsets[0]
    for when, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != before:
            found.append((when, offsets[kind]))
        before = offsets[kind]
    return found


def same_changes(data: bytes, since: int) -> None:
    offsets = Offsets(ZoneInfo.from_file(BytesIO(data)))
    for when, ahead in changes(data):
        if when > since:
            after, before = offsets.at(when), offsets.at(when - 1)
            assert (after.start, after.offset) == (when, ahead)
            assert before.end == when and before.offset != ahead
            assert after.seen >= when + before.offset


def test_no_two_changes_are_within_a_day() -> None:
    """What the survey of a zone relies on; a new release of the database may end it."""
    for name, data in contents().items():
        for (earlier, _), (later, _) in pairwise(changes(data)):
            assert later - earlier > 2 * 86_400, name


def test_every_change_since_2000_in_every_zone() -> None:
    for data in contents().values():
        same_changes(data, instant(2000, 1, 1))


@pytest.mark.parametrize("name", RESTLESS)
def test_every_change_in_zones_that_had_many(name: str) -> None:
    same_changes(resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).read_bytes(), EARLIEST)


@given(
    st.sampled_from(["Europe/Berlin", "Africa/Casablanca", "Asia/Gaza"]), st.integers(EARLIEST, LATEST - 1)
)
@settings(max_examples=100, deadline=None)
def test_the_offset_at_any_instant(name: str, second: int) -> None:
    zone = ZoneInfo(name)
    stretch = Offsets(zone).at(second)
    assert stretch.start <= second < stretch.end
    utc = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    assert utc.astimezone(zone).utcoffset() == timedelta(seconds=stretch.offset)


def fires(name: str, expression: str, after: datetime, count: int) -> list[str]:
    zone = ZoneInfo(name)
    start = (after.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    found = islice(Cron.parse(expression).fires(start, zone), count)
    utc = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at) for at in found)
    return [at.astimezone(zone).isoformat() for at in utc]


def test_a_day_that_samoa_skipped() -> None:
    """30 December 2011 did not happen in Apia: its nine o'clock comes once, as the 31st begins."""
    assert fires("Pacific/Apia", "0 9 * * *", datetime(2011, 12, 29, 12), 4) == [
        "2011-12-29T09:00:00-10:00",
        "2011-12-31T00:00:00+14:00",
        "2011-12-31T09:00:00+14:00",
        "2012-01-01T09:00:00+14:00",
    ]
    assert fires("Pacific/Apia", "0 9 30 12 *", datetime(2011, 12, 29, 12), 2) == [
        "2011-12-31T00:00:00+14:00",
        "2012-12-30T09:00:00+14:00",
    ]
    assert fires("Pacific/Apia", "0 * 30 12 *", datetime(2011, 12, 29, 12), 1) == [
        "2012-12-30T00:00:00+14:00"
    ]


def test_a_day_that_alaska_had_twice() -> None:
    """In 1867 clocks went back by a day, at 15:33 on the 19th: Russia's calendar gave way to America's."""
    once = fires("America/Juneau", "0 9 * * *", datetime(1867, 10, 17, 12), 3)
    assert [at[:16] for at in once] == ["1867-10-18T09:00", "1867-10-19T09:00", "1867-10-20T09:00"]
    twice = fires("America/Juneau", "0 9/24 * * *", datetime(1867, 10, 17, 12), 4)
    assert [at[8:16] for at in twice] == ["18T09:00", "19T09:00", "19T09:00", "20T09:00"]


apia = instant(2011, 12, 30, 10)


@given(expressions(seconds=False))
@settings(max_examples=60, deadline=None)
def test_a_whole_day_missing_minute_by_minute(wanted: Wanted) -> None:
    zone = ZoneInfo("Pacific/Apia")
    start, end = apia - 86_400, apia + 86_400
    clock = list(walls(zone, start, end, 60))
    assert engine(wanted.text, zone, start, end) == walk(wanted, clock, 60)


@pytest.mark.parametrize("name", ["Europe/Amsterdam", "Africa/Monrovia", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("expression", ["0 * * * *", "30 2 * * *", "*/20 * * * * *", "0 0 L * *"])
def test_local_mean_time_has_odd_seconds(name: str, expression: str) -> None:
    """Before zones, noon was the sun's: offsets such as +00:19:32."""
    zone, cron = ZoneInfo(name), Cron.parse(expression)
    for year in (1, 1800, 1883, 1937, 1971):
        found = fires(name, expression, datetime(year, 1, 3), 20)
        assert len(set(found)) == 20 and sorted(found) == found
        for at in found:
            local = datetime.fromisoformat(at)
            assert local.second % 20 == 0
            since = (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            assert cron.matches(since, zone)


@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin"])
@pytest.mark.parametrize("expression", ["* * * * * *", "30 2 * * *", "0 0 L 12 *", "0 0 29 2 *"])
def test_the_calendar_ends(name: str, expression: str) -> None:
    zone, cron = ZoneInfo(name), Cron.parse(expression)
    assert cron.next(LATEST * 1_000_000, zone) is None
    assert cron.next(10**30, zone) is None
    last = [*cron.fires((LATEST - 30) * 1_000_000, zone)]
    assert all(at < LATEST * 1_000_000 for at in last)
    assert len(last) == (29 if expression == "* * * * * *" else 0)
    first = cron.next(-(10**30), zone)
    assert first is not None and first >= EARLIEST * 1_000_000


def test_blocks_are_forgotten_but_still_right() -> None:
    offsets = Offsets(ZoneInfo("Europe/Berlin"))
    years = [instant(year, 7, 1) for year in range(2000, 2400)]
    assert {offsets.at(second).offset for second in years} == {7200}
    assert len(offsets._blocks) <= 256


@pytest.mark.parametrize("expression", ["37 2 * * *", "0,15,30,45 1-3 * * *", "*/20 * * * *"])
def test_where_a_block_ends_does_not_matter(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 23 minutes, so that many end inside the repeated hour."""
    zone = ZoneInfo("Europe/Berlin")
    for change in (instant(2026, 3, 29, 1), instant(2026, 10, 25, 1)):
        whole = engine(expression, zone, change - 7200, change + 7200)
        with monkeypatch.context() as patched:
            patched.setattr(zones, "_BLOCK", 23 * 60)
            for start in range(change - 7200, change + 7200, 600):
                cut = engine(expression, ZoneInfo.no_cache("Europe/Berlin"), start, change + 7200)
                assert cut == [at for at in whole if at > start]
