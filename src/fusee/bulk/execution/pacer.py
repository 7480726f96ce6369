"""Keeping a rate: items start evenly at the segment's part of it, and within the cap of this node."""

from __future__ import annotations

import asyncio
import time
from math import exp, floor, inf

from fusee.bulk.model.pacing import MICROSECONDS, RENEW_EVERY, UNLIMITED, Grant, decayed

__all__ = ["NodeCap", "Pacer", "WorkerGrants"]

LATE = 0.1
"""Starts that are late by at most so many seconds are made up for: a larger burst would exceed the rate."""
LEAST_PAUSE = 0.001
STARVED = 0.2
"""A segment in which items waited for the rate for this share of the time uses all of its part."""
ASK_AGAIN = 0.5
"""Seconds after which a segment that received less than its fair part asks again."""
MEMORY = 3.0
"""Seconds over which the use of a part is measured."""
LATENCY_MEMORY = 10.0
"""Seconds after which a slow answer has little influence."""


class NodeCap:
    """Limits the items per second over all jobs on this node; 0 is no cap."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self.taken: dict[object, float] = {}
        """Segment → its part of its job's rate; 0 for a job without a rate."""
        self._all_at = 0.0
        self._rest_at = 0.0

    @property
    def rest(self) -> float:
        """What is left for jobs without a rate: they never slow down jobs that have one."""
        return max(0.0, self.rate - sum(self.taken.values()))

    def admit(self, key: object, rate: float) -> bool:
        """Returns whether a segment of this rate fits beside the others; a job without a rate takes what is
        left."""
        if self.rate and self.taken and (self.rest < rate or self.rest <= 0):
            return False
        self.taken[key] = min(rate, self.rate) if self.rate else rate
        return True

    def leave(self, key: object) -> None:
        self.taken.pop(key, None)

    @property
    def portion(self) -> int:
        """The number of items to take at once: those of a twentieth of a second."""
        return max(1, int(self.rate / 20))

    async def take(self, count: int, *, promised: bool) -> None:
        """Wait until so many items may start; `promised`: they belong to a job with a rate of its own."""
        if not self.rate:
            return
        now = time.monotonic()
        begin = max(self._all_at, now - LATE)
        if not promised:
            rest = max(self.rest, self.rate / 1000)
            begin = max(begin, self._rest_at)
            self._rest_at = max(self._rest_at, now - LATE) + count / rest
        self._all_at = max(self._all_at, now - LATE) + count / self.rate
        if begin > now:
            await asyncio.sleep(begin - now)


class WorkerGrants:
    """What the segments of one job share on this worker: an answer to one of them renews the grants of all.

    Times are those of the process's monotonic clock."""

    def __init__(self) -> None:
        self.until = 0.0
        """Nothing starts after this time."""
        self.renew_at = inf
        """When one of the segments should ask, so that other workers know that this worker is alive."""
        self.free_at = inf
        """When the part of another worker becomes free, unless that worker asks again before."""
        self.freed_at = 0.0
        """When that last happened: a segment that asked before then should ask again."""
        self.lapsed: set[asyncio.Event] = set()
        """Events of the segments that wait because their grants have expired."""
        self.life = 0
        """Grants of an earlier life are void: they had expired before the worker asked again."""
        self.latency = 0.0
        """The longest time in seconds that an answer took recently."""
        self._heard_at = 0.0

    def hear(self, grant: Grant, offset: float, asked_at: float, now: float) -> None:
        """One of the segments received a grant; `offset` converts the database's clock to our own."""
        forgotten = exp((self._heard_at - now) / LATENCY_MEMORY)
        self.latency, self._heard_at = max(now - asked_at, self.latency * forgotten), now
        self.life += grant.lapsed
        self.until = max(self.until, grant.until / MICROSECONDS + offset)
        if self.free_at <= now:
            self.freed_at = now
        self.renew_at = self.free_at = inf
        if grant.free_at is not None:
            self.renew_at = now + RENEW_EVERY / MICROSECONDS
            self.free_at = grant.free_at / MICROSECONDS + offset
        while self.lapsed:
            self.lapsed.pop().set()


