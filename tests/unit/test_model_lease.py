"""What a worker may believe of its own lease: never more than the database grants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.session import Lease

ttls = st.floats(0.1, 3600)
times = st.floats(0, 1e6)


@given(ttl=ttls, asked_at=times, renewals=st.lists(times, max_size=8), now=times)
def test_a_worker_never_believes_in_its_lease_longer_than_the_database(
    ttl: float, asked_at: float, renewals: list[float], now: float
) -> None:
    """The database counts from when it got the request, which is never before the worker asked."""
    lease = Lease(ttl, asked_at)
    for renewal in renewals:
        lease.renewed(renewal)
    granted_until = max([asked_at, *renewals]) + ttl
    assert lease.margin > 0
    if lease.holds(now):
        assert now < granted_until - lease.margin
    assert lease.holds(now) is (lease.left(now) > 0)


@given(ttl=ttls, asked_at=times)
def test_a_lease_ends_its_margin_early(ttl: float, asked_at: float) -> None:
    lease = Lease(ttl, asked_at)
    end = asked_at + ttl - lease.margin
    assert not lease.holds(end)
    assert lease.holds(asked_at)
    assert lease.margin <= min(2.0, ttl / 10)


def test_an_answer_that_comes_late_counts_from_when_it_was_asked() -> None:
    lease = Lease(30, asked_at=100)
    assert lease.left(100) == 28
    lease.renewed(asked_at=120)  # the answer came at 127, say
    assert lease.holds(147.9)
    assert not lease.holds(148)


def test_an_old_answer_does_not_shorten_the_lease() -> None:
    lease = Lease(30, asked_at=100)
    lease.renewed(asked_at=120)
    lease.renewed(asked_at=110)
    assert lease.left(120) == 28


def test_a_lease_not_renewed_is_over_for_good() -> None:
    lease = Lease(10, asked_at=0)
    assert [lease.holds(now) for now in (0, 8.9, 9, 10, 1000)] == [True, True, False, False, False]
