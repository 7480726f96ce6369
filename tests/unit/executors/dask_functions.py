"""What the tests have a Dask cluster call."""

from __future__ import annotations

import os
import threading
import time
from os import getpid
from pathlib import Path

from fusee import Abandon, current_run

__all__ = ["add", "crash", "getpid", "hang", "hold", "later", "refuse", "wrong"]

GO_ON = threading.Event()
STARTED = threading.Event()


def add(a: int, b: int) -> dict[str, int]:
    print("adding")
    return {"sum": a + b}


async def later(text: str) -> str:
    return text


def wrong() -> None:
    raise RuntimeError("no luck")


def refuse() -> None:
    raise Abandon("not here")


def hold(journal: str) -> str:
    """Until it may go on; looks whether it is told to stop."""
    with Path(journal).open("a") as file:
        file.write("started\n")
    STARTED.set()
    while not GO_ON.wait(0.01):
        if current_run().stopping:
            print("stopping")
            return "stopped"
    return "held"


def hang(journal: str) -> None:
    """Never looks; only an exception in its thread ends it."""
    Path(journal).write_text("started\n")
    STARTED.set()
    while True:
        time.sleep(0.01)


def crash(journal: str) -> None:
    """Takes its whole process with it."""
    with Path(journal).open("a") as file:
        file.write("started\n")
    os._exit(3)
