"""The runners of a segment: each takes a stretch of items out of the window and handles one after the other.

An item that does not suspend costs an `await` and nothing else: a runner counts nothing meanwhile. Where it
stands is read from its iterator, once a second. An item that failed and is tried again later steps aside:
its runner goes on with others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain
from operator import length_hint
from typing import Any

from fusee.bulk.execution.calls import Calls, FailedItem, ItemTimedOut, Unfinished
from fusee.bulk.execution.careful import Careful
from fusee.bulk.execution.hanging import HangingCall, HangingCalls
from fusee.bulk.execution.item_runner import ItemRunner, Later
from fusee.bulk.execution.pacer import Pacer
from fusee.bulk.execution.places import Places
from fusee.bulk.model.job import HeldBy, Quarantined
from fusee.bulk.model.pacing import Aimd
from fusee.bulk.sources import Reader
from fusee.engine.model.outcome import Skip
from fusee.errors import FuseeError
from fusee.values.chunks import chunks

__all__ = ["ItemRunners"]

SLICE = 0.005
"""Seconds that items may run without a pause before the loop gets a turn for everything else."""
STUCK = 0.05
"""Seconds after which what a runner has not begun yet goes to others."""
LONGEST_STRETCH = 4096
MOST_NEW = 1000
"""Quarantined items that wait for a checkpoint; with more, nothing is started until it is written."""
GIVE_UP = 5.0
"""Seconds that an item has to end after it was cancelled."""
LOOK_EVERY = 1.0
"""Seconds between two looks for items that take too long, at the most."""


class ItemRunners:
    """At most `limit` runners over one window; what they did is read from here, and cleared, by the beat."""

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
        """Those of this segment: each takes one of its runners as long as it lasts."""
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
        """ItemRunners that it may have: its share, less those that hang."""
        self.quarantined = 0
        self.retried = 0
        self.new: list[Quarantined] = []
        """Quarantined, and not written yet."""
        self.errors_left: int | None = None
        self.failed_now = 0
        self.runners: set[ItemRunner] = set()
        self.left: deque[range] = deque()
        """Stretches that were issued and not begun."""
        self.later: list[Later] = []
        """A heap of items that wait to be tried again; they hold their place in the window, and no runner."""
        self.parked: deque[asyncio.Future[None]] = deque()
        self.reading = 0
        """ItemRunners that wait for the source."""
        self.careful: Careful | None = None
        """Says which items may start, after workers were lost with the segment."""
        self.held: Counter[HeldBy] = Counter()
        """What kept it from starting more, as seen every `STUCK` seconds since the last checkpoint."""
        self.closing = False
        self.error: BaseException | None = None
        self._urgent = asyncio.Event()
        self._slice_began = 0.0
        self._pausing = False
        self._pacing = False
        """One runner at a time waits for the rate; the others are parked."""
        self._current: ItemRunner | None = None
        self._busy = 0.0

    @property
    def end(self) -> int:
        """The watermark when everything is done."""
        return self.places.end

    @property
    def limit(self) -> int:
        return self.room if self.aimd is None else min(self.room, self.aimd.allowed)

    def _make_room(self) -> None:
        """Count again how many runners it may have."""
        self.hung = [call for call in self.hung if not call.over()]
        share = min(self.share, self.calls.most)
        self.room = max(0, share - len(self.hung))
        if share and not self.room and self.error is None:
            self.error = FuseeError(
                f"all {share} calls that the segment may make at once hang and cannot be stopped: let the"
                " handler use timeouts of its own, restart the worker, then resume the job"
            )
            self._urgent.set()

    def leave_hanging(self, call: HangingCall) -> None:
        """It could not be stopped: no other call for its items begins in this process before it is over."""
        call = self._named(call)
        self.hanging.add(call)
        self.hung.append(call)
        self._make_room()

    def _named(self, call: HangingCall) -> HangingCall:
        """By what its items are called in any segment, whatever their numbers in this window."""
        return replace(call, items=self.places.names_of(call.items))

    def _man(self) -> None:
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
            self.error = self.error or error
            self._urgent.set()
        finally:
            if runner.it is not None:
                self._mark_so_far(runner)
                runner.it = None
            self.runners.discard(runner)
            self._wake()  # it may have been the one that the parked ones relied on

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
                self._urgent.set()
                await self._park(runner)
                continue
            if self.later and self.later[0].due <= now:
                await self._again(runner, heappop(self.later))
                continue
            if self.left:
                stretch = self._from_left(runner.stretch * chunk)
            elif self.pacer.limited:
                if self._pacing or window.full:
                    await self._park(runner)
                    continue
                stretch = await self._paced(runner)
                if not stretch:
                    continue  # interrupted for an item whose time has come, or the window is full
                now = monotonic()
            else:
                stretch = window.issue(runner.stretch * chunk)
            if not stretch:
                await self._park(runner)
                continue
            if self.parked:
                self._wake()
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
                items = items[: runner.end - first]  # the rest may have gone to others meanwhile
            runner.items = items
            await work(runner, items)
            if runner.given_up:
                return
            # Before anything else: an item that ended and is not marked would be done again after a crash.
            runner.it = None
            if runner.marked < runner.end:
                window.mark_all(runner.marked, runner.end)
            if runner.told_at is not None:
                runner.forgive()
            took = monotonic() - now
            self._busy += took
            if self._current is not runner:
                runner.stretch = 1  # it suspended: others shall have the next items
            elif took < 0.0005:
                if runner.stretch < LONGEST_STRETCH:
                    runner.stretch *= 2
            elif took > 0.002 and runner.stretch > 1:
                runner.stretch //= 2
            if window.watermark >= self.end:
                self._urgent.set()
            if self.parked:
                self._wake()

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
                self._mark_so_far(runner)
                runner.marked = index + 1  # from here on it is not the runner's
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
                        for failure in await self.calls.answered(part, at, answer, runner):
                            self._quarantine(failure)
                return
            except BaseException as error:
                fault = runner.judge(error, range(at, at + len(part)))
                for failure in await self.calls.chunk_again(part, at, fault, runner):
                    self._quarantine(failure)

    def _failed(self, item: Any, index: int, error: BaseException, attempt: int) -> None:
        """An item's try failed: it waits for the next one, or is given up."""
        if isinstance(error, Skip):
            self.window.mark(index)
            return
        seconds = self.calls.pause_after(attempt, error)
        if seconds is None:
            self._quarantine(FailedItem(index, item[1] if self.calls.indexed else item, error, attempt))
            self.window.mark(index)
            return
        loop = asyncio.get_running_loop()
        heappush(self.later, Later(time.monotonic() + seconds, index, item, attempt))
        # A millisecond more: a timer may be early by the clock's resolution.
        loop.call_later(seconds + 0.001, self._call_for_again)

    def _call_for_again(self) -> None:
        """Someone shall look for items whose time has come: a runner that has nothing to do, or the one that
        waits for the rate. When all are busy, the first that is done finds them."""
        if self.parked:
            self._wake()
        else:
            self.pacer.interrupt()

    async def _again(self, runner: ItemRunner, one: Later) -> None:
        """Try one item again."""
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
        if runner.told_at is not None:
            runner.forgive()
        self._busy += time.monotonic() - began
        if self.window.watermark >= self.end:
            self._urgent.set()
        if self.parked:
            self._wake()

    async def _paced(self, runner: ItemRunner) -> range:
        runner.parked = self._pacing = True
        try:
            count = await self.pacer.take(runner.stretch * self.chunk)
        finally:
            runner.parked = self._pacing = False
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
        if self.careful is not None:
            busy = sum(not runner.parked for runner in self.runners)
            if self.careful.wants_more(busy):
                self._urgent.set()
        try:
            await waiter
        finally:
            runner.parked = False

    def _wake(self) -> None:
        """One at a time: each that finds something to do wakes the next."""
        while self.parked:
            waiter = self.parked.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _new_slice(self) -> None:
        self._pausing = False
        self._slice_began = time.monotonic()

    def _quarantine(self, failure: FailedItem) -> None:
        self.quarantined += 1
        self.failed_now += 1
        self.new.append(replace(failure, index=self.places.place_of(failure.index)).quarantined())
        if self.errors_left is not None and self.failed_now > self.errors_left:
            self._urgent.set()

    # -- what does not go on

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self.error = self.error or error
            self._urgent.set()

    async def _watch(self) -> None:
        """What lies behind a slow item goes to other runners; an item that takes too long is cancelled."""
        looked_at = 0.0
        while True:
            await asyncio.sleep(STUCK)
            now = time.monotonic()
            if self.timeout is not None and now - looked_at >= min(self.timeout / 20, LOOK_EVERY):
                looked_at = now
                self._look_for_late(self.timeout, now)
            for runner in self.runners:
                if runner.it is not None and now - runner.began > STUCK:
                    self._take_rest(runner, keep=True)
            if self.parked and (self.left or (not self._pacing and not self.window.full)):
                self._wake()
            if (held := self._held_by()) is not None:
                self.held[held] += 1

    def _look_for_late(self, timeout: float, now: float) -> None:
        for runner in tuple(self.runners):
            items = self._under_way(runner)
            if items is None:
                runner.seen = None
                continue
            at = items.start
            if runner.told_at is not None:
                if now - runner.told_at >= GIVE_UP:
                    self._give_up(runner, items, timeout)
            elif runner.seen != (runner.turn, at):
                runner.seen = (runner.turn, at)
                runner.since = runner.began if at == runner.first or runner.again is not None else now
            if runner.told_at is None and runner.task is not None and now - runner.since >= timeout:
                runner.told_at = now
                runner.task.cancel()
        if self.hung:
            self._make_room()

    def _under_way(self, runner: ItemRunner) -> range | None:
        """The items of the call that a runner waits for."""
        if runner.again is not None:
            return range(runner.again.index, runner.again.index + 1)
        if runner.it is None or runner.parked or runner.waits:
            return None
        at = self._at(runner)
        return range(at, min(runner.end, at + self.chunk))

    def _give_up(self, runner: ItemRunner, items: range, timeout: float) -> None:
        """It was cancelled, and its item goes on: the item failed, the segment goes on without the runner."""
        task, one = runner.task, runner.again
        assert task is not None
        error = ItemTimedOut(timeout, f"{GIVE_UP:g} s after it was cancelled")
        attempt = 1 if one is None else one.attempt + 1
        if one is None:
            self._take_rest(runner, keep=True)
            self._mark_so_far(runner)
        for index in items:
            if one is None:
                item = runner.items[index - runner.first]
            else:
                item = one.item[1] if self.calls.indexed else one.item
            self._quarantine(FailedItem(index, item, error, attempt))
            self.window.mark(index)
        runner.given_up, runner.it = True, None
        self.runners.discard(runner)
        self.leave_hanging(HangingCall(self.job_id, items, task.done))
        self._man()

    def _held_by(self) -> HeldBy | None:
        """What keeps the segment from starting more items right now."""
        if self.pacer.waiting_for_node:
            return HeldBy.NODE_CAP
        if self.pacer.starving:
            return HeldBy.RATE
        if self.limit <= 0:
            return HeldBy.CONCURRENCY
        busy = sum(not runner.parked for runner in self.runners)
        if (self.reading or self.places.reading) and self.reading >= busy:
            return HeldBy.SOURCE
        if self.window.full:
            return HeldBy.WINDOW if busy < self.limit else HeldBy.HANDLER
        return HeldBy.HANDLER if busy >= self.limit else None

    def _take_rest(self, runner: ItemRunner, *, keep: bool) -> None:
        """End a runner's stretch behind the unit that it works on."""
        it = runner.it
        if it is None or not length_hint(it):
            return
        end = min(runner.end, self._at(runner) + self.chunk)
        if keep:
            self.left.append(range(end, runner.end))
        deque(it, maxlen=0)
        runner.end = end

    def _mark_so_far(self, runner: ItemRunner) -> None:
        """A runner in the middle of its stretch: what is behind it is done."""
        if runner.it is not None and (at := self._at(runner)) > runner.marked:
            self.window.mark_all(runner.marked, at)
            runner.marked = at

    def _at(self, runner: ItemRunner) -> int:
        """The first item of a runner's stretch that has not ended."""
        assert runner.it is not None
        if self.calls.chunked:
            units = -(-(runner.end - runner.first) // self.chunk)
            return max(runner.first, runner.first + (units - length_hint(runner.it) - 1) * self.chunk)
        return max(runner.first, runner.end - length_hint(runner.it) - 1)

    async def _close(self, seconds: float) -> None:
        """Nothing starts any more; what is under way has so long to end."""
        self.closing = True
        for runner in tuple(self.runners):
            if runner.parked and runner.task is not None:
                runner.task.cancel()
            else:
                self._take_rest(runner, keep=False)
        self.calls.stop()
        tasks = [runner.task for runner in self.runners if runner.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await self._cancel_runners()

    async def _cancel_runners(self) -> None:
        """What does not end all the same is left to itself, and not started again beside itself here."""
        self.closing = True
        tasks = [runner.task for runner in self.runners if runner.task is not None]
        for runner in tuple(self.runners):
            self._take_rest(runner, keep=False)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GIVE_UP)
        for runner in tuple(self.runners):
            if runner.task is None or runner.task.done() or runner.given_up:
                continue
            runner.given_up = True
            at = (
                runner.again.index
                if runner.again is not None
                else self._at(runner)
                if runner.it is not None
                else None
            )
            if at is not None:
                many = 1 if runner.again is not None else min(self.chunk, runner.end - at)
                call = HangingCall(self.job_id, range(at, at + many), runner.task.done)
                self.hanging.add(self._named(call))
            self.runners.discard(runner)


def _in_chunks(items: Sequence[Any], chunk: int) -> Iterator[Sequence[Any]]:
    """A range's without a step of Python's own, which would cost as much as an empty call."""
    if isinstance(items, range) and items.step == 1:
        first, end = items.start, items.stop
        return map(range, range(first, end, chunk), chain(range(first + chunk, end, chunk), (end,)))
    return chunks(items, chunk)
