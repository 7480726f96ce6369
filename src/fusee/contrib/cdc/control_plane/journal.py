"""The control plane's journal: one JSON line for each change, with what was and what is.

Each line is one O_APPEND write, made before the change is answered for: what stands there is what happened.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["ADDED", "REMOVED", "Entry", "Journal", "read_journal"]

ADDED = "add"
REMOVED = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    seq: int
    at: float
    """Seconds since the epoch."""
    job: str
    verb: str
    before: dict[str, Any]
    """Of what changed only; everything, when the job was removed."""
    after: dict[str, Any]
    """Of what changed only; everything, when the job was added."""
    key: str | None = None
    """The idempotency key of the request."""
    fence: str | None = None
    """Its fencing token."""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._last = max((entry.seq for entry in read_journal(path)), default=0)

    def write(self, job: str, verb: str, before: dict[str, Any], after: dict[str, Any], **more: Any) -> None:
        self._last += 1
        entry = Entry(seq=self._last, at=time.time(), job=job, verb=verb, before=before, after=after, **more)
        os.write(self._file, json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_journal(path: Path) -> list[Entry]:
    """Every whole line."""
    text = path.read_bytes()
    return [Entry(**json.loads(line)) for line in text[: text.rfind(b"\n") + 1].splitlines()]
