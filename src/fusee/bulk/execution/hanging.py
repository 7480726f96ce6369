"""Calls that cannot be stopped: sync handlers in threads, and what still runs after it was cancelled.

A thread cannot be stopped. The caller that waits for it may be cancelled; the call then continues by itself,
and `LeftRunning` says so. Threads are daemons: one that hangs does not keep the process from ending. The
items of a call that still runs are not started beside it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HangingCall", "HangingCalls", "LeftRunning", "Threads", "after"]

LOOK_EVERY = 0.05


class LeftRunning(asyncio.CancelledError):
    """Nobody waits for the call any more, and it still runs."""

    def __init__(self, call: ThreadCall) -> None:
        super().__init__()
        self.call = call


class ThreadCall:
    """One call of a handler in a thread."""

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
        except StopIteration as error:  # it cannot be raised out of a coroutine
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
    """As many threads as there are concurrent calls; they are reused."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._free = self._many = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        call = ThreadCall(function)
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
        """Let each thread end when its call has ended."""
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

    def _ended(self, call: ThreadCall) -> None:
        self._free += 1
        if not call.waiter.done():
            call.waiter.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class HangingCall:
    job_id: int
    items: Sequence[int]
    """The places of its items in the job, in order; for rows by key, their keys."""
    over: Callable[[], bool]
    outcome: Callable[[], Any] | None = None
    """Returns or raises the outcome of the call once it is over; None when the outcome is not known."""


class HangingCalls:
    """The hanging calls of one process, of all jobs, also of segments that ended meanwhile."""

    def __init__(self) -> None:
        self._calls: list[HangingCall] = []

    def add(self, call: HangingCall) -> None:
        self._calls.append(call)

    def of(self, job_id: int) -> list[HangingCall]:
        self._calls = [call for call in self._calls if not call.over()]
        return [call for call in self._calls if call.job_id == job_id]


def after(
    hanging: Sequence[HangingCall], call: Callable[[Any], Any], *, indexed: bool, keyed: bool = False
) -> Callable[..., Any]:
    """Returns a `call` that takes (index or indexes, what `call` takes) and waits for the hanging calls of
    the same items. When one of them had exactly these items, its outcome counts, and the items are not called
    for again."""

    async def waiting(given: tuple[Any, Any]) -> Any:
        alone = isinstance(given[0], int)
        wanted = (given[0],) if alone else given[0]
        if keyed:
            wanted = sorted(row.index for row in ((given[1],) if alone else given[1]))
        for one in hanging:
            if not _overlap(one.items, wanted):
                continue
            while not one.over():  # noqa: ASYNC110 - rare, and its thread may belong to a loop that is closed
                await asyncio.sleep(LOOK_EVERY)
            if one.outcome is not None and list(one.items) == list(wanted):
                return one.outcome()
        return await call(given if indexed else given[1])

    return waiting


def _overlap(one: Sequence[int], other: Sequence[int]) -> bool:
    if one[-1] < other[0] or other[-1] < one[0]:
        return False
    return not set(one).isdisjoint(other)
