"""The ring: every process finds the same owner, keys move only when they must, and shares are even."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fusee.placement.placing import Ring, hash_of

names = st.sets(st.text("abcdefgh-0123456789", min_size=1, max_size=12), min_size=1, max_size=12)
KEYS = [f"user-{n}" for n in range(500)]


def owners(workers: set[str]) -> dict[str, str | None]:
    ring = Ring(workers, points=32)
    return {key: ring.owner(key) for key in KEYS}


@given(names, st.text("xyz", min_size=1))
def test_when_one_joins_keys_move_to_it_and_to_nobody_else(workers: set[str], new: str) -> None:
    before, after = owners(workers), owners({*workers, new})
    assert {after[key] for key in KEYS if after[key] != before[key]} <= {new}


@given(names)
def test_when_one_leaves_only_its_own_keys_move(workers: set[str]) -> None:
    leaving = min(workers)
    before, after = owners(workers), owners(workers - {leaving})
    assert all(before[key] == leaving for key in KEYS if after[key] != before[key])


@given(names)
def test_the_second_choice_is_who_owns_it_once_the_first_has_left(workers: set[str]) -> None:
    ring = Ring(workers, points=16)
    for key in KEYS[:20]:
        order = list(ring.preference(key))
        assert sorted(order) == sorted(workers)
        left = set(workers)
        for name in order:
            assert Ring(left, points=16).owner(key) == name
            left.remove(name)


def test_an_empty_ring_owns_nothing() -> None:
    assert Ring(()).owner("a") is None


def test_the_order_in_which_names_are_given_does_not_matter() -> None:
    assert all(Ring("abc").owner(key) == Ring("cba").owner(key) for key in KEYS)


def test_every_process_and_version_hashes_alike() -> None:
    assert hash_of("user-1") == 11145382709976293768


def test_shares_are_even() -> None:
    for size in (2, 5, 10, 30):
        ring = Ring(f"worker-{n}" for n in range(size))
        shares = Counter(ring.owner(f"key-{n}") for n in range(20_000))
        fair = 20_000 / size
        assert len(shares) == size
        assert max(shares.values()) < 1.4 * fair and min(shares.values()) > 0.6 * fair, (size, shares)


def test_a_fifth_worker_takes_about_a_fifth() -> None:
    before, after = Ring(f"w{n}" for n in range(4)), Ring(f"w{n}" for n in range(5))
    moved = sum(before.owner(key) != after.owner(key) for key in (f"k{n}" for n in range(10_000)))
    assert 0.12 < moved / 10_000 < 0.28
