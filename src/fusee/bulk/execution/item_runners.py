"""The item runners of a segment: each takes a stretch of items out of the window and handles one by one.

An item that does not suspend costs an `await` and nothing else: an item runner counts nothing meanwhile. Its
position is read from its iterator, once a second. An item that failed and is retried later steps aside: its
item runner continues with others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain
from operator import length_hint
from typing import Any

from fusee.bulk.execution.calls import Calls, FailedItem, Unfinished
from fusee.bulk.execution.careful import Careful
from fusee.bulk.execution.hanging import HangingCall, HangingCalls
from fusee.bulk.execution.item_runner import ItemRunner, Later
from fusee.bulk.execution.pacer import Pacer
from fusee.bulk.execution.places import Places
from fusee.bulk.model.job import Quarantined
from fusee.bulk.model.pacing import Aimd
from fusee.bulk.sources import Reader
from fusee.engine.model.outcome import Skip
from fusee.errors import FuseeError
from fusee.values.chunks import chunks

__all__ = ["ItemRunners"]

SLICE = 0.005
"""Seconds that items may run without a pause before the event loop gets a turn for everything else."""
LONGEST_STRETCH = 4096
MOST_NEW = 1000
"""Quarantined items that wait for a checkpoint; with more, nothing is started until it is written."""


class ItemRunners:
    """At most `limit` item runners over one window; the segment runner reads their counts at each
    checkpoint."""

    def __init__(
        self,
        job_id: int,
        places: Places,
        calls: Calls,
        reader: Reader,
        pacer: Pacer,
        aimd: Aimd | None,
        hanging: HangingCalls,
    ) -> None:
        self.job_id = job_id
        self.hanging = hanging
        """Calls that could not be stopped, of all segments of this process."""
        self.hung: list[HangingCall] = []
        """Such calls of this segment: each occupies one of its item runners as long as it lasts."""
        self.timeout: float | None = None
        """Seconds that a call for an item or a chunk may take."""
        self.places = places
        self.window = places.window
        self.calls = calls
        self.chunk = calls.chunk
        self.reader = reader
        self.pacer = pacer
        self.aimd = aimd
        self.share = 0
        self.room = 0
        """The number of item runners that it may have: its share, less the calls that hang."""
        self.quarantined = 0
        self.retried = 0
        self.new: list[Quarantined] = []
        """Items that are quarantined and not yet written."""
        self.errors_left: int | None = None
        self.failed_now = 0
        self.runners: set[ItemRunner] = set()
        self.left: deque[range] = deque()
        """Stretches that were issued and not begun."""
        self.later: list[Later] = []
        """A heap of items that wait for a retry; they keep their place in the window, and no item runner."""
        self.parked: deque[asyncio.Future[None]] = deque()
        self.reading = 0
        """The number of item runners that wait for the source."""
        self.careful: Careful | None = None
        """Says which items may start, after workers were lost with the segment."""
        self.closing = False
        self.error: BaseException | None = None
        self.urgent = asyncio.Event()
        """Set when the next checkpoint should be written now."""
        self.pacing = False
        """One item runner at a time waits for the rate; the others are parked."""
        self.busy_seconds = 0.0
        self._slice_began = 0.0
        self._pausing = False
        self._current: ItemRunner | None = None

    @property
    def limit(self) -> int:
        return self.room if self.aimd is None else min(self.room, self.aimd.allowed)

    @property
    def busy(self) -> int:
        """The number of item runners that have something to do."""
        return sum(not runner.parked for runner in self.runners)

    def fail(self, error: BaseException) -> None:
        """The segment cannot continue; the first error counts."""
        self.error = self.error or error
        self.urgent.set()

    def make_room(self) -> None:
        """Count again how many item runners it may have."""
        self.hung = [call for call in self.hung if not call.over()]
        share = min(self.share, self.calls.most)
        self.room = max(0, share - len(self.hung))
        if share and not self.room and self.error is None:
            self.fail(
                FuseeError(
                    f"all {share} calls that the segment may make at once hang and cannot be stopped: let the"
                    " handler use timeouts of its own, restart the worker, then resume the job"
                )
            )

    def leave_hanging(self, call: HangingCall) -> None:
        """It could not be stopped: no other call for its items begins in this process before it is over."""
        call = self.named(call)
        self.hanging.add(call)
        self.hung.append(call)
        self.make_room()

    def named(self, call: HangingCall) -> HangingCall:
        """Returns the call with its items as every segment knows them, not by their numbers in this
        window."""
        return replace(call, items=self.places.names_of(call.items))

    def fill(self) -> None:
        """Start as many item runners as the limit allows."""
        while len(self.runners) < self.limit and not self.closing:
            runner = ItemRunner(self)
            self.runners.add(runner)
            runner.task = asyncio.create_task(self._serve(runner))

    async def _serve(self, runner: ItemRunner) -> None:
        try:
            await self._work(runner)
        except (asyncio.CancelledError, Unfinished):
            pass
        except BaseException as error:
            self.fail(error)
        finally:
            if runner.it is not None:
                runner.mark_ended()
                runner.it = None
            self.runners.discard(runner)
            self.wake()  # it may have been the one that the parked ones relied on

    async def _work(self, runner: ItemRunner) -> None:
        window, monotonic, chunk = self.window, time.monotonic, self.chunk
        work = self._chunks if self.calls.chunked else self._items
        at_hand = self.reader.at_hand
        while not self.closing and len(self.runners) <= self.limit:
            now = monotonic()
            if now - self._slice_began > SLICE:
                if not self._pausing:
                    self._pausing = True
                    asyncio.get_running_loop().call_soon(self._new_slice)
                await asyncio.sleep(0)
                continue
            if len(self.new) >= MOST_NEW:
                self.urgent.set()
                await self._park(runner)
                continue
            if self.later and self.later[0].due <= now:
                await self._again(runner, heappop(self.later))
                continue
            if self.left:
                stretch = self._from_left(runner.stretch * chunk)
            elif self.pacer.limited:
                if self.pacing or window.full:
                    await self._park(runner)
                    continue
                stretch = await self._paced(runner)
                if not stretch:
                    continue  # interrupted for an item whose retry is due, or the window is full
                now = monotonic()
            else:
                stretch = window.issue(runner.stretch * chunk)
            if not stretch:
                await self._park(runner)
                continue
            if self.parked:
                self.wake()
            first = runner.first = runner.marked = stretch.start
            end = runner.end = stretch.stop
            runner.began = now
            self._current = runner
            items = at_hand(first, end)
            if items is None:
                runner.it = iter(stretch if not self.calls.chunked else range(first, end, chunk))
                self.reading += 1
                runner.waits = True
                try:
                    items = await self.reader.read(first, end)
                finally:
                    self.reading -= 1
                    runner.waits = False
                items = items[: runner.end - first]  # other item runners may have taken the rest meanwhile
            runner.items = items
            await work(runner, items)
            if runner.given_up:
                return
            # Before anything else: an item that ended and is not marked would be done again after a crash.
            runner.it = None
            if runner.marked < runner.end:
                window.mark_all(runner.marked, runner.end)
            if runner.cancelled_at is not None:
                runner.forgive()
            took = monotonic() - now
            self.busy_seconds += took
            if self._current is not runner:
                runner.stretch = 1  # it suspended: others shall have the next items
            elif took < 0.0005:
                if runner.stretch < LONGEST_STRETCH:
                    runner.stretch *= 2
            elif took > 0.002 and runner.stretch > 1:
                runner.stretch //= 2
            if window.watermark >= self.places.end:
                self.urgent.set()
            if self.parked:
                self.wake()

    async def _items(self, runner: ItemRunner, items: Sequence[Any]) -> None:
        call = self.calls.call
        it = runner.it = self.calls.iterate(items, runner.first)
        while True:
            try:
                for item in it:
                    await call(item)
                return
            except BaseException as error:
                index = runner.end - 1 - length_hint(it)
                fault = runner.judge(error, (index,))
                runner.mark_ended()
                runner.marked = index + 1  # from here on the item no longer belongs to this stretch
                self._failed(item, index, fault, 1)

    async def _chunks(self, runner: ItemRunner, items: Sequence[Any]) -> None:
        call, chunk, indexed = self.calls.call, self.chunk, self.calls.indexed
        it = runner.it = iter(range(runner.first, runner.end, chunk))
        parts = _in_chunks(items, chunk)
        while True:
            try:
                for at, part in zip(it, parts):  # noqa: B905 - `it` may be shortened meanwhile
                    answer = await call((range(at, at + len(part)), part) if indexed else part)
                    if answer is not None:
                        for failed in await self.calls.answered(part, at, answer, runner):
                            self.quarantine(failed)
                return
            except BaseException as error:
                fault = runner.judge(error, range(at, at + len(part)))
                for failed in await self.calls.chunk_again(part, at, fault, runner):
                    self.quarantine(failed)

    def _failed(self, item: Any, index: int, error: BaseException, attempt: int) -> None:
        """An attempt of an item failed: it waits for the next one, or is quarantined."""
        if isinstance(error, Skip):
            self.window.mark(index)
            return
        seconds = self.calls.pause_after(attempt, error)
        if seconds is None:
            self.quarantine(FailedItem(index, item[1] if self.calls.indexed else item, error, attempt))
            self.window.mark(index)
            return
        loop = asyncio.get_running_loop()
        heappush(self.later, Later(time.monotonic() + seconds, index, item, attempt))
        # A millisecond more: a timer may be early by the clock's resolution.
        loop.call_later(seconds + 0.001, self._call_for_again)

    def _call_for_again(self) -> None:
        """Let an item runner look for retries that are due: one that has nothing to do, or the one that waits
        for the rate. When all are busy, the first that has finished finds them."""
        if self.parked:
            self.wake()
        else:
            self.pacer.interrupt()

    async def _again(self, runner: ItemRunner, one: Later) -> None:
        """Retry one item."""
        await self.pacer.charge()
        self.retried += 1
        began = runner.began = time.monotonic()
        runner.turn += 1
        runner.again = one
        try:
            await self.calls.call(one.item)
        except BaseException as error:
            fault = runner.judge(error, (one.index,))
            self._failed(one.item, one.index, fault, one.attempt + 1)
        else:
            if runner.given_up:
                raise Unfinished
            self.window.mark(one.index)
        finally:
            runner.again = None
        if runner.cancelled_at is not None:
            runner.forgive()
        self.busy_seconds += time.monotonic() - began
        if self.window.watermark >= self.places.end:
            self.urgent.set()
        if self.parked:
            self.wake()

    async def _paced(self, runner: ItemRunner) -> range:
        runner.parked = self.pacing = True
        try:
            count = await self.pacer.take(runner.stretch * self.chunk)
        finally:
            runner.parked = self.pacing = False
        stretch = self.window.issue(count)
        if len(stretch) < count:
            self.pacer.give_back(count - len(stretch))
        return stretch

    def _from_left(self, most: int) -> range:
        stretch = self.left.popleft()
        if len(stretch) > most:
            self.left.appendleft(stretch[most:])
            stretch = stretch[:most]
        return stretch

    async def _park(self, runner: ItemRunner) -> None:
        """Wait until there may be something to do."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parked.append(waiter)
        runner.parked = True
        if self.careful is not None and self.careful.wants_more(self.busy):
            self.urgent.set()
        try:
            await waiter
        finally:
            runner.parked = False

    def wake(self) -> None:
        """Wake one parked item runner; each that finds something to do wakes the next."""
        while self.parked:
            waiter = self.parked.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _new_slice(self) -> None:
        self._pausing = False
        self._slice_began = time.monotonic()

    def quarantine(self, failed: FailedItem) -> None:
        self.quarantined += 1
        self.failed_now += 1
        self.new.append(replace(failed, index=self.places.place_of(failed.index)).quarantined())
        if self.errors_left is not None and self.failed_now > self.errors_left:
            self.urgent.set()


def _in_chunks(items: Sequence[Any], chunk: int) -> Iterator[Sequence[Any]]:
    """The chunks of a range are made without a step in Python, which would cost as much as an empty call."""
    if isinstance(items, range) and items.step == 1:
        first, end = items.start, items.stop
        return map(range, range(first, end, chunk), chain(range(first + chunk, end, chunk), (end,)))
    return chunks(items, chunk)
