"""Sync handlers of a segment, in daemon threads: one that hangs does not keep the process from ending.

A thread cannot be stopped. Whoever waits for a call may be cancelled; the call then goes on by itself, and
`LeftRunning` says so.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["LeftRunning", "Threads"]


class LeftRunning(asyncio.CancelledError):
    """Nobody waits for the call any more, and it still runs."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


class Call:
    """One call of a handler on its way through a thread."""

    __slots__ = ("error", "function", "loop", "over", "result", "waiter")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[None] = self.loop.create_future()
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except StopIteration as error:  # as in a coroutine, out of which it cannot be raised
            self.error = RuntimeError("the handler raised StopIteration")
            self.error.__cause__ = error
        except BaseException as error:
            self.error = error
        self.over = True

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Threads:
    """As many threads as there are calls at once; they are reused."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._free = self._many = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        call = Call(function)
        if self._free:
            self._free -= 1
        else:
            self._many += 1
            threading.Thread(target=self._serve, name=f"fusee-bulk-{self._many}", daemon=True).start()
        self._waiting.put(call)
        try:
            await call.waiter
        except asyncio.CancelledError:
            if not call.over:
                raise LeftRunning(call) from None
            raise
        return call.outcome()

    def close(self) -> None:
        """Threads end when their calls have ended."""
        for _ in range(self._many):
            self._waiting.put(None)

    def _serve(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.run()
            try:
                call.loop.call_soon_threadsafe(self._ended, call)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del call

    def _ended(self, call: Call) -> None:
        self._free += 1
        if not call.waiter.done():
            call.waiter.set_result(None)
