"""A runner: takes a stretch of items out of a segment's window, and handles one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fusee.bulk.execution.calls import ItemTimedOut, Unfinished
from fusee.bulk.execution.hanging import HangingCall
from fusee.bulk.execution.threads import LeftRunning

__all__ = ["ItemRunner", "Later"]


class SegmentWork(Protocol):
    job_id: int
    retried: int
    timeout: float | None

    def leave_hanging(self, call: HangingCall) -> None: ...


@dataclass(order=True, slots=True)
class Later:
    """An item that failed and is tried again when its time has come."""

    due: float
    index: int
    item: Any = field(compare=False)
    attempt: int = field(compare=False)
    """How often it was tried."""


class ItemRunner:
    """One item (or chunk) at a time; `it` runs over what is left of the stretch it took."""

    __slots__ = (
        "again", "began", "end", "first", "given_up", "it", "items", "marked", "owner", "parked", "seen",
        "since", "stretch", "task", "told_at", "turn", "waits",
    )  # fmt: skip

    def __init__(self, owner: SegmentWork) -> None:
        self.owner = owner
        self.task: asyncio.Task[None] | None = None
        self.it: Iterator[Any] | None = None
        self.first = 0
        self.marked = 0
        """Items of the stretch below this are marked in the window."""
        self.end = 0
        self.began = 0.0
        self.stretch = 1
        """Units to take at once."""
        self.parked = False
        """It waits for something to do: nothing is lost when it is cancelled."""
        self.items: Sequence[Any] = ()
        """Those of the stretch."""
        self.again: Later | None = None
        """The item that it tries again."""
        self.turn = 0
        """Tells one call for the same items from the next."""
        self.waits = False
        """It waits for the source, or for the time to try a chunk again: no call is under way."""
        self.seen: tuple[int, int] | None = None
        """The call that was under way when the watch last looked."""
        self.since = 0.0
        self.told_at: float | None = None
        """When it was cancelled because of its item's timeout."""
        self.given_up = False
        """Its item goes on though it was cancelled; it is not the segment's any more."""

    def forgive(self) -> None:
        """The item that it was cancelled for has ended: it goes on with others."""
        self.told_at = None
        if self.task is not None:
            self.task.uncancel()

    # -- a chunk that is tried again

    def begin(self, items: int) -> None:
        self.owner.retried += items
        self.turn += 1
        self.waits = False

    def rest(self) -> None:
        self.waits = True

    def judge(self, error: BaseException, items: Sequence[int]) -> BaseException:
        """What an item's failure is. Raises what is not the item's, but the end of the runner."""
        owner, task = self.owner, self.task
        assert task is not None
        if self.given_up:
            raise Unfinished
        still = ""
        if isinstance(error, LeftRunning):
            call, still = error.call, "in its thread"
            owner.leave_hanging(HangingCall(owner.job_id, items, lambda: call.over, call.outcome))
        if self.told_at is not None:
            self.forgive()
            if task.cancelling():
                raise asyncio.CancelledError
            error = ItemTimedOut(owner.timeout or 0.0, still)
        elif isinstance(error, asyncio.CancelledError) and task.cancelling():
            raise error
        elif isinstance(error, GeneratorExit) and not _is_running(task):
            raise error  # the loop is gone
        return error


def _is_running(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False
