"""Running one segment: item runners take items out of the window, and every second writes a checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fusee.bulk.execution.calls import Calls, FailedItem
from fusee.bulk.execution.careful import Careful, Turns
from fusee.bulk.execution.hanging import HangingCalls
from fusee.bulk.execution.item_runners import ItemRunners
from fusee.bulk.execution.keyed import Keyed
from fusee.bulk.execution.pacer import Pacer
from fusee.bulk.execution.places import Dense, Places
from fusee.bulk.model.job import HeldBy
from fusee.bulk.model.pacing import Aimd, decayed
from fusee.bulk.model.window import window_for
from fusee.bulk.sources import PageReader, Reader
from fusee.bulk.store.checkpoints import BulkAnswer, SegmentProgress, Taken
from fusee.errors import LeaseLost, StoreUnavailable

__all__ = ["SegmentRunner"]

BEAT = 1.0
"""Seconds between two checkpoints."""
LEAST_BETWEEN = 0.05
"""Seconds between an answer and the next question about the rate."""
DRAIN = 10.0
"""Seconds that items under way have to end when the job is stopped."""
LAST_TRY = 5.0
LEAVE = 3.0
"""Seconds for what is under way when the worker drains, or someone cancels the run."""

Write = Callable[[SegmentProgress], Awaitable[BulkAnswer]]


class SegmentRunner(ItemRunners):
    """`await runner.run()` until the segment is done (true) or the job stops (false)."""

    def __init__(
        self,
        taken: Taken,
        calls: Calls,
        reader: Reader | None,
        write: Write,
        pacer: Pacer,
        hanging: HangingCalls | None = None,
        turns: Turns | None = None,
        *,
        beat: float = BEAT,
        drain: float = DRAIN,
        pages: PageReader | None = None,
    ) -> None:
        job, segment = taken.job, taken.segment
        self.spec = job.spec
        size = self._window_size(taken.answer, calls.chunk, 0.0)
        aimd = Aimd(self.spec.concurrency) if self.spec.adaptive else None
        hanging = hanging or HangingCalls()
        self.keyed = None if pages is None else Keyed(segment, size, taken.checkpoint, pages)
        reader = self.keyed or reader
        assert reader is not None, "items are read by index, or in pages"
        places: Places = self.keyed or Dense(segment, size, taken.checkpoint)
        super().__init__(job.id, places, calls, reader, pacer, aimd, hanging)
        self.write = write
        self.beat = beat
        self.drain = drain
        self.quarantined = segment.quarantined
        self.retried = segment.retried
        self._replayed_before = segment.replayed
        self._last_ended = self.window.done
        self._last_failed = self.retried + self.quarantined
        now = self._observed_at = time.monotonic()
        self._speed = 0.0
        self._blamed = 0
        """Losses of the lowest item, when it is at fault for them."""
        if (caution := taken.caution) is not None:
            self.careful = Careful(caution, places, turns or Turns())
            self._blamed = caution.losses if caution.blamed else 0
        self._follow(taken.answer, now, now)

    # -- the segment's life

    async def run(self) -> bool:
        watch = asyncio.create_task(self._watch())
        watch.add_done_callback(self._watch_ended)
        pages: asyncio.Task[None] | None = None
        try:
            while self.keyed is not None and self.careful is not None and self.keyed.reading:
                await self.keyed.more()
            if self._blamed:
                await self._blame()
            if self.keyed is not None:
                pages = asyncio.create_task(self._read_pages(self.keyed))
            stopped = await self._beats()
            await self._close(self.drain)
            await self._write_last()
        except LeaseLost:
            await self._cancel_runners()  # someone else works on these items already
            raise
        except asyncio.CancelledError:
            await self._leave()
            raise
        except BaseException:
            await self._cancel_runners()
            await self._write_quickly()
            raise
        finally:
            if self.careful is not None:
                self.careful.over()
            watch.cancel()
            if pages is not None:
                pages.cancel()
                await asyncio.wait([pages])  # nothing reads any more when the reader is closed
            for runner in self.runners:  # none is left, unless we were stopped twice
                if runner.task is not None:
                    runner.task.cancel()
        return not stopped or self.window.watermark >= self.end

    async def _blame(self) -> None:
        """Quarantine the lowest item: workers were lost over it, the last one while it was alone."""
        window = self.window
        window.stop = self.places.known
        issued = window.issue(1)
        if not issued:
            return  # a row that is gone meanwhile
        (index,) = issued
        window.stop = index
        items = self.reader.at_hand(index, index + 1)
        if items is None:
            items = await self.reader.read(index, index + 1)
        error = (
            f"{self._blamed} workers were lost while they worked on it, the last one on it alone:"
            " it may crash the process or take all of its memory"
        )
        self._quarantine(FailedItem(index, items[0], error, self._blamed))
        window.mark(index)

    @property
    def ended(self) -> int:
        """Items of the segment that ended."""
        return self.places.so_far().ended

    async def _read_pages(self, keyed: Keyed) -> None:
        """Of rows by key: read ahead of what is issued."""
        try:
            while await keyed.more():
                self._wake()
        except Exception as error:
            self.error = self.error or error
        if self.error is not None or self.window.watermark >= self.end:
            self._urgent.set()

    async def _beats(self) -> bool:
        """Until nothing is left to start; whether the job stops."""
        next_at = time.monotonic() + self.beat
        while True:
            self._man()
            await self._until(next_at)
            if self.error is not None:
                raise self.error
            if self.window.watermark >= self.end:
                return False
            try:
                answer = await self._write(again=True)
            except StoreUnavailable:
                next_at = time.monotonic() + self.beat / 4
                continue
            next_at = time.monotonic() + self.beat
            if answer.stop:
                return True

    async def _until(self, next_at: float) -> None:
        """The time of the next checkpoint, or an earlier one when something is urgent."""
        earliest = time.monotonic() + LEAST_BETWEEN
        while not self._urgent.is_set():
            seconds = min(next_at, max(self.pacer.ask_at(), earliest)) - time.monotonic()
            if seconds <= 0:
                break
            try:
                async with asyncio.timeout(seconds):
                    await self._urgent.wait()
            except TimeoutError:
                pass  # look again: another segment may have asked meanwhile
        self._urgent.clear()

    # -- checkpoints

    async def _write(self, *, again: bool = False) -> BulkAnswer:
        """Write a checkpoint, and follow its answer; `again`: there will be another."""
        for runner in self.runners:
            self._mark_so_far(runner)
        ended = self.window.done
        so_far = self.places.so_far()
        give_from = self._spare_half(ended) if again else None
        careful = self.careful
        caution = None
        if careful is not None:
            caution = careful.plan(max(1, self.share) * self.chunk, going_on=again)
        new = tuple(self.new)  # all: they are marked as ended in this very checkpoint
        progress = SegmentProgress(
            checkpoint=so_far.checkpoint,
            reached=so_far.reached,
            ended=so_far.ended,
            absent=so_far.absent,
            quarantined=self.quarantined,
            retried=self.retried,
            # What was under way at the last checkpoint of the worker before is started again.
            replayed=self._replayed_before + self.places.replayed,
            new=new,
            begin=0 if self.pacer.begun or not again else self.chunk,
            wants=self.pacer.wants(),
            latency=self.pacer.shared.latency,
            held_by=self._most_held_by(),
            give_from=give_from,
            caution=caution,
        )
        if give_from is not None:
            self.places.hold_back(give_from)  # until we know whether it was given away
        asked_at = time.monotonic()
        self.pacer.asks(asked_at)
        answer = await self.write(progress)
        del self.new[: len(new)]
        if careful is not None:
            careful.written(caution)
            self.careful = careful if careful.caution is not None else None
        self._observe(ended)
        self._follow(answer, asked_at, time.monotonic())
        return answer

    def _spare_half(self, ended: int) -> int | None:
        """Where the second half of the rest begins, when it is worth another worker's while."""
        rate = ended - self._last_ended
        rest, half = self.places.spare()
        at_once = 2 * max(1, self.share) * self.chunk
        return None if rest < max(2 * self.chunk, 2 * at_once, 4 * rate) else half

    def _follow(self, answer: BulkAnswer, asked_at: float, answered_at: float) -> None:
        window = self.window
        self.places.follow(answer.end, None if self.careful is None else self.careful.gate)
        self.errors_left, self.failed_now = answer.errors_left, 0
        self.pacer.hear(answer.rate, answer.grant, answer.now, asked_at, answered_at)
        self.share = answer.share
        self._make_room()
        self.timeout = self.spec.item_timeout if answer.item_timeout is None else answer.item_timeout or None
        size = self._window_size(answer, self.chunk, self._speed)
        # Steps of a quarter: a window that follows every change of the speed would be copied all the time.
        if not 0.75 <= size / window.size <= 1.0:
            window.resize(size)
        if window.watermark >= self.end:
            self._urgent.set()
        self._wake()

    def _window_size(self, answer: BulkAnswer, chunk: int, speed: float) -> int:
        """As the job says, or so that items that wait to be tried again have room."""
        fixed = self.spec.window if answer.window is None else answer.window
        if fixed:
            return fixed
        pace = answer.grant.pace if answer.grant is not None else 0.0
        return window_for(max(1, answer.share) * chunk, max(pace, speed), self.spec.retry_span)

    def _most_held_by(self) -> HeldBy | None:
        """What kept it from starting more, most of the time since the last checkpoint."""
        found = self.held.most_common(1)
        self.held.clear()
        return found[0][0] if found else None

    def _observe(self, ended: int) -> None:
        """Once a beat, however many checkpoints are written meanwhile for the sake of the rate."""
        now = time.monotonic()
        if now - self._observed_at < 0.9 * self.beat:
            return
        self._speed = decayed(self._speed, now - self._observed_at, ended - self._last_ended, memory=2.0)
        self._observed_at = now
        if self.aimd is not None:
            many, failed = ended - self._last_ended, self.retried + self.quarantined - self._last_failed
            if many > 0:
                self.aimd.observe(many, min(failed, many), self._busy / many)
            self._last_failed, self._busy = self.retried + self.quarantined, 0.0
        self._last_ended = ended

    async def _write_last(self) -> None:
        """However long the store takes to answer: until it is written, the segment is not done."""
        while True:
            try:
                await self._write()
            except StoreUnavailable:
                await asyncio.sleep(0.2)
                continue
            if not self.new:
                return

    async def _leave(self) -> None:
        """Told to stop by the worker: in order while the segment is ours, at once when it is not."""
        try:
            async with asyncio.timeout(LEAVE / 3):
                await self._write()
        except (Exception, asyncio.CancelledError):
            await self._cancel_runners()
            return
        try:
            async with asyncio.timeout(LEAVE):
                await self._close(self.drain)
        except (Exception, asyncio.CancelledError):
            await self._cancel_runners()
        await self._write_quickly()

    async def _write_quickly(self) -> None:
        """On the way out: what is done already need not be done again."""
        try:
            async with asyncio.timeout(LAST_TRY):
                await asyncio.shield(self._write_last())
        except (Exception, asyncio.CancelledError):
            pass
