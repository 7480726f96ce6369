"""Keeping a rate: items start when their time in a slot has come, and within what this node may do at all."""

from __future__ import annotations

import asyncio
import time

from fusee.model.pacing import MICROSECONDS, Slot

__all__ = ["NodeCap", "Pacer"]

LATE = 0.2
"""Seconds after which a start that nobody used is lost: a burst of them would break the rate."""
LEAST_PAUSE = 0.001


class NodeCap:
    """Items a second over all jobs on this node; 0 is no cap."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self.taken: dict[object, float] = {}
        """Segment → the part of its job's rate that it runs at here."""
        self._at = 0.0

    def admit(self, key: object, rate: float) -> bool:
        """Whether a segment of this rate fits beside the others; a job without a rate takes what is left."""
        if self.rate and rate and sum(self.taken.values()) + rate > self.rate and self.taken:
            return False
        self.taken[key] = rate
        return True

    def leave(self, key: object) -> None:
        self.taken.pop(key, None)

    @property
    def portion(self) -> int:
        """Items to take at once: a twentieth of a second's worth."""
        return max(1, int(self.rate / 20))

    async def take(self, count: int) -> None:
        """Return when so many items may start."""
        if not self.rate:
            return
        now = time.monotonic()
        begin = max(self._at, now - LATE)
        self._at = begin + count / self.rate
        if begin > now:
            await asyncio.sleep(begin - now)


class Pacer:
    """The slots of one segment: the one in use and the one after it."""

    def __init__(self, node: NodeCap) -> None:
        self.node = node
        self.rate = 0.0
        self._slots: list[Slot] = []
        self._used = 0
        self._offset = 0.0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self.spare = 0
        """Starts that were taken and not used."""

    @property
    def limited(self) -> bool:
        return self.rate > 0 or self.node.rate > 0

    def _now(self) -> float:
        """The database's clock, as far as is known."""
        return time.monotonic() * MICROSECONDS + self._offset

    def hear(self, rate: float, slot: Slot | None, now: int, asked_at: float, answered_at: float) -> None:
        """What a checkpoint answered; its clock was read between these two moments."""
        self._offset = now - (asked_at + answered_at) / 2 * MICROSECONDS
        if rate != self.rate:
            self.rate = rate
            self._slots, self._used, self.spare = [], 0, 0
        if slot is not None:
            self._slots.append(slot)
        self._changed.set()

    def wants_in(self) -> float | None:
        """Seconds until a further slot should be asked for; None when there is no need to."""
        if not self.rate or len(self._slots) > 1:
            return None
        if not self._slots:
            return 0.0
        return max(0.0, (self._slots[0].begin - self._now()) / MICROSECONDS)

    async def take(self, most: int, unit: int) -> int:
        """How many items may start now, up to `most`; waits for `unit` of them, or the rest of a slot."""
        if self.node.rate:
            most = min(most, max(unit, self.node.portion))
        async with self._turn:
            count = await self._take(most, unit) if self.rate else most
        await self.node.take(count)
        return count

    async def _take(self, most: int, unit: int) -> int:
        if self.spare:
            count = min(most, self.spare)
            self.spare -= count
            return count
        while self.rate:
            now = self._now()
            slot = self._current(now, unit)
            if slot is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            need = min(unit, slot.count - self._used)
            due = slot.due(int(now)) - self._used
            if due >= need:
                count = min(most, due)
                self._used += count
                return count
            wait = (slot.time_of(self._used + need - 1) - now) / MICROSECONDS
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(LEAST_PAUSE, wait))
            except TimeoutError:
                pass
        return most

    def _current(self, now: float, unit: int) -> Slot | None:
        while self._slots:
            slot = self._slots[0]
            # What is long past is lost; what is a little late, or waits to fill a unit, is made up for.
            passed = int((now - slot.begin) * slot.rate / MICROSECONDS) + 1
            self._used = max(self._used, passed - unit - int(slot.rate * LATE))
            if self._used < slot.count:
                return slot
            self._slots.pop(0)
            self._used = 0
        return None
