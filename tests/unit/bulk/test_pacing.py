"""A rate shared between segments, a speed that forgets, a concurrency that finds its level."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.bulk.model.pacing import (
    GRANT_LASTS,
    HEADROOM,
    HOLD,
    MICROSECONDS,
    RENEW_EVERY,
    SHARED_LASTS,
    UNLIMITED,
    Aimd,
    Grant,
    RatePart,
    decayed,
    even_share,
    fair_parts,
    grant,
    rate_from,
    rate_shown,
)

NUMBERS = st.integers(0, 30)
WANTS = st.none() | st.floats(0, 2000)
PARTS = st.builds(
    RatePart,
    pace=st.floats(0, 500),
    until=st.sampled_from([0, 500, 1000, 1001, 5000]),
    wants=WANTS,
    worker=st.integers(0, 3),
)


@given(rate=st.floats(0.001, 1e6), wants=st.dictionaries(NUMBERS, WANTS, min_size=1))
def test_fair_parts_add_up_and_nobody_has_less_than_who_wants_less(
    rate: float, wants: dict[int, float | None]
) -> None:
    parts = fair_parts(rate, wants)
    assert sum(parts.values()) <= rate * (1 + 1e-9)
    for key, part in parts.items():
        wish = wants[key]
        assert wish is None or part <= wish
        if wish is None or part < wish:  # it wants more: then nobody has more than it
            assert part >= max(parts.values()) * (1 - 1e-9)
    if any(wish is None for wish in wants.values()):
        assert sum(parts.values()) == pytest.approx(rate)


def asked(
    rate: float,
    others: dict[int, RatePart],
    *,
    wants: float | None = None,
    until: int = 0,
    worker: int = 0,
    now: int = 1000,
    latency: float | None = 0.0,
) -> Grant:
    """What segment 99 gets; it belongs to this worker."""
    mine = RatePart(pace=0.0, until=until, wants=wants, worker=worker)
    return grant(rate, others, 99, mine, now, first_at=now, latency=latency)


@given(
    rate=st.floats(0.001, 1e6),
    others=st.dictionaries(NUMBERS, PARTS),
    wants=WANTS,
    until=st.sampled_from([0, 500, 2000]),
)
def test_a_part_never_takes_what_others_hold(
    rate: float, others: dict[int, RatePart], wants: float | None, until: int
) -> None:
    given_ = asked(rate, others, wants=wants, until=until)
    alive = {part.worker for part in others.values() if part.until > 1000}
    if until > 1000:
        alive.add(0)
    held = sum(part.pace for part in others.values() if part.worker in alive)
    assert 0 <= given_.pace <= given_.fair <= rate
    assert given_.lapsed == (0 not in alive)
    if held <= rate:  # the headroom of the others is all that may be given twice
        assert given_.pace + held <= rate * HEADROOM * (1 + 1e-9)


def test_a_grant_is_short_when_other_workers_would_have_to_wait_for_it() -> None:
    soon = RatePart(pace=50.0, until=400_000, wants=None, worker=2)
    late = RatePart(pace=25.0, until=500_000, wants=None, worker=3)
    own = RatePart(pace=25.0, until=300_000, wants=None, worker=0)
    alone = asked(100.0, {1: own})
    assert (alone.until, alone.free_at) == (1000 + GRANT_LASTS, None)
    beside = asked(100.0, {1: own, 2: soon, 3: late})
    assert (beside.until, beside.free_at) == (1000 + SHARED_LASTS, 400_000)
    slow = asked(4.0, {2: soon})
    assert (slow.until, slow.free_at) == (1000 + GRANT_LASTS, None)
    old = asked(100.0, {2: soon}, latency=None)
    assert (old.until, old.free_at) == (1000 + GRANT_LASTS, None)


@pytest.mark.parametrize(("latency", "longer"), [(0.1, 200_000), (1.5, 3_000_000), (60.0, 4_000_000)])
def test_a_grant_lasts_longer_when_answers_take_long(latency: float, longer: int) -> None:
    other = RatePart(pace=50.0, until=400_000, wants=None, worker=2)
    assert asked(100.0, {2: other}, latency=latency).until == 1000 + SHARED_LASTS + longer
    assert asked(100.0, {}, latency=latency).until == 1000 + GRANT_LASTS + longer


def test_a_worker_holds_all_of_its_parts_as_long_as_it_is_heard_from() -> None:
    quiet = RatePart(pace=50.0, until=500, wants=None, worker=2)
    heard = RatePart(pace=20.0, until=2000, wants=None, worker=2)
    assert asked(100.0, {1: quiet, 2: heard}).pace == 30.0
    assert asked(100.0, {1: quiet, 2: heard}, now=3000).pace == 100.0


def test_parts_that_ran_out_do_not_come_back_with_their_worker() -> None:
    """Others may have got them meanwhile."""
    quiet = RatePart(pace=50.0, until=500, wants=None, worker=0)
    other = RatePart(pace=100.0, until=2000, wants=None, worker=2)
    back = asked(100.0, {1: quiet, 2: other}, until=600)
    assert back.lapsed and back.pace == 0.0 and back.fair == pytest.approx(100 / 3)
    assert not asked(100.0, {1: quiet, 2: other}, until=1500).lapsed
    assert asked(100.0, {1: quiet}, until=600).pace == 50.0, "an even part: the other asks as well"


def test_those_who_ask_in_turn_come_to_fair_parts() -> None:
    """Two that want all, one that wants 10, and one that was lost while it held all of the rate."""
    wants: dict[int, float | None] = {0: None, 1: None, 2: 10.0}
    parts = {9: RatePart(pace=100.0, until=MICROSECONDS // 2, wants=None, worker=9)}
    for turn in range(48):
        for number, wish in wants.items():
            now = turn * RENEW_EVERY + number * 1000
            before = parts.pop(number, RatePart(pace=0.0, until=0, wants=None, worker=number))
            mine = replace(before, wants=wish)
            made = grant(100.0, parts, number, mine, now, first_at=now, latency=0.0)
            parts[number] = replace(mine, pace=made.pace, until=made.until)
        if turn == 1:
            assert sum(parts[number].pace for number in wants) == 0, "what is held is held"
    assert parts[0].pace == pytest.approx(45, rel=0.02)
    assert parts[1].pace == pytest.approx(45, rel=0.02)
    assert 10 <= parts[2].pace <= 10 * HEADROOM


def test_a_segment_that_has_little_to_do_leaves_its_part_to_those_that_want_it() -> None:
    busy = RatePart(pace=50.0, until=5000, wants=None, worker=1)
    assert asked(100.0, {1: busy}, wants=0.0).pace == pytest.approx(0.5)
    sated = RatePart(pace=50.0, until=5000, wants=3.0, worker=1)
    assert asked(100.0, {1: sated}, wants=0.0).pace == 50.0, "nobody else wants it"


@pytest.mark.parametrize(
    ("given_", "rate"),
    [(5, 5.0), (0.5, 0.5), ("unlimited", UNLIMITED), ("Hold", HOLD), (10**9, 1e9)],
)
def test_a_rate_is_a_number_or_a_word(given_: object, rate: float) -> None:
    assert rate_from(given_) == rate
    assert rate_from(rate_shown(rate)) == rate


@pytest.mark.parametrize("given_", [0, 0.0, -0.0])
def test_a_rate_of_0_is_refused_with_the_two_words_that_it_may_mean(given_: float) -> None:
    with pytest.raises(ValueError, match=r"unlimited for no cap, or hold to start nothing"):
        rate_from(given_)


@pytest.mark.parametrize(
    "given_", [-1, -1.0, 1e-9, 1e10, True, None, "fast", "5", float("nan"), float("inf")]
)
def test_what_is_no_rate(given_: object) -> None:
    with pytest.raises(ValueError, match=r"^rate must be"):
        rate_from(given_)


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
