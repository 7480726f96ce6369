"""A handler for processes: it writes what it does into a file, which is the judge of the tests."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from fusee import RunContext

__all__ = ["Line", "read", "work"]

# Set once the worker has imported this: then each process that it starts for a handler is slow to begin.
if slowest := os.environ.get("FUSEE_TEST_SLOWEST_IMPORT"):
    time.sleep(random.uniform(0, float(slowest)))


@dataclass(frozen=True)
class Line:
    run: int
    attempt: int
    what: str
    at: float
    """By the monotonic clock, which all processes of a machine share."""


def _write(journal: str, run: RunContext, what: str) -> None:
    line = f"{run.run_id} {run.attempt} {what} {time.monotonic()}\n"
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())  # one write, so that lines of several processes do not mix
    finally:
        os.close(file)


def work(run: RunContext, journal: str, seconds: float = 0.0, fail: int = 0) -> None:
    """Fails in its first `fail` attempts."""
    _write(journal, run, "start")
    try:
        time.sleep(seconds)
    finally:
        _write(journal, run, "end")
    if run.attempt <= fail:
        raise ValueError("again")


def read(journal: Path) -> list[Line]:
    text = journal.read_text() if journal.exists() else ""
    rows = (line.split() for line in text.splitlines())
    return [Line(int(run), int(attempt), what, float(at)) for run, attempt, what, at in rows]
