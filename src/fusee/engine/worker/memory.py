"""The memory limit of a worker's process: above it the worker claims nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fusee.events import Bus, WorkerMemory

__all__ = ["MemoryLimit", "resident"]

_STATM = Path("/proc/self/statm")
LOW = 0.9
"""The share of the limit below which runs are claimed again; one threshold alone would flip on and off."""


def resident() -> int | None:
    """Return the bytes of memory that this process holds; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class MemoryLimit:
    """`full` is true while the process is above its limit. Tests replace `measure`."""

    limit: int | None
    worker: str
    bus: Bus
    measure: Callable[[], int | None] = resident
    full: bool = False

    def look(self) -> bool:
        """Measure; returns true when claiming may resume."""
        if self.limit is None:
            return False
        used = self.measure()
        if used is None:
            # The limit cannot be kept, and the operator must know.
            self.bus.emit(WorkerMemory(worker=self.worker, used=None, limit=self.limit, full=False))
            self.limit = None
            return False
        was, self.full = self.full, used > self.limit * (LOW if self.full else 1.0)
        if was != self.full:
            self.bus.emit(WorkerMemory(worker=self.worker, used=used, limit=self.limit, full=self.full))
        return was and not self.full
