"""The memory limit of a worker's process: above it the worker claims nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fusee.events import Bus, WorkerMemory

__all__ = ["MemoryLimit", "resident"]

_STATM = Path("/proc/self/statm")
LOW = 0.9
"""Of the limit: so far it must fall before runs are claimed again, or it would go on and off at the edge."""


def resident() -> int | None:
    """Bytes of memory that this process holds; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class MemoryLimit:
    """`full` while the process is above its limit; `measure` is a part that tests exchange."""

    def __init__(
        self, limit: int | None, worker: str, bus: Bus, measure: Callable[[], int | None] = resident
    ) -> None:
        self.limit = limit
        self.worker = worker
        self.bus = bus
        self.measure = measure
        self.full = False

    def look(self) -> bool:
        """Measure; true when runs may be claimed again that could not be before."""
        if self.limit is None:
            return False
        used = self.measure()
        if used is None:
            # It cannot be kept, and whoever set it must know.
            self.bus.emit(WorkerMemory(worker=self.worker, used=None, limit=self.limit, full=False))
            self.limit = None
            return False
        was, self.full = self.full, used > self.limit * (LOW if self.full else 1.0)
        if was != self.full:
            self.bus.emit(WorkerMemory(worker=self.worker, used=used, limit=self.limit, full=self.full))
        return was and not self.full
