"""An item runner: takes a stretch of items out of a segment's window and handles one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any, Protocol

from fusee.bulk.execution.calls import Calls, ItemTimedOut, Unfinished
from fusee.bulk.execution.hanging import HangingCall, LeftRunning
from fusee.bulk.model.window import Window

__all__ = ["ItemRunner", "Later"]


class SegmentWork(Protocol):
    """What an item runner needs of its segment."""

    job_id: int
    retried: int
    timeout: float | None
    calls: Calls
    window: Window
    left: deque[range]

    def leave_hanging(self, call: HangingCall) -> None: ...


@dataclass(order=True, slots=True)
class Later:
    """An item that failed and is retried when it is due."""

    due: float
    index: int
    item: Any = field(compare=False)
    attempt: int = field(compare=False)
    """The number of attempts so far."""


class ItemRunner:
    """Handles one item (or chunk) at a time; `it` iterates over what is left of its stretch."""

    __slots__ = (
        "again", "began", "cancelled_at", "end", "first", "given_up", "it", "items", "marked", "owner",
        "parked", "seen", "since", "stretch", "task", "turn", "waits",
    )  # fmt: skip

    def __init__(self, owner: SegmentWork) -> None:
        self.owner = owner
        self.task: asyncio.Task[None] | None = None
        self.it: Iterator[Any] | None = None
        self.first = 0
        self.marked = 0
        """Items of the stretch below this index are marked in the window."""
        self.end = 0
        self.began = 0.0
        self.stretch = 1
        """The number of items (or chunks) that it takes at once."""
        self.parked = False
        """Whether it waits for something to do: nothing is lost when it is cancelled."""
        self.items: Sequence[Any] = ()
        """The items of the stretch."""
        self.again: Later | None = None
        """The item that it retries."""
        self.turn = 0
        """Distinguishes one call for the same items from the next one."""
        self.waits = False
        """Whether it waits for the source, or for the retry of a chunk: no call is in progress."""
        self.seen: tuple[int, int] | None = None
        """The call that was in progress when the watch looked last."""
        self.since = 0.0
        self.cancelled_at: float | None = None
        """When it was cancelled because its item exceeded the timeout."""
        self.given_up = False
        """Its call continues although it was cancelled; it no longer belongs to the segment."""

    def forgive(self) -> None:
        """The item that it was cancelled for has ended: it continues with other items."""
        self.cancelled_at = None
        if self.task is not None:
            self.task.uncancel()

    # -- where it is in its stretch

    def position(self) -> int:
        """Returns the first item of its stretch that has not ended."""
        assert self.it is not None
        if self.owner.calls.chunked:
            chunk = self.owner.calls.chunk
            units = -(-(self.end - self.first) // chunk)
            return max(self.first, self.first + (units - length_hint(self.it) - 1) * chunk)
        return max(self.first, self.end - length_hint(self.it) - 1)

    def in_progress(self) -> range | None:
        """Returns the items of the call that it waits for; None when no call is in progress."""
        if self.again is not None:
            return range(self.again.index, self.again.index + 1)
        if self.it is None or self.parked or self.waits:
            return None
        at = self.position()
        return range(at, min(self.end, at + self.owner.calls.chunk))

    def give_rest(self, *, keep: bool) -> None:
        """End its stretch after the current item (or chunk); `keep`: other item runners take the rest."""
        if self.it is None or not length_hint(self.it):
            return
        end = min(self.end, self.position() + self.owner.calls.chunk)
        if keep:
            self.owner.left.append(range(end, self.end))
        deque(self.it, maxlen=0)
        self.end = end

    def mark_ended(self) -> None:
        """Mark the items of its stretch that have ended."""
        if self.it is not None and (at := self.position()) > self.marked:
            self.owner.window.mark_all(self.marked, at)
            self.marked = at

    # -- a chunk that is retried

    def begin(self, items: int) -> None:
        self.owner.retried += items
        self.turn += 1
        self.waits = False

    def rest(self) -> None:
        self.waits = True

    def judge(self, error: BaseException, items: Sequence[int]) -> BaseException:
        """Returns the failure of these items. Raises an error that is not theirs and ends the item runner."""
        owner, task = self.owner, self.task
        assert task is not None
        if self.given_up:
            raise Unfinished
        still = ""
        if isinstance(error, LeftRunning):
            call, still = error.call, "in its thread"
            owner.leave_hanging(HangingCall(owner.job_id, items, lambda: call.over, call.outcome))
        if self.cancelled_at is not None:
            self.forgive()
            if task.cancelling():
                raise asyncio.CancelledError
            error = ItemTimedOut(owner.timeout or 0.0, still)
        elif isinstance(error, asyncio.CancelledError) and task.cancelling():
            raise error
        elif isinstance(error, GeneratorExit) and not _is_running(task):
            raise error  # the loop is closed
        return error


def _is_running(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False
