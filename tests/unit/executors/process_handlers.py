"""Handlers that the process tests run in a child; importable, as they must be."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusee.engine.model.outcome import Retry
from fusee.engine.worker.context import RunContext, current_run
from fusee.engine.worker.results import Stopped


async def platform() -> str:
    """What the SDK says in this process."""
    from fusee import Fusee

    try:
        await Fusee().enqueue("work")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def whoami(run: RunContext, text: str = "") -> dict[str, Any]:
    print("to stdout", text)
    print("to stderr", file=sys.stderr)
    os.system("echo from a program")
    return {"pid": os.getpid(), "run": run.run_id, "attempt": run.attempt, "same": current_run() is run}


async def later(x: int) -> int:
    await asyncio.sleep(0)
    assert current_run().run_id == 7
    return x + 1


def busy() -> None:
    raise Retry("busy", after=9)


def segfault() -> None:
    print("about to crash", flush=True)
    ctypes.string_at(0)


def leave(code: int) -> None:
    os._exit(code)


def fail() -> None:
    raise KeyError("host")


def hang_up() -> None:
    os.closerange(3, 100)
    time.sleep(60)


def large(size: int) -> str:
    return "x" * size


def length(text: str) -> int:
    return len(text)


def clean(folder: str) -> None:
    """Sleeps for long, cleans up when told to stop."""
    (Path(folder) / "me.pid").write_text(f"{os.getpid()}\n")
    try:
        time.sleep(60)
    except Stopped:
        print("cleaned, stopping is", current_run().stopping)
        raise


def finish(folder: str) -> str:
    """Ends well although told to stop."""
    (Path(folder) / "me.pid").write_text(f"{os.getpid()}\n")
    try:
        time.sleep(60)
    except Stopped:
        pass
    return "done"


async def clean_async(folder: str) -> None:
    (Path(folder) / "me.pid").write_text(f"{os.getpid()}\n")
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned")


def deaf(folder: str) -> None:
    """Swallows every request to stop, and has a child that ignores SIGTERM."""
    script = f"trap '' TERM; echo $$ > {folder}/child.pid; while :; do sleep 0.1; done"
    subprocess.Popen(["sh", "-c", script])
    (Path(folder) / "me.pid").write_text(f"{os.getpid()}\n")
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return ["wrapped", function(*args, **kwargs)]

    return wrapper


@decorated
def inner_and_outer() -> str:
    return "inner"


class Box:
    @staticmethod
    def inside() -> str:
        return "boxed"

    def method(self) -> None: ...


def readable() -> bool:
    """Whether other processes of this user can read the environment of this one."""
    get_dumpable = 3
    return bool(ctypes.CDLL(None).prctl(get_dumpable, 0, 0, 0, 0) == 1)
