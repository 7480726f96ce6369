"""What a caller may ask of a batch, and how many failures it stands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.batches.model.spec import BatchSpec, OnError


def spec(**fields: Any) -> BatchSpec:
    return BatchSpec(**{"batch_name": "b", "batch_type": "start", "target_type": "cdc", **fields})


def test_what_is_not_said_is_careful() -> None:
    plain = spec()
    assert (plain.concurrency, plain.canary, plain.max_errors) == (32, 0, None)
    assert plain.on_error is OnError.STOP


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("batch_name", "", "batch_name must be 1 to 200 printable characters"),
        ("batch_name", "x" * 201, "batch_name must be"),
        ("batch_name", "two\nlines", "batch_name must be"),
        ("batch_name", 7, "batch_name must be"),
        ("batch_type", "no spaces", "batch_type must be 1 to 128 letters"),
        ("target_type", "", "target_type must be 1 to 128 letters"),
        ("target_type", "a.b", "target_type must be without a dot, not 'a.b'"),
        ("batch_type", "x" * 118, "target_type and batch_type must be at most 120 characters together"),
        ("queue", " ", "queue must be"),
        ("region", "no where", "region must be"),
        ("creator", "x" * 129, "creator must be at most 128 printable characters"),
        ("env", None, "env must be at most 128 printable characters"),
        ("extra_info", "text", "extra_info must be an object"),
        ("concurrency", -1, "concurrency must be a whole number from 0 to 100000, not -1"),
        ("concurrency", 1.5, "concurrency must be a whole number"),
        ("concurrency", True, "concurrency must be a whole number"),
        ("canary", -1, "canary must be a whole number from 0 to 10000000"),
        ("priority", 1001, "priority must be a whole number from -1000 to 1000"),
        ("ramp", 0.9, "ramp must be from 1 to 100, not 0.9"),
        ("ramp", float("nan"), "ramp must be from 1 to 100"),
        ("ramp", True, "ramp must be from 1 to 100"),
        ("max_errors", -1, "max_errors must be a whole number, or a share of the targets from 0 to below 1"),
        ("max_errors", 1.5, "max_errors must be a whole number, or a share"),
        ("max_errors", float("inf"), "max_errors must be a whole number, or a share"),
        ("max_errors", True, "max_errors must be a whole number, or a share"),
        ("on_error", "explode", "on_error must be one of stop, rollback, not 'explode'"),
        ("timeout", 0, "timeout must be more than 0"),
        ("timeout", "soon", "timeout must be seconds, or a duration"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_said(field: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        spec(**{field: value})
    assert str(refused.value).startswith(field) or field == "batch_type"


def test_on_error_may_be_said_in_words() -> None:
    assert spec(on_error="rollback").on_error is OnError.ROLLBACK


@pytest.mark.parametrize(
    ("max_errors", "total", "allowed"),
    [
        (None, 100, None),
        (0, 100, 0),
        (1, 100, 1),
        (5, 3, 5),
        (0.02, 5000, 100),
        (0.02, 49, 0),
        (0.5, 3, 1),
        (0.29, 100, 29),  # the float of 0.29 times 100 is below 29
        (0.07, 100, 7),
    ],
)
def test_so_many_failures_do_not_stop_it(max_errors: float | None, total: int, allowed: int | None) -> None:
    assert spec(max_errors=max_errors).errors_allowed(total) == allowed


@given(st.integers(0, 999), st.integers(1, 10_000))
def test_a_share_is_what_it_says_rounded_down(per_mille: int, total: int) -> None:
    assert spec(max_errors=per_mille / 1000).errors_allowed(total) == per_mille * total // 1000
