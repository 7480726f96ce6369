"""A loop is a `Service`: its body is `run_once`, which returns what it did.

Tests call `run_once` and look at the answer; the loop calls it again and again, waits in between,
is woken early by `wake()`, survives a failing pass and says so, and stops between two passes.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Any

from fusee.events import Bus, LoopFailed

__all__ = ["Service"]

# A loop that keeps failing (the database is down) asks again at this pace at the most.
LONGEST_BACKOFF = 10.0


class Service(ABC):
    """One loop: `await service.run()` until `service.stop()`."""

    def __init__(self, name: str, interval: float, bus: Bus) -> None:
        self.name = name
        self.interval = interval
        self.bus = bus
        self.pause: float | None = None
        """How long `run_once` wants to wait at most before the next pass."""
        self._woken = asyncio.Event()
        self._stopping = False

    @abstractmethod
    async def run_once(self) -> Any:
        """One pass; returns what it did, something falsy when there was nothing to do."""

    def wake(self) -> None:
        """Run the next pass now instead of at the end of the interval."""
        self._woken.set()

    def stop(self) -> None:
        """End after the current pass."""
        self._stopping = True
        self._woken.set()

    @property
    def stopping(self) -> bool:
        return self._stopping

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            self._woken.clear()
            try:
                did = await self.run_once()
                failures = 0
            except Exception as error:
                failures += 1
                did = None
                self.bus.emit(LoopFailed(loop=self.name, error=error, failures=failures))
            if did and failures == 0:
                await asyncio.sleep(0)  # there may be more: go on at once, but let others run
                continue
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        """Wait for the interval, with jitter so that many processes do not ask in step."""
        seconds = self.interval * random.uniform(0.75, 1.25)
        if self.pause is not None:
            seconds = min(seconds, self.pause)
        if failures:
            seconds = max(seconds, min(LONGEST_BACKOFF, 0.2 * 2 ** min(failures, 6)) * random.uniform(0.5, 1))
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            pass
