"""A wake-up with a timeout, lighter than an `asyncio.Event` under `wait_for`, which makes a task."""

from __future__ import annotations

import asyncio

__all__ = ["Nudge"]


class Nudge:
    """Wakes all who wait; a nudge that comes while nobody waits is kept for the next one who does."""

    __slots__ = ("_kept", "_waiting")

    def __init__(self) -> None:
        self._kept = False
        self._waiting: set[asyncio.Future[None]] = set()

    def __call__(self) -> None:
        if not self._waiting:
            self._kept = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float) -> None:
        """Return at the next nudge, or when the time is up."""
        if self._kept:
            self._kept = False
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        timer = loop.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.discard(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
