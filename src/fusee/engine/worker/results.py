"""What a handler returned or raised, as the end of its attempt."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fusee.engine.model.outcome import Abandon, Done, Effect, End, Ended, HandBack, Retry, Skip, Wait
from fusee.engine.worker.context import RunContext
from fusee.engine.worker.handlers import Handler

__all__ = [
    "Stopped",
    "abandoned",
    "arguments",
    "ended_by",
    "ended_by_call",
    "ended_by_error",
    "misfit",
    "storable",
]

LARGEST_RESULT = 1024 * 1024
LARGEST_ERROR = 8 * 1024
LARGEST_MESSAGE = 2 * 1024
TRACEBACK_LINES = 20

_OURS = str(Path(__file__).parents[2])


class Stopped(BaseException):
    """Raised inside a handler that was told to stop. Catch it only to clean up, then raise it again."""


class _NotJson(Exception):
    """A value of a type that JSON cannot hold."""


def storable(text: str) -> str:
    """Return the text as every database takes it: no NUL, no half of a surrogate pair."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def abandoned(error: object) -> Ended:
    """The end of an attempt that did nothing and could never succeed: its payload is wrong, for example."""
    return Ended(End.ABANDONED, error=storable(str(error)), effect=Effect.NONE)


def _refuse(value: Any) -> Any:
    raise _NotJson(f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins."))


_encoder = msgspec.json.Encoder(enc_hook=_refuse)


def arguments(handler: Handler, payload: Mapping[str, Any], context: RunContext) -> dict[str, Any]:
    """Return the function's arguments: the payload's members, and the run if it has a parameter for it."""
    given = dict(payload)
    if handler.run_parameter is not None:
        given[handler.run_parameter] = context
    return given


def ended_by_call(handler: Handler, payload: Mapping[str, Any], context: RunContext) -> Ended:
    """Call a sync handler in this thread; never raises, not even `Stopped`."""
    given = arguments(handler, payload, context)
    try:
        value = handler.function(**given)
    except BaseException as error:
        return misfit(handler, given, error) or ended_by_error(error)
    return ended_by(value)


def ended_by(value: Any) -> Ended:
    """Return the end of an attempt whose handler returned `value`."""
    if isinstance(value, Retry | Abandon | Skip):
        return ended_by_error(value)
    if isinstance(value, Wait):
        return Ended(End.ACCEPTED, effect=Effect.UNKNOWN)
    effect = Effect.APPLIED
    if isinstance(value, Done):
        value, effect = value.result, value.effect
    if value is None:
        return Ended(End.SUCCEEDED, effect=effect)
    try:
        result = _encoder.encode(value)
    except Exception as error:
        return _no_result(value, error)
    if len(result) > LARGEST_RESULT:
        return Ended(
            End.ABANDONED,
            error=f"the handler's result has {len(result)} bytes of JSON; at most {LARGEST_RESULT}"
            " are kept: store it elsewhere and return where it is",
            effect=Effect.APPLIED,
        )
    return Ended(End.SUCCEEDED, result=result.decode(), effect=effect)


def ended_by_error(error: BaseException) -> Ended:
    """Return the end of an attempt whose handler raised `error`, or returned a `Retry` or the like."""
    match error:
        case HandBack():
            return Ended(End.RETURNED, error=str(error), after=error.after, effect=Effect.NONE)
        case Retry():
            why = _reason(error, "the handler asked for a retry")
            return Ended(End.FAILED, error=why, after=error.after, effect=error.effect)
        case Abandon():
            return Ended(End.ABANDONED, error=_reason(error, "abandoned by its handler"), effect=error.effect)
        case Skip():
            return Ended(End.SKIPPED, error=_reason(error, "skipped by its handler"), effect=Effect.NONE)
        case Stopped():
            return Ended(End.FAILED, error="stopped: the handler was told to stop")
        case _:
            return Ended(End.FAILED, error=_account(error))


def misfit(handler: Handler, given: Mapping[str, Any], error: BaseException) -> Ended | None:
    """Return the end if `error` came from a payload that does not fit the handler's signature, else None.

    Checked only after the call failed, so that calls that fit pay nothing for it.
    """
    if not isinstance(error, TypeError):
        return None
    try:
        signature = inspect.signature(handler.function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(**given)
    except TypeError as why:
        names = ", ".join(str(p).partition(":")[0].partition("=")[0] for p in signature.parameters.values())
        text = str(why).replace("missing a required argument:", "missing argument")
        text = text.replace("got an unexpected keyword argument", "unexpected argument")
        return abandoned(f"payload does not fit handler {handler.name}({names}): {text}"[:LARGEST_MESSAGE])
    return None


def _no_result(value: Any, error: Exception) -> Ended:
    """The work is done, but what it returned cannot be stored; another attempt would not change that."""
    if inspect.iscoroutine(value):
        value.close()
        text = "the handler returned a coroutine: declare it with `async def`, or await what it calls"
        return Ended(End.ABANDONED, error=text)
    inside = f" holds a {error}" if isinstance(error, _NotJson) else f" ({type(error).__name__}: {error})"
    kind = type(value).__qualname__
    what = kind if isinstance(error, _NotJson) and kind == str(error).rpartition(".")[2] else kind + inside
    return Ended(
        End.ABANDONED,
        error=storable(
            f"the handler's result cannot be kept: {what[:LARGEST_MESSAGE]} is not JSON;"
            " return None, text, numbers, lists or objects of these"
        ),
        effect=Effect.APPLIED,
    )


def _reason(error: BaseException, otherwise: str) -> str:
    """Return the text of a `Retry`, `Abandon` or `Skip`, with its cause."""
    text = _message(error) or otherwise
    if error.__cause__ is not None:
        text += f"\n{_account(error.__cause__)}"
    return _bounded(text)


def _account(error: BaseException) -> str:
    """Return `TypeName: message`, then the end of the traceback."""
    head = type(error).__qualname__
    if message := _message(error):
        head += f": {message}"
    lines = "".join(traceback.format_exception(type(error), error, _theirs(error.__traceback__))).splitlines()
    if len(lines) > TRACEBACK_LINES:
        lines = ["…", *lines[-TRACEBACK_LINES:]]
    return _bounded(head + "\n" + "\n".join(lines))


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package at its top."""
    while trace is not None and trace.tb_next is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            break
        trace = trace.tb_next
    return trace


def _message(error: BaseException) -> str:
    try:
        return str(error)[:LARGEST_MESSAGE]
    except Exception:
        return "(its message could not be read)"


def _bounded(text: str) -> str:
    data = storable(text).encode()
    if len(data) <= LARGEST_ERROR:
        return data.decode()
    # The front names the error and the end says where: the middle is dropped.
    half = LARGEST_ERROR // 2 - 8
    return f"{data[:half].decode(errors='ignore')}\n…\n{data[-half:].decode(errors='ignore')}"
