"""Time as a part: everything that waits or measures is given a `Clock`.

The database's clock decides about leases and due times; this one paces loops and measures durations.
On SQLite, which has no clock of its own, it is both.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["MICROSECONDS", "Clock", "ManualClock", "SystemClock"]

MICROSECONDS = 1_000_000


class Clock(Protocol):
    """Wall time in microseconds since the epoch, monotonic seconds, and a way to wait."""

    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to: `clock.tick(minutes=5)`."""

    def __init__(self, start_us: int = 1_800_000_000 * MICROSECONDS) -> None:
        self._us = start_us
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def now_us(self) -> int:
        return self._us

    def monotonic(self) -> float:
        return self._us / MICROSECONDS

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._us + round(seconds * MICROSECONDS), wake))
        await wake

    def tick(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> int:
        """Move time forward and wake everyone whose time has come; answers the new time."""
        self._us += round((seconds + 60 * minutes + 3600 * hours + 86400 * days) * MICROSECONDS)
        due = [wake for at, wake in self._sleepers if at <= self._us]
        self._sleepers = [(at, wake) for at, wake in self._sleepers if at > self._us]
        for wake in due:
            if not wake.done():
                wake.set_result(None)
        return self._us
