"""What runs on the workers of the Dask cluster: one call, started once, that can be told to stop.

These functions are sent there by name, so Fusee must be installed there too. Arguments and results are JSON
text.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any, cast

import msgspec

from fusee.engine.model.outcome import End, Ended
from fusee.engine.worker.context import RunFacts, in_thread
from fusee.engine.worker.results import Stopped, abandoned, ended_by, ended_by_error
from fusee.executors.stopping import raise_stopped
from fusee.executors.tail import Tail

__all__ = ["STARTED", "call", "running", "stop", "strike"]

STARTED = "started"
"""The end of the name that marks a call as begun; a mark can be set only once."""


class _RunningCall:
    def __init__(self, output_tail: int) -> None:
        self.thread = threading.get_ident()
        self.stop = threading.Event()
        self.tail = Tail(output_tail)


_calls: dict[str, _RunningCall] = {}
"""The calls under way in this process, by key."""
_guard = threading.Lock()


def call(key: str, function: str, kwargs: str, about: str, output_tail: int, listed: bool = False) -> str:
    """Call the function, unless it was started before: Dask restarts a task whose worker died, we do not.

    `listed`: the worker's configuration names this very function, and not only a pattern that it matches.
    """
    if not _mark(key):
        text = "its Dask worker was lost: the function had begun there, and it is unknown how far it came"
        return _json(Ended(End.LOST, error=text))
    mine = _RunningCall(output_tail)
    with _guard:
        _calls[key] = mine
    try:
        with _capturing():
            ended = _run(function, kwargs, about, mine, listed)
    except Stopped as error:  # raised just before or after the function
        ended = ended_by_error(error)
    finally:
        with _guard:
            _calls.pop(key, None)
    return _json(replace(ended, output=mine.tail.text() or None))


def stop(key: str) -> bool:
    """Ask a call to stop; returns whether it was here."""
    with _guard:
        found = _calls.get(key)
        if found is not None:
            found.stop.set()
        return found is not None


def strike(key: str) -> bool:
    """Raise `Stopped` in the thread of a call; returns whether it was here."""
    with _guard:  # held, so that the thread cannot leave the call and serve another meanwhile
        found = _calls.get(key)
        if found is not None:
            raise_stopped(found.thread)
        return found is not None


def running(key: str) -> bool:
    with _guard:
        return key in _calls


def _mark(key: str) -> bool:
    """Mark the call as begun; returns true only the first time. The scheduler decides."""
    from distributed import get_client, get_worker

    try:
        get_client(timeout=30).publish_dataset(get_worker().address, name=f"{key}-{STARTED}")
    except KeyError:
        return False
    return True


def _run(function: str, kwargs_json: str, about: str, mine: _RunningCall, listed: bool) -> Ended:
    kwargs = msgspec.json.decode(kwargs_json)
    context = msgspec.json.decode(about, type=RunFacts).context(mine.stop.is_set)
    try:
        called = _find(function)
    except (ImportError, AttributeError) as error:
        return abandoned(f"{function} cannot be imported on the Dask worker: {type(error).__name__}: {error}")
    home = getattr(called, "__module__", None)
    if not listed and home != function.partition(":")[0]:
        # `shop.jobs:*` allows the functions of that module, and not the `system` that it imports from `os`.
        return abandoned(
            f"{function} is not defined in that module but in {home}: list {function} itself in"
            " executors.dask.allow, or call it where it is defined"
        )
    try:
        inspect.signature(called).bind(**kwargs)
    except TypeError as error:
        return abandoned(f"kwargs do not fit {function}: {error}")
    with in_thread(context):
        try:
            value = called(**kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
        except BaseException as error:
            return ended_by_error(error)
        return ended_by(value)


def _find(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _json(ended: Ended) -> str:
    return msgspec.json.encode(ended).decode()


# -- what it prints


class _Spread:
    """A stream that also keeps each thread's text for its own call."""

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
_captures = 0


def _keep(text: str) -> None:
    here = threading.get_ident()
    for one in list(_calls.values()):
        if one.thread == here:
            one.tail.write(text.encode("utf-8", "replace"))


@contextmanager
def _capturing() -> Iterator[None]:
    """Capture the streams and the log while a call is under way in this process."""
    global _captures
    with _guard:
        _captures += 1
        if _captures == 1:
            sys.stdout = cast("IO[str]", _Spread(sys.stdout))
            sys.stderr = cast("IO[str]", _Spread(sys.stderr))
            logging.getLogger().addHandler(_log_tail)
    try:
        yield
    finally:
        with _guard:
            _captures -= 1
            if _captures == 0:
                for name in ("stdout", "stderr"):
                    spread = getattr(sys, name)
                    if isinstance(spread, _Spread):  # else other code has replaced ours
                        setattr(sys, name, spread.stream)
                logging.getLogger().removeHandler(_log_tail)
