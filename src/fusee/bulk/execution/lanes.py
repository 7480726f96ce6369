"""The lanes of a segment: each takes a stretch of items out of the window and handles one after the other.

An item that does not suspend costs an `await` and nothing else: a lane counts nothing meanwhile. Where it
stands is read from its iterator, once a second. An item that failed and is tried again later steps aside:
its lane goes on with others.
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

from fusee.bulk.execution.calls import Calls, Failure, ItemTimedOut, Unfinished
from fusee.bulk.execution.careful import Careful
from fusee.bulk.execution.hanging import HangingCall, HangingCalls
from fusee.bulk.execution.lane import Lane, Later
from fusee.bulk.execution.pacer import Pacer
from fusee.bulk.execution.places import Places
from fusee.bulk.model.job import HeldBy, Quarantined
from fusee.bulk.model.pacing import Aimd
from fusee.bulk.sources import Reader
from fusee.engine.model.outcome import Skip
from fusee.errors import FuseeError
from fusee.values.chunks import chunks

__all__ = ["Lanes"]

SLICE = 0.005
"""Seconds that items may run without a pause before the loop gets a turn for everything else."""
STUCK = 0.05
"""Seconds after which what a lane has not begun yet goes to others."""
LONGEST_STRETCH = 4096
MOST_NEW = 1000
"""Quarantined items that wait for a checkpoint; with more, nothing is started until it is written."""
GIVE_UP = 5.0
"""Seconds that an item has to end after it was cancelled."""
LOOK_EVERY = 1.0
"""Seconds between two looks for items that take too long, at the most."""


class Lanes:
    """At most `limit` lanes over one window; what they did is read from here, and cleared, by the beat."""

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
        """Those of this segment: each takes one of its lanes as long as it lasts."""
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
        """Lanes that it may have: its share, less those that hang."""
        self.quarantined = 0
        self.retried = 0
        self.new: list[Quarantined] = []
        """Quarantined, and not written yet."""
        self.errors_left: int | None = None
        self.failed_now = 0
        self.lanes: set[Lane] = set()
        self.left: deque[range] = deque()
        """Stretches that were issued and not begun."""
        self.later: list[Later] = []
        """A heap of items that wait to be tried again; they hold their place in the window, and no lane."""
        self.parked: deque[asyncio.Future[None]] = deque()
        self.reading = 0
        """Lanes that wait for the source."""
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
        """One lane at a time waits for the rate; the others are parked."""
        self._current: Lane | None = None
        self._busy = 0.0

    @property
    def end(self) -> int:
        """The watermark when everything is done."""
        return self.places.end

    @property
    def limit(self) -> int:
        return self.room if self.aimd is None else min(self.room, self.aimd.allowed)

    def _make_room(self) -> None:
        """Count again how many lanes it may have."""
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
        while len(self.lanes) < self.limit and not self.closing:
            lane = Lane(self)
            self.lanes.add(lane)
            lane.task = asyncio.create_task(self._serve(lane))

    async def _serve(self, lane: Lane) -> None:
        try:
            await self._work(lane)
        except (asyncio.CancelledError, Unfinished):
            pass
        except BaseException as error:
            self.error = self.error or error
            self._urgent.set()
        finally:
            if lane.it is not None:
                self._mark_so_far(lane)
                lane.it = None
            self.lanes.discard(lane)
            self._wake()  # it may have been the one that the parked ones relied on

    async def _work(self, lane: Lane) -> None:
        window, monotonic, chunk = self.window, time.monotonic, self.chunk
        work = self._chunks if self.calls.chunked else self._items
        at_hand = self.reader.at_hand
        while not self.closing and len(self.lanes) <= self.limit:
            now = monotonic()
            if now - self._slice_began > SLICE:
                if not self._pausing:
                    self._pausing = True
                    asyncio.get_running_loop().call_soon(self._new_slice)
                await asyncio.sleep(0)
                continue
            if len(self.new) >= MOST_NEW:
                self._urgent.set()
                await self._park(lane)
                continue
            if self.later and self.later[0].due <= now:
                await self._again(lane, heappop(self.later))
                continue
            if self.left:
                stretch = self._from_left(lane.stretch * chunk)
            elif self.pacer.limited:
                if self._pacing or window.full:
                    await self._park(lane)
                    continue
                stretch = await self._paced(lane)
                if not stretch:
                    continue  # interrupted for an item whose time has come, or the window is full
                now = monotonic()
            else:
                stretch = window.issue(lane.stretch * chunk)
            if not stretch:
                await self._park(lane)
                continue
            if self.parked:
                self._wake()
            first = lane.first = lane.marked = stretch.start
            end = lane.end = stretch.stop
            lane.began = now
            self._current = lane
            items = at_hand(first, end)
            if items is None:
                lane.it = iter(stretch if not self.calls.chunked else range(first, end, chunk))
                self.reading += 1
                lane.waits = True
                try:
                    items = await self.reader.read(first, end)
                finally:
                    self.reading -= 1
                    lane.waits = False
                items = items[: lane.end - first]  # the rest may have gone to others meanwhile
            lane.items = items
            await work(lane, items)
            if lane.given_up:
                return
            # Before anything else: an item that ended and is not marked would be done again after a crash.
            lane.it = None
            if lane.marked < lane.end:
                window.mark_all(lane.marked, lane.end)
            if lane.told_at is not None:
                lane.forgive()
            took = monotonic() - now
            self._busy += took
            if self._current is not lane:
                lane.stretch = 1  # it suspended: others shall have the next items
            elif took < 0.0005:
                if lane.stretch < LONGEST_STRETCH:
                    lane.stretch *= 2
            elif took > 0.002 and lane.stretch > 1:
                lane.stretch //= 2
            if window.watermark >= self.end:
                self._urgent.set()
            if self.parked:
                self._wake()

    async def _items(self, lane: Lane, items: Sequence[Any]) -> None:
        call = self.calls.call
        it = lane.it = self.calls.iterate(items, lane.first)
        while True:
            try:
                for item in it:
                    await call(item)
                return
            except BaseException as error:
                index = lane.end - 1 - length_hint(it)
                fault = lane.judge(error, (index,))
                self._mark_so_far(lane)
                lane.marked = index + 1  # from here on it is not the lane's
                self._failed(item, index, fault, 1)

    async def _chunks(self, lane: Lane, items: Sequence[Any]) -> None:
        call, chunk, indexed = self.calls.call, self.chunk, self.calls.indexed
        it = lane.it = iter(range(lane.first, lane.end, chunk))
        parts = _in_chunks(items, chunk)
        while True:
            try:
                for at, part in zip(it, parts):  # noqa: B905 - `it` may be shortened meanwhile
                    answer = await call((range(at, at + len(part)), part) if indexed else part)
                    if answer is not None:
                        for failure in await self.calls.answered(part, at, answer, lane):
                            self._quarantine(failure)
                return
            except BaseException as error:
                fault = lane.judge(error, range(at, at + len(part)))
                for failure in await self.calls.chunk_again(part, at, fault, lane):
                    self._quarantine(failure)

    def _failed(self, item: Any, index: int, error: BaseException, attempt: int) -> None:
        """An item's try failed: it waits for the next one, or is given up."""
        if isinstance(error, Skip):
            self.window.mark(index)
            return
        seconds = self.calls.pause_after(attempt, error)
        if seconds is None:
            self._quarantine(Failure(index, item[1] if self.calls.indexed else item, error, attempt))
            self.window.mark(index)
            return
        loop = asyncio.get_running_loop()
        heappush(self.later, Later(time.monotonic() + seconds, index, item, attempt))
        # A millisecond more: a timer may be early by the clock's resolution.
        loop.call_later(seconds + 0.001, self._call_for_again)

    def _call_for_again(self) -> None:
        """Someone shall look for items whose time has come: a lane that has nothing to do, or the one that
        waits for the rate. When all are busy, the first that is done finds them."""
        if self.parked:
            self._wake()
        else:
            self.pacer.interrupt()

    async def _again(self, lane: Lane, one: Later) -> None:
        """Try one item again."""
        await self.pacer.charge()
        self.retried += 1
        began = lane.began = time.monotonic()
        lane.turn += 1
        lane.again = one
        try:
            await self.calls.call(one.item)
        except BaseException as error:
            fault = lane.judge(error, (one.index,))
            self._failed(one.item, one.index, fault, one.attempt + 1)
        else:
            if lane.given_up:
                raise Unfinished
            self.window.mark(one.index)
        finally:
            lane.again = None
        if lane.told_at is not None:
            lane.forgive()
        self._busy += time.monotonic() - began
        if self.window.watermark >= self.end:
            self._urgent.set()
        if self.parked:
            self._wake()

    async def _paced(self, lane: Lane) -> range:
        lane.parked = self._pacing = True
        try:
            count = await self.pacer.take(lane.stretch * self.chunk)
        finally:
            lane.parked = self._pacing = False
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

    async def _park(self, lane: Lane) -> None:
        """Wait until there may be something to do."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parked.append(waiter)
        lane.parked = True
        if self.careful is not None:
            busy = sum(not lane.parked for lane in self.lanes)
            if self.careful.wants_more(busy):
                self._urgent.set()
        try:
            await waiter
        finally:
            lane.parked = False

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

    def _quarantine(self, failure: Failure) -> None:
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
        """What lies behind a slow item goes to other lanes; an item that takes too long is cancelled."""
        looked_at = 0.0
        while True:
            await asyncio.sleep(STUCK)
            now = time.monotonic()
            if self.timeout is not None and now - looked_at >= min(self.timeout / 20, LOOK_EVERY):
                looked_at = now
                self._look_for_late(self.timeout, now)
            for lane in self.lanes:
                if lane.it is not None and now - lane.began > STUCK:
                    self._take_rest(lane, keep=True)
            if self.parked and (self.left or (not self._pacing and not self.window.full)):
                self._wake()
            if (held := self._held_by()) is not None:
                self.held[held] += 1

    def _look_for_late(self, timeout: float, now: float) -> None:
        for lane in tuple(self.lanes):
            items = self._under_way(lane)
            if items is None:
                lane.seen = None
                continue
            at = items.start
            if lane.told_at is not None:
                if now - lane.told_at >= GIVE_UP:
                    self._give_up(lane, items, timeout)
            elif lane.seen != (lane.turn, at):
                lane.seen = (lane.turn, at)
                lane.since = lane.began if at == lane.first or lane.again is not None else now
            if lane.told_at is None and lane.task is not None and now - lane.since >= timeout:
                lane.told_at = now
                lane.task.cancel()
        if self.hung:
            self._make_room()

    def _under_way(self, lane: Lane) -> range | None:
        """The items of the call that a lane waits for."""
        if lane.again is not None:
            return range(lane.again.index, lane.again.index + 1)
        if lane.it is None or lane.parked or lane.waits:
            return None
        at = self._at(lane)
        return range(at, min(lane.end, at + self.chunk))

    def _give_up(self, lane: Lane, items: range, timeout: float) -> None:
        """It was cancelled, and its item goes on: the item failed, the segment goes on without the lane."""
        task, one = lane.task, lane.again
        assert task is not None
        error = ItemTimedOut(timeout, f"{GIVE_UP:g} s after it was cancelled")
        attempt = 1 if one is None else one.attempt + 1
        if one is None:
            self._take_rest(lane, keep=True)
            self._mark_so_far(lane)
        for index in items:
            if one is None:
                item = lane.items[index - lane.first]
            else:
                item = one.item[1] if self.calls.indexed else one.item
            self._quarantine(Failure(index, item, error, attempt))
            self.window.mark(index)
        lane.given_up, lane.it = True, None
        self.lanes.discard(lane)
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
        busy = sum(not lane.parked for lane in self.lanes)
        if (self.reading or self.places.reading) and self.reading >= busy:
            return HeldBy.SOURCE
        if self.window.full:
            return HeldBy.WINDOW if busy < self.limit else HeldBy.HANDLER
        return HeldBy.HANDLER if busy >= self.limit else None

    def _take_rest(self, lane: Lane, *, keep: bool) -> None:
        """End a lane's stretch behind the unit that it works on."""
        it = lane.it
        if it is None or not length_hint(it):
            return
        end = min(lane.end, self._at(lane) + self.chunk)
        if keep:
            self.left.append(range(end, lane.end))
        deque(it, maxlen=0)
        lane.end = end

    def _mark_so_far(self, lane: Lane) -> None:
        """A lane in the middle of its stretch: what is behind it is done."""
        if lane.it is not None and (at := self._at(lane)) > lane.marked:
            self.window.mark_all(lane.marked, at)
            lane.marked = at

    def _at(self, lane: Lane) -> int:
        """The first item of a lane's stretch that has not ended."""
        assert lane.it is not None
        if self.calls.chunked:
            units = -(-(lane.end - lane.first) // self.chunk)
            return max(lane.first, lane.first + (units - length_hint(lane.it) - 1) * self.chunk)
        return max(lane.first, lane.end - length_hint(lane.it) - 1)

    async def _close(self, seconds: float) -> None:
        """Nothing starts any more; what is under way has so long to end."""
        self.closing = True
        for lane in tuple(self.lanes):
            if lane.parked and lane.task is not None:
                lane.task.cancel()
            else:
                self._take_rest(lane, keep=False)
        self.calls.stop()
        tasks = [lane.task for lane in self.lanes if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await self._cancel_lanes()

    async def _cancel_lanes(self) -> None:
        """What does not end all the same is left to itself, and not started again beside itself here."""
        self.closing = True
        tasks = [lane.task for lane in self.lanes if lane.task is not None]
        for lane in tuple(self.lanes):
            self._take_rest(lane, keep=False)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GIVE_UP)
        for lane in tuple(self.lanes):
            if lane.task is None or lane.task.done() or lane.given_up:
                continue
            lane.given_up = True
            at = (
                lane.again.index
                if lane.again is not None
                else self._at(lane)
                if lane.it is not None
                else None
            )
            if at is not None:
                many = 1 if lane.again is not None else min(self.chunk, lane.end - at)
                call = HangingCall(self.job_id, range(at, at + many), lane.task.done)
                self.hanging.add(self._named(call))
            self.lanes.discard(lane)


def _in_chunks(items: Sequence[Any], chunk: int) -> Iterator[Sequence[Any]]:
    """A range's without a step of Python's own, which would cost as much as an empty call."""
    if isinstance(items, range) and items.step == 1:
        first, end = items.start, items.stop
        return map(range, range(first, end, chunk), chain(range(first + chunk, end, chunk), (end,)))
    return chunks(items, chunk)
