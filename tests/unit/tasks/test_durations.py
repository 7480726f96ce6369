"""Durations as people write them."""

from __future__ import annotations

import pytest

from fusee.values.durations import seconds_from


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (30, 30.0),
        (0.5, 0.5),
        ("30", 30.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("7d", 604800.0),
        ("1d2h3m4s5ms", 93784.005),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        (" 10s ", 10.0),
    ],
)
def test_what_is_understood(written: object, seconds: float) -> None:
    assert seconds_from(written, "timeout") == seconds


@pytest.mark.parametrize(
    "written", ["", "s", "30m1h", "5 minutes", "1h1h", "-5s", None, True, [], "1e3", "∞"]
)
def test_what_is_not_says_how_to_write_it(written: object) -> None:
    with pytest.raises(ValueError, match=r"^timeout must be seconds, or a duration such as 30s"):
        seconds_from(written, "timeout")


@pytest.mark.parametrize("written", [float("nan"), float("inf"), -1, "99999d", 0.5])
def test_what_is_too_short_or_too_long_is_refused_with_the_limits(written: object) -> None:
    with pytest.raises(ValueError, match=r"^every must be from 1 to"):
        seconds_from(written, "every", least=1.0)
