"""What a caller may ask for, and the names that are allowed."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.run_fields import EXECUTORS
from fusee.values.names import LONGEST_KEY, check_key, check_name

INNER = string.ascii_letters + string.digits + "_.:/-"
FIRST = string.ascii_letters + string.digits + "_"


@given(first=st.sampled_from(FIRST), rest=st.text(INNER, max_size=127))
def test_a_name_is_ascii_and_short(first: str, rest: str) -> None:
    assert check_name(first + rest, "handler") == first + rest


@given(st.text(max_size=140))
def test_every_other_name_is_refused_with_a_short_text(text: str) -> None:
    good = 0 < len(text) <= 128 and text[0] in FIRST and set(text) <= set(INNER)
    if good:
        assert check_name(text, "queue") == text
        return
    with pytest.raises(ValueError, match=r"^queue must be 1 to 128 letters") as refusal:
        check_name(text, "queue")
    assert len(str(refusal.value)) < 200
    assert str(refusal.value).isascii()


@pytest.mark.parametrize("bad", ["", "a b", "-a", ".a", "/a", "ä", "a\n", "a" * 129, None, 3, b"a", ["a"]])
def test_bad_names_by_example(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^worker must be"):
        check_name(bad, "worker")


@given(st.text(max_size=LONGEST_KEY + 20))
def test_a_key_is_printable_and_not_too_long(text: str) -> None:
    if 0 < len(text) <= LONGEST_KEY and text.isprintable() and text == text.strip():
        assert check_key(text, "key") == text
    else:
        with pytest.raises(ValueError, match=r"^key must be 1 to 200 printable characters"):
            check_key(text, "key")


@pytest.mark.parametrize("bad", ["\ud800", "a\x00", "a\tb", "a\n", "", " a", "a ", 3, None, b"k"])
def test_bad_keys_by_example(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^idempotency_key must be"):
        check_key(bad, "idempotency_key")


GOOD: list[tuple[str, Any]] = [
    ("handler", "mail.send:v2"),
    *(("executor", name) for name in EXECUTORS),
    ("payload", {}),
    ("payload", {"a": 1}),
    ("payload", None),
    ("queue", "a/b"),
    ("region", ""),
    ("region", "eu-west"),
    ("priority", -1000),
    ("priority", 1000),
    ("delay", 0),
    ("delay", 0.5),
    ("delay", 10 * 366 * 86400),
    ("due_at", None),
    ("due_at", 0),
    ("due_at", 2**62 - 1),
    ("timeout", None),
    ("timeout", 0.001),
    ("timeout", 30 * 86400),
    ("retry", RetryPolicy()),
    ("idempotency_key", "€ 1"),
]

REFUSED: list[tuple[str, Any]] = [
    *(("handler", bad) for bad in ("", " ", "a b", None, 7, "ü")),
    *(("executor", bad) for bad in ("", "java", None, "py")),
    *(("payload", bad) for bad in ([1], "x", 3, True)),
    *(("queue", bad) for bad in ("", "a b", None)),
    *(("region", bad) for bad in ("a b", "-")),
    *(("priority", bad) for bad in (-1001, 1001, 1.0, "1", True, None)),
    *(("delay", bad) for bad in (-1, -0.001, "soon", True, None, float("nan"), float("inf"), 1e10)),
    *(("due_at", bad) for bad in (-1, 1.5, "1", True, 2**62)),
    *(("timeout", bad) for bad in (0, -1, "soon", True, float("nan"), float("inf"), 30 * 86400 + 1)),
    *(("retry", bad) for bad in ([], 3, "yes")),
    *(("idempotency_key", bad) for bad in ("", "a\n", 3, "k" * 201)),
]


@pytest.mark.parametrize(("field", "value"), GOOD, ids=[f"{f}={v!r}" for f, v in GOOD])
def test_what_may_be_asked_for(field: str, value: Any) -> None:
    assert getattr(RunSpec(**{"handler": "work", field: value}), field) == value


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[f"{f}={v!r:.20}" for f, v in REFUSED])
def test_what_is_refused_with_a_text_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        RunSpec(**{"handler": "work", field: value})


def test_a_run_goes_by_its_lane() -> None:
    spec = RunSpec(handler="h", queue="q", executor="shell", region="r")
    assert spec.lane("n") == Lane("n", "q", "shell", "h", "r")


def test_only_what_differs_from_the_handlers_settings_is_kept() -> None:
    assert RunSpec(handler="h").options() is None
    assert RunSpec(handler="h", timeout=5).options() == {"timeout": 5}
    retry = RetryPolicy(max_attempts=9)
    assert RunSpec(handler="h", retry=retry).options() == {"retry": {"max_attempts": 9}}
    assert RunSpec(handler="h", retry=RetryPolicy()).options() == {"retry": {}}, "the default, on purpose"
