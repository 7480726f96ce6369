"""What a return or a raise makes of an attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fusee.engine.model.outcome import Abandon, Done, Effect, End, Retry, Skip
from fusee.engine.worker.context import RunContext
from fusee.engine.worker.handlers import Handler
from fusee.engine.worker.results import (
    LARGEST_ERROR,
    LARGEST_RESULT,
    Stopped,
    ended_by,
    ended_by_call,
    ended_by_error,
)

CONTEXT = RunContext(7, 2, "test", "default")


@dataclass
class Point:
    x: int


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("value", "result"),
    [(None, None), (Done(), None), (3, "3"), (Done({"a": [1]}), '{"a":[1]}'), (Point(1), '{"x":1}')],
)
def test_a_value_is_a_success(value: object, result: str | None) -> None:
    ended = ended_by(value)
    assert (ended.end, ended.result, ended.effect) == (End.SUCCEEDED, result, Effect.APPLIED)


def test_the_answers_mean_the_same_returned_and_raised() -> None:
    for ended in (ended_by(Retry("busy", after=30)), ended_by_error(raised(Retry("busy", after=30)))):
        assert (ended.end, ended.error, ended.after, ended.effect) == (End.FAILED, "busy", 30, Effect.UNKNOWN)
    for ended in (ended_by(Abandon("no")), ended_by_error(raised(Abandon("no")))):
        assert (ended.end, ended.error, ended.effect) == (End.ABANDONED, "no", Effect.UNKNOWN)
    for answer in (Retry("no", effect=Effect.NONE), Abandon("no", effect=Effect.NONE)):
        assert ended_by(answer).effect is Effect.NONE
    for ended in (ended_by(Skip()), ended_by_error(raised(Skip()))):
        assert (ended.end, ended.error, ended.effect) == (End.SKIPPED, "skipped by its handler", Effect.NONE)


def test_an_answer_names_its_cause() -> None:
    error = Retry("later")
    error.__cause__ = raised(KeyError("host"))
    text = ended_by_error(error).error or ""
    assert text.startswith("later\nKeyError: 'host'\n")


def test_an_error_leads_with_its_name_and_ends_with_its_traceback() -> None:
    text = ended_by_error(raised(ValueError("bad\x00 luck"))).error or ""
    lines = text.splitlines()
    assert lines[0] == "ValueError: bad luck"
    assert lines[1] == "Traceback (most recent call last):"
    assert "raise error" in text


def test_a_long_error_is_bounded() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("x" * 100_000)
        deep(n - 1)

    try:
        deep(50)
    except ValueError as error:
        text = ended_by_error(error).error or ""
    assert len(text.encode()) <= LARGEST_ERROR
    assert text.startswith("ValueError: xxx")


def test_an_error_whose_text_fails_is_still_told() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Rude: (its message could not be read)" in (ended_by_error(raised(Rude())).error or "")


def test_a_result_that_is_not_json_says_which_type() -> None:
    ended = ended_by({"a": object()})
    assert ended.end is End.ABANDONED
    assert ended.effect is Effect.APPLIED
    assert "dict holds a object is not JSON" in (ended.error or "")
    assert "result cannot be kept: object is not JSON" in (ended_by(object()).error or "")
    assert "is not JSON" in (ended_by("\ud800").error or "")


def test_a_result_that_is_too_large_is_refused() -> None:
    ended = ended_by("é" * (LARGEST_RESULT // 2))
    assert ended.end is End.ABANDONED
    assert "store it elsewhere" in (ended.error or "")
    assert ended_by("e" * (LARGEST_RESULT - 2)).end is End.SUCCEEDED


def test_a_coroutine_is_not_a_result() -> None:
    async def work() -> None: ...

    ended = ended_by(work())
    assert ended.end is End.ABANDONED
    assert "async def" in (ended.error or "")


def test_being_stopped_is_no_traceback() -> None:
    assert ended_by_error(Stopped()).error == "stopped: the handler was told to stop"


def test_a_payload_that_does_not_fit_is_abandoned(handler: Callable[..., Handler]) -> None:
    def send(a: int, b: int = 1, *, c: str) -> None: ...

    for payload, text in [
        ({"a": 1}, "payload does not fit handler test(a, b, c): missing argument 'c'"),
        ({"a": 1, "c": "", "d": 2}, "payload does not fit handler test(a, b, c): unexpected argument 'd'"),
    ]:
        ended = ended_by_call(handler(send), payload, CONTEXT)
        assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
        assert ended.error == text


def test_a_type_error_of_the_work_itself_is_a_failure(handler: Callable[..., Handler]) -> None:
    def add(a: Any) -> Any:
        return a + "x"

    ended = ended_by_call(handler(add), {"a": 1}, CONTEXT)
    assert ended.end is End.FAILED
    assert (ended.error or "").startswith("TypeError: unsupported operand")
    assert "engine/worker/results.py" not in (ended.error or "")  # our own frames are left out


def test_the_run_is_passed_where_it_is_asked_for(handler: Callable[..., Handler]) -> None:
    def who(x: int, this: RunContext) -> list[int]:
        return [x, this.run_id]

    assert json.loads(ended_by_call(handler(who), {"x": 1}, CONTEXT).result or "") == [1, 7]
