"""A rate shared between segments, a speed that forgets, a concurrency that finds its level."""

from __future__ import annotations

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
    Part,
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
    Part,
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


@given(
    rate=st.floats(0.001, 1e6), others=st.dictionaries(NUMBERS, PARTS), wants=WANTS, worker=st.integers(0, 3)
)
def test_a_part_never_takes_what_others_hold(
    rate: float, others: dict[int, Part], wants: float | None, worker: int
) -> None:
    given_ = grant(rate, others, 99, wants, 1000, first_at=1000, worker=worker)
    alive = {part.worker for part in others.values() if part.until > 1000} | {worker}
    held = sum(part.pace for part in others.values() if part.worker in alive)
    assert 0 <= given_.pace <= given_.fair <= rate
    if held <= rate:  # the headroom of the others is all that may be given twice
        assert given_.pace + held <= rate * HEADROOM * (1 + 1e-9)


def test_a_grant_is_short_when_other_workers_would_have_to_wait_for_it() -> None:
    soon = Part(pace=50.0, until=400_000, wants=None, worker=2)
    late = Part(pace=25.0, until=500_000, wants=None, worker=3)
    mine = Part(pace=25.0, until=300_000, wants=None, worker=1)
    alone = grant(100.0, {1: mine}, 0, None, 1000, first_at=0, worker=1)
    assert (alone.until, alone.free_at) == (1000 + GRANT_LASTS, None)
    beside = grant(100.0, {1: mine, 2: soon, 3: late}, 0, None, 1000, first_at=0, worker=1)
    assert (beside.until, beside.free_at) == (1000 + SHARED_LASTS, 400_000)
    slow = grant(4.0, {2: soon}, 0, None, 1000, first_at=0, worker=1)
    assert (slow.until, slow.free_at) == (1000 + GRANT_LASTS, None)
    old = grant(100.0, {2: soon}, 0, None, 1000, first_at=0, worker=1, renews=False)
    assert (old.until, old.free_at) == (1000 + GRANT_LASTS, None)


def test_a_worker_holds_all_of_its_parts_as_long_as_it_is_heard_from() -> None:
    quiet = Part(pace=50.0, until=500, wants=None, worker=2)
    heard = Part(pace=20.0, until=2000, wants=None, worker=2)
    assert grant(100.0, {1: quiet, 2: heard}, 0, None, 1000, first_at=0, worker=1).pace == 30.0
    assert grant(100.0, {1: quiet, 2: heard}, 0, None, 3000, first_at=0, worker=1).pace == 100.0


def test_those_who_ask_in_turn_come_to_fair_parts() -> None:
    """Two that want all, one that wants 10, and one that was lost while it held all of the rate."""
    wants: dict[int, float | None] = {0: None, 1: None, 2: 10.0}
    parts = {9: Part(pace=100.0, until=MICROSECONDS // 2, wants=None, worker=9)}
    for turn in range(48):
        for number, wish in wants.items():
            now = turn * RENEW_EVERY + number * 1000
            others = {key: part for key, part in parts.items() if key != number}
            made = grant(100.0, others, number, wish, now, first_at=now, worker=number)
            parts[number] = Part(pace=made.pace, until=made.until, wants=wish, worker=number)
        if turn == 1:
            assert sum(parts[number].pace for number in wants) == 0, "what is held is held"
    assert parts[0].pace == pytest.approx(45, rel=0.02)
    assert parts[1].pace == pytest.approx(45, rel=0.02)
    assert 10 <= parts[2].pace <= 10 * HEADROOM


def test_a_segment_that_has_little_to_do_leaves_its_part_to_those_that_want_it() -> None:
    busy = Part(pace=50.0, until=5000, wants=None, worker=1)
    idle = grant(100.0, {1: busy}, 0, 0.0, 1000, first_at=0, worker=0)
    assert idle.pace == pytest.approx(0.5)
    sated = Part(pace=50.0, until=5000, wants=3.0, worker=1)
    assert grant(100.0, {1: sated}, 0, 0.0, 1000, first_at=0, worker=0).pace == 50.0, "nobody else wants it"


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
