"""A queue's limits, and the bucket that keeps a rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.queue import QueueLimits, TokenBucket

rates = st.floats(0.01, 10_000)
steps = st.lists(st.tuples(st.integers(0, 60_000_000), st.integers(0, 50)), max_size=30)


def _size(limits: QueueLimits) -> int:
    assert limits.rate is not None
    return limits.burst or max(1, round(limits.rate))


@given(rate=rates, burst=st.none() | st.integers(1, 1000), walk=steps)
def test_a_bucket_never_holds_more_than_its_size_and_never_lends(
    rate: float, burst: int | None, walk: list[tuple[int, int]]
) -> None:
    limits = QueueLimits(rate=rate, burst=burst)
    bucket, now = TokenBucket(0.0, 0), 0
    for passed, wanted in walk:
        now += passed
        bucket = bucket.filled(limits, now)
        assert 0 <= bucket.tokens <= _size(limits)
        bucket = bucket.take(min(wanted, int(bucket.tokens)))
        assert bucket.tokens >= 0


@given(rate=rates, burst=st.integers(1, 1000), walk=steps)
def test_no_more_starts_than_the_burst_and_the_rate_allow(
    rate: float, burst: int, walk: list[tuple[int, int]]
) -> None:
    limits = QueueLimits(rate=rate, burst=burst)
    bucket, now, started = TokenBucket(float(burst), 0), 0, 0
    for passed, wanted in walk:
        now += passed
        bucket = bucket.filled(limits, now)
        taken = min(wanted, int(bucket.tokens))
        bucket = bucket.take(taken)
        started += taken
        assert started <= burst + rate * now / 1_000_000 + 1e-6


@given(rate=st.integers(1, 1000), portions=st.lists(st.integers(1, 1_000_000), min_size=1, max_size=40))
def test_a_rate_is_exact_however_time_is_cut(rate: int, portions: list[int]) -> None:
    limits = QueueLimits(rate=rate, burst=10**6)
    bucket, now = TokenBucket(0.0, 0), 0
    for passed in portions:
        now += passed
        bucket = bucket.filled(limits, now)
    assert math.isclose(bucket.tokens, min(10**6, rate * now / 1_000_000), rel_tol=1e-9)


@given(rate=rates, tokens=st.integers(0, 5), at=st.integers(10, 10**9), back=st.integers(0, 10**9))
def test_a_clock_that_goes_back_adds_nothing(rate: float, tokens: int, at: int, back: int) -> None:
    limits = QueueLimits(rate=rate, burst=10)
    bucket = TokenBucket(float(tokens), at)
    earlier = bucket.filled(limits, max(0, at - back))
    assert earlier == bucket
    assert earlier.filled(limits, at) == bucket, "nor when it comes forward again"


def test_a_queue_without_a_rate_has_no_use_for_a_bucket() -> None:
    bucket = TokenBucket(3.0, 7)
    assert bucket.filled(QueueLimits(concurrency=1), 10**9) is bucket


@pytest.mark.parametrize(
    ("limits", "limited"),
    [
        (QueueLimits(), False),
        (QueueLimits(paused=True), True),
        (QueueLimits(concurrency=1), True),
        (QueueLimits(rate=0.5), True),
        (QueueLimits(rate=0.5, burst=3), True),
    ],
)
def test_whether_a_queue_is_limited(limits: QueueLimits, limited: bool) -> None:
    assert limits.limited is limited


REFUSED: list[tuple[str, Any]] = [
    *(("concurrency", bad) for bad in (0, -1, 1.5, "3", True, 10**6 + 1)),
    *(("rate", bad) for bad in (0, -1, "3", True, 1e6 + 1, float("nan"), float("inf"))),
    *(("burst", bad) for bad in (0, 1.5, "3", True, 10**6 + 1)),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{f}={v!r}" for f, v in REFUSED])
def test_a_bad_limit_is_refused_with_a_text_that_names_the_field(field: str, value: Any) -> None:
    fields = {"rate": 1.0, field: value} if field == "burst" else {field: value}
    with pytest.raises(ValueError, match=rf"^{field} must be"):
        QueueLimits(**fields)


def test_a_burst_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="burst goes with a rate"):
        QueueLimits(burst=3)
