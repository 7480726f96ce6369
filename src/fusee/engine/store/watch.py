"""A deadline, on the client's side, for each statement on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Watch"]


class Watch:
    """Closes a connection when the server has not answered in time.

    Closing makes the driver fail whoever waits for the answer, and keeps the connection out of its pool. A
    cancel would do neither for sure: before Python 3.12 it can be lost in `asyncio.wait_for`, which drivers
    use, and a driver that was cancelled waits for the server to confirm it.
    """

    __slots__ = ("_close", "_due", "_loop", "_seconds", "_timer", "missed")

    def __init__(self, seconds: float, close: Callable[[], None]) -> None:
        self._seconds = seconds
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._due, self._look)
        self.missed = False

    @property
    def seconds(self) -> float:
        return self._seconds

    def statement(self) -> None:
        """The next statement begins: it has the whole time for itself."""
        self._due = self._loop.time() + self._seconds

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._timer = None
        self.missed = True
        self._close()