class Pacer:
    """One segment's part of its job's rate: says how many items it may start by now."""

    def __init__(self, node: NodeCap, shared: WorkerGrants, unit: int = 1) -> None:
        self.node = node
        self.shared = shared
        self.unit = unit
        """The number of items that start together: the size of a chunk."""
        self.rate = UNLIMITED
        self.begun = False
        """Whether it ever had a part of a rate."""
        self.waiting_for_node = False
        self._grant: Grant | None = None
        self._life = 0
        self._credit = 0.0
        """The number of starts that are due and not made yet."""
        self._at = 0.0
        self._heard_at = 0.0
        self._started = 0
        self._speed = self._seen = 0.0
        self._sated = False
        self._measured_at = 0.0
        self._starved = self._starved_share = 0.0
        self._starving_since: float | None = None
        self._hungry = True
        """Whether it uses all of its part."""
        self._changed = asyncio.Event()
        self._interrupted = False

    @property
    def limited(self) -> bool:
        return self.rate != UNLIMITED or self.node.rate > 0

    @property
    def starving(self) -> bool:
        """Whether an item waits for the rate right now."""
        return self._starving_since is not None

    @property
    def _pace(self) -> float:
        """Items per second that it may start, as long as the grants of the worker last."""
        if self._grant is None or self.rate <= 0 or self._life != self.shared.life:
            return 0.0
        return self._grant.pace

    # -- grants from the store

    def hear(self, rate: float, grant: Grant | None, now: int, asked_at: float, heard_at: float) -> None:
        """A checkpoint returned this; the database's clock was read between these two moments."""
        local = time.monotonic()
        offset = (asked_at + heard_at) / 2 - now / MICROSECONDS
        self._accrue(local)
        if rate != self.rate:
            self.rate = rate
            self._grant = None
            if rate < 0:  # on hold: starts that are due are not made either
                self._credit = min(self._credit, 0.0)
        if grant is not None and rate > 0:
            if not self.begun and grant.pace > 0:
                self.begun, self._measured_at = True, local
                wait = max(0.0, grant.first_at / MICROSECONDS + offset - local)
                self._credit = self.unit - wait * grant.pace
            self._grant = grant
            self._heard_at = local
            self.shared.hear(grant, offset, asked_at, local)
            self._life = self.shared.life
        self._changed.set()

    def ask_at(self) -> float:
        """Returns when it should ask for a grant, even before the next checkpoint is due."""
        if self.rate <= 0:
            return inf
        if self._grant is None:
            return 0.0
        at = self.shared.renew_at
        if self._hungry:
            at = (
                self.shared.freed_at
                if self._heard_at < self.shared.freed_at
                else min(at, self.shared.free_at)
            )
        if self.starving and self._grant.pace < 0.8 * self._grant.fair:
            at = min(at, self._heard_at + ASK_AGAIN)
        return at

    def asks(self, now: float) -> None:
        """It asks for a grant: no other segment of this worker needs to ask meanwhile."""
        if self.shared.renew_at < inf:
            self.shared.renew_at = now + RENEW_EVERY / MICROSECONDS

    def wants(self) -> float | None:
        """Returns the items per second that the segment can start: what it does start or, while it uses all
        of its part, twice that; None as long as it always used all of it."""
        now = time.monotonic()
        if self._starving_since is not None:
            self._starved += now - self._starving_since
            self._starving_since = now
        passed = now - self._measured_at
        if not self.begun or passed <= 0:
            return None
        self._speed = decayed(self._speed, passed, self._started, MEMORY)
        # The same filter over a steady one per second: what has been seen so far counts in full.
        self._seen = decayed(self._seen, passed, passed, MEMORY)
        self._starved_share = decayed(self._starved_share, passed, self._starved, MEMORY)
        speed = self._speed / self._seen
        self._hungry = self._starved_share >= STARVED * self._seen
        self._started, self._starved, self._measured_at = 0, 0.0, now
        if not self._hungry:
            self._sated = True
            return speed
        return 2 * max(speed, self._pace) if self._sated else None

    # -- starts

    async def take(self, most: int) -> int:
        """Waits for a unit of items; returns how many may start now, up to `most`, or 0 when it was
        interrupted."""
        if self.node.rate:
            most = min(most, max(self.unit, self.node.portion))
        promised = self.rate != UNLIMITED
        count = await self._take(most) if promised else most
        if count and self.node.rate:
            self.waiting_for_node = True
            try:
                await self.node.take(count, promised=promised)
            finally:
                self.waiting_for_node = False
        return count

    async def charge(self) -> None:
        """An item is retried: the rate does not count that, but the cap of the node does."""
        if self.node.rate:
            await self.node.take(1, promised=self.rate != UNLIMITED)

    def give_back(self, count: int) -> None:
        """Return starts that were taken and not used."""
        if self.rate > 0:
            self._credit += count
            self._started -= count

    def interrupt(self) -> None:
        """Let the item runner that waits in `take` look for something else to do."""
        self._interrupted = True
        self._changed.set()

    async def _take(self, most: int) -> int:
        try:
            while self.rate != UNLIMITED:
                now = time.monotonic()
                self._accrue(now)
                if self._interrupted:
                    self._interrupted = False
                    return 0
                if self._credit >= self.unit - 1e-9:
                    count = min(most, floor(self._credit + 1e-9))
                    self._credit -= count
                    self._started += count
                    return count
                if self._starving_since is None:
                    self._starving_since = now
                await self._until_due(now)
        finally:
            if self._starving_since is not None:
                self._starved += time.monotonic() - self._starving_since
                self._starving_since = None
        return most

    async def _until_due(self, now: float) -> None:
        """Wait until a unit is due or something changed; without a grant, until something changed."""
        pace, seconds = self._pace, None
        if pace > 0 and now < self.shared.until:
            seconds = max(LEAST_PAUSE, min((self.unit - self._credit) / pace, self.shared.until - now))
        else:
            self.shared.lapsed.add(self._changed)
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _accrue(self, now: float) -> None:
        """Count the starts that became due; those that are long due and not made are lost, never made up
        for."""
        if (pace := self._pace) > 0:
            passed = max(0.0, min(now, self.shared.until) - self._at)
            self._credit = min(self._credit + pace * passed, self.unit + pace * LATE)
        self._at = now
