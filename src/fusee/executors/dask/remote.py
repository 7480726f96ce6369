"""What happens on the workers of the Dask cluster: one call, started once, that can be told to stop.

Sent there by name, so Fusee must be installed there too. What travels is JSON text, both ways.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, cast

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.context import RunContext, in_thread
from fusee.engine.worker.results import Stopped, ended_by, ended_by_error, storable
from fusee.executors.tail import Tail

__all__ = ["STARTED", "call", "running", "stop", "strike"]

STARTED = "started"
"""Ends the name under which a call is marked as begun; a mark can be set once."""


class _Call:
    def __init__(self, output_tail: int) -> None:
        self.thread = threading.get_ident()
        self.stop = threading.Event()
        self.tail = Tail(output_tail)


_calls: dict[str, _Call] = {}
"""Those under way in this process, by key."""
_guard = threading.Lock()


def call(key: str, function: str, kwargs: str, about: str, output_tail: int) -> str:
    """Call it, unless it was started before: Dask starts a task again when its worker died, we do not."""
    if not _mark(key):
        text = "its Dask worker was lost: the function had begun there, and nobody can say how far it came"
        return _pack(Ended(End.LOST, error=text), None)
    mine = _Call(output_tail)
    with _guard:
        _calls[key] = mine
    try:
        with _listening():
            ended = _run(function, json.loads(kwargs), json.loads(about), mine)
    except Stopped as error:  # struck just before or after the function
        ended = ended_by_error(error)
    finally:
        with _guard:
            _calls.pop(key, None)
    return _pack(ended, mine.tail.text() or None)


def stop(key: str) -> bool:
    """Ask it to stop; whether it was there."""
    with _guard:
        found = _calls.get(key)
        if found is not None:
            found.stop.set()
        return found is not None


def strike(key: str) -> bool:
    """Raise `Stopped` in its thread, which sees it when it next runs Python code."""
    with _guard:  # held: the thread cannot leave the call, and serve another, meanwhile
        found = _calls.get(key)
        if found is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(found.thread), ctypes.py_object(Stopped)
            )
        return found is not None


def running(key: str) -> bool:
    with _guard:
        return key in _calls


def _mark(key: str) -> bool:
    """True for the first that asks; the scheduler decides."""
    from distributed import get_client, get_worker

    try:
        get_client(timeout=30).publish_dataset(get_worker().address, name=f"{key}-{STARTED}")
    except KeyError:
        return False
    return True


def _run(function: str, kwargs: dict[str, Any], about: dict[str, Any], mine: _Call) -> Ended:
    at = about["fire_time"]
    context = RunContext(
        about["run_id"],
        about["attempt"],
        function,
        about["queue"],
        mine.stop.is_set,
        about["task"],
        None if at is None else datetime.fromisoformat(at),
        about["shard_index"],
        about["shard_total"],
    )
    try:
        called = _find(function)
    except (ImportError, AttributeError) as error:
        text = f"{function} cannot be imported on the Dask worker: {type(error).__name__}: {error}"
        return Ended(End.ABANDONED, error=storable(text), effect=Effect.NONE)
    try:
        inspect.signature(called).bind(**kwargs)
    except TypeError as error:
        return Ended(End.ABANDONED, error=f"kwargs do not fit {function}: {error}", effect=Effect.NONE)
    with in_thread(context):
        try:
            value = called(**kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
        except BaseException as error:
            return ended_by_error(error)
        return ended_by(value)


def _find(function: str) -> Any:
    module, _, path = function.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _pack(ended: Ended, output: str | None) -> str:
    fields = {"end": ended.end, "result": ended.result, "error": ended.error, "after": ended.after}
    return json.dumps({**fields, "effect": ended.effect, "output": output})


# -- what it prints


class _Spread:
    """A stream that gives each thread's text to its own call as well."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        _keep(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _LogTail(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _keep(self.format(record) + "\n")


_log_tail = _LogTail()
_listeners = 0


def _keep(text: str) -> None:
    here = threading.get_ident()
    for one in list(_calls.values()):
        if one.thread == here:
            one.tail.write(text.encode("utf-8", "replace"))


@contextmanager
def _listening() -> Iterator[None]:
    """While a call is under way in this process, streams and the log are listened to."""
    global _listeners
    with _guard:
        _listeners += 1
        if _listeners == 1:
            sys.stdout = cast("IO[str]", _Spread(sys.stdout))
            sys.stderr = cast("IO[str]", _Spread(sys.stderr))
            logging.getLogger().addHandler(_log_tail)
    try:
        yield
    finally:
        with _guard:
            _listeners -= 1
            if _listeners == 0:
                for name in ("stdout", "stderr"):
                    spread = getattr(sys, name)
                    if isinstance(spread, _Spread):  # else somebody else has put theirs over ours
                        setattr(sys, name, spread.stream)
                logging.getLogger().removeHandler(_log_tail)
