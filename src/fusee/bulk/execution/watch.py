"""Watching the item runners of a segment: slow items, items that exceed their timeout, and the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from fusee.bulk.execution.calls import FailedItem, ItemTimedOut
from fusee.bulk.execution.hanging import HangingCall
from fusee.bulk.execution.item_runner import ItemRunner
from fusee.bulk.execution.item_runners import ItemRunners
from fusee.bulk.model.job import HeldBy

__all__ = ["ItemWatch"]

STUCK = 0.05
"""Seconds after which other item runners take what an item runner has not begun yet."""
GIVE_UP = 5.0
"""Seconds that an item has to end after it was cancelled."""
LOOK_EVERY = 1.0
"""The most seconds between two looks for items that exceed their timeout."""


class ItemWatch:
    """Watches the item runners of one segment while they run, and ends them."""

    def __init__(self, work: ItemRunners) -> None:
        self.work = work
        self.held: Counter[HeldBy] = Counter()
        """What kept the segment from starting more items, seen every `STUCK` seconds since the checkpoint."""

    def start(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run())
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.work.fail(error)

    async def _run(self) -> None:
        """Give what is behind a slow item to other item runners; cancel items that exceed their timeout."""
        work, looked_at = self.work, 0.0
        while True:
            await asyncio.sleep(STUCK)
            now = time.monotonic()
            if work.timeout is not None and now - looked_at >= min(work.timeout / 20, LOOK_EVERY):
                looked_at = now
                self._look_for_late(work.timeout, now)
            for runner in work.runners:
                if runner.it is not None and now - runner.began > STUCK:
                    runner.give_rest(keep=True)
            if work.parked and (work.left or (not work.pacing and not work.window.full)):
                work.wake()
            if (held := self._held_by()) is not None:
                self.held[held] += 1

    def most_held_by(self) -> HeldBy | None:
        """Returns what kept the segment from starting more items most of the time since the last call."""
        found = self.held.most_common(1)
        self.held.clear()
        return found[0][0] if found else None

    def _held_by(self) -> HeldBy | None:
        """Returns what keeps the segment from starting more items right now."""
        work = self.work
        if work.pacer.waiting_for_node:
            return HeldBy.NODE_CAP
        if work.pacer.starving:
            return HeldBy.RATE
        if work.limit <= 0:
            return HeldBy.CONCURRENCY
        busy = work.busy
        if (work.reading or work.places.reading) and work.reading >= busy:
            return HeldBy.SOURCE
        if work.window.full:
            return HeldBy.WINDOW if busy < work.limit else HeldBy.HANDLER
        return HeldBy.HANDLER if busy >= work.limit else None

    # -- items that exceed their timeout

    def _look_for_late(self, timeout: float, now: float) -> None:
        for runner in tuple(self.work.runners):
            items = runner.in_progress()
            if items is None:
                runner.seen = None
                continue
            at = items.start
            if runner.cancelled_at is not None:
                if now - runner.cancelled_at >= GIVE_UP:
                    self._give_up(runner, items, timeout)
            elif runner.seen != (runner.turn, at):
                runner.seen = (runner.turn, at)
                runner.since = runner.began if at == runner.first or runner.again is not None else now
            if runner.cancelled_at is None and runner.task is not None and now - runner.since >= timeout:
                runner.cancelled_at = now
                runner.task.cancel()
        if self.work.hung:
            self.work.make_room()

    def _give_up(self, runner: ItemRunner, items: range, timeout: float) -> None:
        """Its call continues although it was cancelled: the item failed, another item runner takes over."""
        work, task, one = self.work, runner.task, runner.again
        assert task is not None
        error = ItemTimedOut(timeout, f"{GIVE_UP:g} s after it was cancelled")
        attempt = 1 if one is None else one.attempt + 1
        if one is None:
            runner.give_rest(keep=True)
            runner.mark_ended()
        for index in items:
            if one is None:
                item = runner.items[index - runner.first]
            else:
                item = one.item[1] if work.calls.indexed else one.item
            work.quarantine(FailedItem(index, item, error, attempt))
            work.window.mark(index)
        runner.given_up, runner.it = True, None
        work.runners.discard(runner)
        work.leave_hanging(HangingCall(work.job_id, items, task.done))
        work.fill()

    # -- the end

    async def close(self, seconds: float) -> None:
        """Start nothing more; what is in progress has so many seconds to end."""
        work = self.work
        work.closing = True
        for runner in tuple(work.runners):
            if runner.parked and runner.task is not None:
                runner.task.cancel()
            else:
                runner.give_rest(keep=False)
        work.calls.stop()
        if tasks := self.tasks():
            await asyncio.wait(tasks, timeout=seconds)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel what is in progress. A call that does not end all the same keeps running, and its items are
        not started again in this process while it does."""
        work = self.work
        work.closing = True
        tasks = self.tasks()
        for runner in tuple(work.runners):
            runner.give_rest(keep=False)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GIVE_UP)
        for runner in tuple(work.runners):
            if runner.task is None or runner.task.done() or runner.given_up:
                continue
            runner.given_up = True
            at = None if runner.it is None else runner.position()
            many = 0 if at is None else min(work.chunk, runner.end - at)
            if runner.again is not None:
                at, many = runner.again.index, 1
            if at is not None:
                call = HangingCall(work.job_id, range(at, at + many), runner.task.done)
                work.hanging.add(work.named(call))
            work.runners.discard(runner)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [runner.task for runner in self.work.runners if runner.task is not None]
