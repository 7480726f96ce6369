"""Running one segment: item runners take items out of the window; every second a checkpoint is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from fusee.bulk.execution.calls import Calls, FailedItem
from fusee.bulk.execution.careful import Careful, Turns
from fusee.bulk.execution.hanging import HangingCalls
from fusee.bulk.execution.item_runners import ItemRunners
from fusee.bulk.execution.pacer import Pacer
from fusee.bulk.execution.places import Dense, Keyed, Places
from fusee.bulk.execution.watch import ItemWatch
from fusee.bulk.model.pacing import Aimd, decayed
from fusee.bulk.model.segment import BulkAnswer, SegmentProgress, Taken
from fusee.bulk.model.window import window_for
from fusee.bulk.sources import PageReader, Reader
from fusee.errors import LeaseLost, StoreUnavailable

__all__ = ["SegmentRunner"]

BEAT = 1.0
"""Seconds between two checkpoints."""
LEAST_BETWEEN = 0.05
"""Seconds between an answer and the next question about the rate."""
DRAIN = 10.0
"""Seconds that items in progress have to end when the job is stopped."""
LAST_TRY = 5.0
LEAVE = 3.0
"""Seconds for what is in progress when the worker drains, or when the run is cancelled."""

Write = Callable[[SegmentProgress], Awaitable[BulkAnswer]]


class SegmentRunner:
    """`await runner.run()` returns when the segment is done (true) or the job stops (false)."""

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
        self.chunk = calls.chunk
        self._speed = 0.0
        size = self._window_size(taken.answer)
        aimd = Aimd(self.spec.concurrency) if self.spec.adaptive else None
        self.keyed = None if pages is None else Keyed(segment, size, taken.checkpoint, pages)
        reader = self.keyed or reader
        assert reader is not None, "items are read by index, or in pages"
        self.places: Places = self.keyed or Dense(segment, size, taken.checkpoint)
        self.window = self.places.window
        self.pacer = pacer
        self.work = ItemRunners(job.id, self.places, calls, reader, pacer, aimd, hanging or HangingCalls())
        self.work.quarantined, self.work.retried = segment.quarantined, segment.retried
        self.watch = ItemWatch(self.work)
        self.write = write
        self.beat = beat
        self.drain = drain
        self._replayed_before = segment.replayed
        self._last_ended = self.window.done
        self._last_failed = segment.retried + segment.quarantined
        now = self._observed_at = time.monotonic()
        self._blamed = 0
        """The number of workers that were lost over the lowest item, when it is at fault for that."""
        if (caution := taken.caution) is not None:
            self.work.careful = Careful(caution, self.places, turns or Turns())
            self._blamed = caution.losses if caution.blamed else 0
        self._follow(taken.answer, now, now)

    # -- the segment's life

    async def run(self) -> bool:
        watching = self.watch.start()
        pages: asyncio.Task[None] | None = None
        try:
            while self.keyed is not None and self.work.careful is not None and self.keyed.reading:
                await self.keyed.more()
            if self._blamed:
                await self._blame()
            if self.keyed is not None:
                pages = asyncio.create_task(self._read_pages(self.keyed))
            stopped = await self._beats()
            await self.watch.close(self.drain)
            await self._write_last()
        except LeaseLost:
            await self.watch.cancel()  # another worker has these items already
            raise
        except asyncio.CancelledError:
            await self._leave()
            raise
        except BaseException:
            await self.watch.cancel()
            await self._write_quickly()
            raise
        finally:
            if self.work.careful is not None:
                self.work.careful.over()
            watching.cancel()
            if pages is not None:
                pages.cancel()
                await asyncio.wait([pages])  # nothing reads any more when the reader is closed
            for task in self.watch.tasks():  # none is left, unless we were stopped twice
                task.cancel()
        return not stopped or self.window.watermark >= self.places.end

    async def _blame(self) -> None:
        """Quarantine the lowest item: workers were lost over it, the last one while it was alone."""
        window, reader = self.window, self.work.reader
        window.stop = self.places.known
        issued = window.issue(1)
        if not issued:
            return  # the row was deleted meanwhile
        (index,) = issued
        window.stop = index
        items = reader.at_hand(index, index + 1)
        if items is None:
            items = await reader.read(index, index + 1)
        error = (
            f"{self._blamed} workers were lost while they worked on it, the last one on it alone:"
            " it may crash the process or take all of its memory"
        )
        self.work.quarantine(FailedItem(index, items[0], error, self._blamed))
        window.mark(index)

    @property
    def ended(self) -> int:
        """The number of items of the segment that ended."""
        return self.places.so_far().ended

    async def _read_pages(self, keyed: Keyed) -> None:
        """Read rows by key ahead of what is issued."""
        try:
            while await keyed.more():
                self.work.wake()
        except Exception as error:
            self.work.error = self.work.error or error
        if self.work.error is not None or self.window.watermark >= self.places.end:
            self.work.urgent.set()

    async def _beats(self) -> bool:
        """Write checkpoints until nothing is left to start; returns whether the job stops."""
        next_at = time.monotonic() + self.beat
        while True:
            self.work.fill()
            await self._until(next_at)
            if self.work.error is not None:
                raise self.work.error
            if self.window.watermark >= self.places.end:
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
        """Wait for the time of the next checkpoint, or for an earlier one when something is urgent."""
        urgent = self.work.urgent
        earliest = time.monotonic() + LEAST_BETWEEN
        while not urgent.is_set():
            seconds = min(next_at, max(self.pacer.ask_at(), earliest)) - time.monotonic()
            if seconds <= 0:
                break
            try:
                async with asyncio.timeout(seconds):
                    await urgent.wait()
            except TimeoutError:
                pass  # look again: another segment may have asked meanwhile
        urgent.clear()

    # -- checkpoints

    async def _write(self, *, again: bool = False) -> BulkAnswer:
        """Write a checkpoint and follow its answer; `again`: there will be another one."""
        work = self.work
        for runner in work.runners:
            runner.mark_ended()
        ended = self.window.done
        so_far = self.places.so_far()
        give_from = self._spare_half(ended) if again else None
        careful = work.careful
        caution = None
        if careful is not None:
            caution = careful.plan(max(1, work.share) * self.chunk, going_on=again)
        new = tuple(work.new)  # all of them: this checkpoint says that they have ended
        progress = SegmentProgress(
            checkpoint=so_far.checkpoint,
            reached=so_far.reached,
            ended=so_far.ended,
            absent=so_far.absent,
            quarantined=work.quarantined,
            retried=work.retried,
            # What was in progress at the last checkpoint of the worker before is started again.
            replayed=self._replayed_before + self.places.replayed,
            new=new,
            begin=0 if self.pacer.begun or not again else self.chunk,
            wants=self.pacer.wants(),
            latency=self.pacer.shared.latency,
            held_by=self.watch.most_held_by(),
            give_from=give_from,
            caution=caution,
        )
        if give_from is not None:
            self.places.hold_back(give_from)  # until we know whether it was given away
        asked_at = time.monotonic()
        self.pacer.asks(asked_at)
        answer = await self.write(progress)
        del work.new[: len(new)]
        if careful is not None:
            careful.written(caution)
            work.careful = careful if careful.caution is not None else None
        self._observe(ended)
        self._follow(answer, asked_at, time.monotonic())
        return answer

    def _spare_half(self, ended: int) -> int | None:
        """Returns where the second half of the rest begins, when it is worth another worker's while."""
        rate = ended - self._last_ended
        rest, half = self.places.spare()
        at_once = 2 * max(1, self.work.share) * self.chunk
        return None if rest < max(2 * self.chunk, 2 * at_once, 4 * rate) else half

    def _follow(self, answer: BulkAnswer, asked_at: float, answered_at: float) -> None:
        work, window = self.work, self.window
        self.places.follow(answer.end, None if work.careful is None else work.careful.gate)
        work.errors_left, work.failed_now = answer.errors_left, 0
        self.pacer.hear(answer.rate, answer.grant, answer.now, asked_at, answered_at)
        work.share = answer.share
        work.make_room()
        work.timeout = self.spec.item_timeout if answer.item_timeout is None else answer.item_timeout or None
        size = self._window_size(answer)
        # Steps of a quarter: a window that follows every change of the speed would be copied all the time.
        if not 0.75 <= size / window.size <= 1.0:
            window.resize(size)
        if window.watermark >= self.places.end:
            work.urgent.set()
        work.wake()

    def _window_size(self, answer: BulkAnswer) -> int:
        """Returns the size that the job sets, or one with room for the items that wait for a retry."""
        fixed = self.spec.window if answer.window is None else answer.window
        if fixed:
            return fixed
        pace = answer.grant.pace if answer.grant is not None else 0.0
        return window_for(max(1, answer.share) * self.chunk, max(pace, self._speed), self.spec.retry_span)

    def _observe(self, ended: int) -> None:
        """Measure once a beat, however many checkpoints are written meanwhile for the sake of the rate."""
        work, now = self.work, time.monotonic()
        if now - self._observed_at < 0.9 * self.beat:
            return
        self._speed = decayed(self._speed, now - self._observed_at, ended - self._last_ended, memory=2.0)
        self._observed_at = now
        if work.aimd is not None:
            many, failed = ended - self._last_ended, work.retried + work.quarantined - self._last_failed
            if many > 0:
                work.aimd.observe(many, min(failed, many), work.busy_seconds / many)
            self._last_failed, work.busy_seconds = work.retried + work.quarantined, 0.0
        self._last_ended = ended

    async def _write_last(self) -> None:
        """Write the last checkpoint, however long the store takes: until then the segment is not done."""
        while True:
            try:
                await self._write()
            except StoreUnavailable:
                await asyncio.sleep(0.2)
                continue
            if not self.work.new:
                return

    async def _leave(self) -> None:
        """The worker asks it to stop: in order while the segment is its own, at once when it is not."""
        try:
            async with asyncio.timeout(LEAVE / 3):
                await self._write()
        except (Exception, asyncio.CancelledError):
            await self.watch.cancel()
            return
        try:
            async with asyncio.timeout(LEAVE):
                await self.watch.close(self.drain)
        except (Exception, asyncio.CancelledError):
            await self.watch.cancel()
        await self._write_quickly()

    async def _write_quickly(self) -> None:
        """Write on the way out: what is done already need not be done again."""
        try:
            async with asyncio.timeout(LAST_TRY):
                await asyncio.shield(self._write_last())
        except (Exception, asyncio.CancelledError):
            pass
