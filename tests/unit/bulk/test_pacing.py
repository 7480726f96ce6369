"""Slots of an exact rate, a speed that forgets, a concurrency that finds its level."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.model.pacing import MICROSECONDS, Aimd, Slot, decayed, even_share, reserve

RATES = st.floats(0.01, 1e6)
ASKS = st.lists(st.tuples(st.integers(0, 500_000), st.integers(1, 5000)), min_size=1, max_size=60)


@given(rate=RATES, asks=ASKS)
def test_no_stretch_of_time_holds_more_starts_than_the_rate_allows(
    rate: float, asks: list[tuple[int, int]]
) -> None:
    """Whoever asks, whenever, for however many: between the first and the last start lie enough seconds."""
    now = at = 0
    slots: list[Slot] = []
    for later, count in asks:
        now += later
        slot, at = reserve(rate, at, now, count, now + 2 * MICROSECONDS)
        if slot is not None:
            assert slot.begin >= now
            slots.append(slot)
    for earlier, after in itertools.pairwise(slots):
        assert after.begin >= earlier.end, "two slots overlap"
    started = 0
    for slot in slots:
        took = slot.time_of(slot.count - 1) - slots[0].begin
        started += slot.count
        assert started - 1 <= took * rate / MICROSECONDS + 1e-6 * started + 1


@given(rate=st.floats(1, 1e5), askers=st.integers(1, 5))
def test_those_who_ask_in_time_get_all_of_the_rate(rate: float, askers: int) -> None:
    """Each asks for its part of a second when its slot begins: the slots join without a gap."""
    at = now = 0
    slots: list[Slot] = []
    turns: list[tuple[int, int]] = [(0, asker) for asker in range(askers)]
    while now < 20 * MICROSECONDS:
        turns.sort()
        now, asker = turns.pop(0)
        count = max(1, even_share(int(rate), askers, asker))
        slot, at = reserve(rate, at, now, count, now + 10 * MICROSECONDS)
        assert slot is not None
        slots.append(slot)
        turns.append((slot.begin, asker))
    for earlier, after in itertools.pairwise(slots):
        assert after.begin == earlier.end


@given(rate=RATES, count=st.integers(1, 10_000), now=st.integers(0, 10 * MICROSECONDS))
def test_a_slot_lets_its_starts_go_one_after_the_other(rate: float, count: int, now: int) -> None:
    slot = Slot(0, count, rate)
    due = slot.due(now)
    assert 1 <= due <= count
    assert slot.time_of(due - 1) <= now + 1
    if due < count:
        assert slot.time_of(due + 1) > now
    assert slot.due(-1) == 0


def test_a_slow_rate_gives_one_at_a_time_and_what_is_ahead_is_bounded() -> None:
    slot, at = reserve(0.1, 0, 1000, 50, 1000 + 2 * MICROSECONDS)
    assert slot == Slot(1000, 1, 0.1)
    assert at == 1000 + 10 * MICROSECONDS
    assert reserve(0.1, at, 2000, 50, 2000 + 2 * MICROSECONDS) == (None, at)
    assert reserve(100.0, 0, 0, 10_000, 2 * MICROSECONDS)[0] == Slot(0, 200, 100.0)


def test_what_was_not_asked_for_in_time_is_lost() -> None:
    slot, _ = reserve(10.0, 0, 3600 * MICROSECONDS, 10, 3602 * MICROSECONDS)
    assert slot is not None and slot.begin == 3600 * MICROSECONDS


@given(total=st.integers(0, 10_000), among=st.integers(1, 50))
def test_shares_add_up_and_differ_by_one_at_most(total: int, among: int) -> None:
    shares = [even_share(total, among, rank) for rank in range(among)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@given(per_second=st.integers(0, 100_000), parts=st.integers(1, 10))
def test_the_speed_comes_to_what_is_done(per_second: int, parts: int) -> None:
    """However many report, and in whatever portions."""
    speed = 0.0
    for _ in range(60):
        for part in range(parts):
            speed = decayed(speed, 1.0 if part == 0 else 0.0, even_share(per_second, parts, part))
    assert speed == pytest.approx(per_second, rel=0.12, abs=0.01)


def test_a_speed_is_forgotten() -> None:
    assert decayed(1000.0, 60.0, 0) < 0.01


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.floats(0, 10)), max_size=60))
def test_concurrency_stays_within_its_bounds(seen: list[tuple[int, int, float]]) -> None:
    aimd = Aimd(most=40)
    for ended, failed, latency in seen:
        before = aimd.allowed
        allowed = aimd.observe(ended, min(failed, ended), latency)
        assert 1 <= allowed <= 40
        if ended and min(failed, ended) / ended > 0.5:
            assert allowed <= before, "grew while half of everything failed"


def test_concurrency_grows_while_all_is_well_and_backs_off_when_it_gets_slow() -> None:
    aimd = Aimd(most=100)
    for _ in range(60):
        aimd.observe(100, 0, 0.01)
    assert aimd.allowed == 100
    aimd.observe(100, 0, 0.05)
    assert aimd.allowed == 70
    aimd.observe(100, 50, 0.01)
    assert aimd.allowed == 49
    assert aimd.observe(0, 0, 0.0) == 49, "nothing ended: nothing is known"


def test_what_became_slow_for_good_is_believed_in_the_end() -> None:
    aimd = Aimd(most=50, limit=50.0)
    aimd.observe(10, 0, 0.01)
    for _ in range(200):
        aimd.observe(10, 0, 0.1)
    assert aimd.allowed == 50
