"""The retry policy: how long to wait, and what it refuses to be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.retry import BACKOFFS, LONGEST_DELAY, MOST_ATTEMPTS, RETRYABLE, RetryPolicy

seconds = st.floats(0, LONGEST_DELAY, allow_nan=False) | st.integers(0, int(LONGEST_DELAY))
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, MOST_ATTEMPTS),
    backoff=st.sampled_from(BACKOFFS),
    base=seconds,
    max=seconds,
    jitter=st.floats(0, 1),
    on=st.lists(st.sampled_from(RETRYABLE), unique=True).map(tuple),
)
counts = st.integers(1, MOST_ATTEMPTS)


@given(policies, counts, st.floats(0, 1))
def test_a_delay_stays_within_the_jitter_of_its_bounds(
    policy: RetryPolicy, spent: int, chance: float
) -> None:
    delay = policy.delay(spent, chance)
    low, high = policy.delay(spent, 0.0), policy.delay(spent, 1.0)
    assert 0 <= low <= delay <= high <= policy.max * (1 + policy.jitter)
    middle = policy.delay(spent, 0.5)
    assert low == pytest.approx(middle * (1 - policy.jitter), abs=1e-6)
    assert high == pytest.approx(middle * (1 + policy.jitter), abs=1e-6)


@given(policies, st.integers(1, MOST_ATTEMPTS - 1))
def test_the_next_delay_is_never_shorter_and_never_above_the_most(policy: RetryPolicy, spent: int) -> None:
    assert policy.delay(spent) <= policy.delay(spent + 1) <= policy.max or policy.base == 0


@given(st.floats(0.001, 10), counts)
def test_the_three_backoffs(base: float, spent: int) -> None:
    def delay(backoff: str) -> float:
        return RetryPolicy(backoff=backoff, base=base, max=LONGEST_DELAY, jitter=0).delay(spent)

    assert delay("fixed") == base
    assert delay("linear") == pytest.approx(base * spent)
    assert delay("exponential") == pytest.approx(min(base * 2.0 ** (spent - 1), LONGEST_DELAY))


def test_the_backoffs_by_example() -> None:
    def delays(backoff: str) -> list[float]:
        policy = RetryPolicy(backoff=backoff, base=2, max=10, jitter=0)
        return [policy.delay(spent) for spent in range(1, 6)]

    assert delays("fixed") == [2, 2, 2, 2, 2]
    assert delays("linear") == [2, 4, 6, 8, 10]
    assert delays("exponential") == [2, 4, 8, 10, 10]


@given(policies)
def test_a_policy_survives_being_written_down(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_dict(policy.to_dict()) == policy
    assert RetryPolicy.from_dict({**policy.to_dict(), "on": list(policy.on)}) == policy


def test_only_what_differs_from_the_default_is_written_down() -> None:
    assert RetryPolicy().to_dict() == {}
    assert RetryPolicy(max_attempts=5, on=()).to_dict() == {"max_attempts": 5, "on": ()}


@given(policies, st.integers(0, MOST_ATTEMPTS))
def test_another_attempt_may_start_while_some_are_left_and_the_end_is_named(
    policy: RetryPolicy, spent: int
) -> None:
    for end in (*RETRYABLE, "canceled", "abandoned"):
        assert policy.allows(end, spent) is (end in policy.on and spent < policy.max_attempts)


REFUSED: list[tuple[str, Any]] = [
    *(("max_attempts", bad) for bad in (0, -1, 1001, 1.5, "3", True, None)),
    *(("backoff", bad) for bad in ("cubic", "", None, 3, "FIXED")),
    *((field, bad) for field in ("base", "max") for bad in (-0.001, 2592001, "2", None, True, float("nan"))),
    *(("base", bad) for bad in (float("inf"), 1j)),
    *(("jitter", bad) for bad in (-0.1, 1.1, "0", None, True, float("nan"))),
    *(("on", bad) for bad in ("failed", ["failed"], ("failed", "canceled"), ("",), None)),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{f}={v!r}" for f, v in REFUSED])
def test_a_bad_value_is_refused_with_a_text_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^retry\.{field} "):
        RetryPolicy(**{field: value})


@pytest.mark.parametrize("value", ["failed", 3, [1], None, {"failed": 1}])
def test_what_was_written_down_badly_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"retry\.on must be a list of failed, timed_out, lost"):
        RetryPolicy.from_dict({"on": value})


def test_an_unknown_field_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="retry has no 'attempts'; did you mean 'max_attempts'"):
        RetryPolicy.from_dict({"attempts": 3})
