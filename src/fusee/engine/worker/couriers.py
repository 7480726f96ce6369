"""Couriers: the loops that fetch claimed runs from the store and report outcomes to it.

Each trip hands in outcomes and brings new runs, so while one courier is under way the runs of the other
execute. The store is never asked about a single run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fusee.engine.model.outcome import End
from fusee.engine.model.run import Claimed
from fusee.engine.store.contract import Exchanged, Order
from fusee.engine.worker.claims import LostClaims, Pace
from fusee.engine.worker.memory import MemoryLimit
from fusee.engine.worker.nudge import Nudge
from fusee.engine.worker.outcomes import Reports
from fusee.engine.worker.pool import Pool
from fusee.engine.worker.served import ServedLanes
from fusee.engine.worker.session import HeldSession
from fusee.engine.worker.settings import WorkerSettings
from fusee.engine.worker.work_source import WorkSource
from fusee.errors import LeaseLost
from fusee.events import Bus, LoopFailed, RunsClaimed

__all__ = ["COURIERS", "Couriers"]

COURIERS = 2
MOST_A_TRIP = 500
"""Runs that one statement claims at most: beyond this the database's time per run no longer falls."""
LIMITED_EVERY = 0.1
"""Seconds between two claims from queues with limits."""


@dataclass(eq=False)
class Couriers:
    """Fetch and report loops of a worker: `courier` is one loop, which runs until it is cancelled."""

    work_source: WorkSource
    pool: Pool
    served: ServedLanes
    reports: Reports
    held: HeldSession
    settings: WorkerSettings
    bus: Bus
    nudge: Nudge
    draining: asyncio.Event
    memory: MemoryLimit
    expire: Callable[[], None]
    """Called when the store says that the lease is over."""

    def __post_init__(self) -> None:
        self.pace = Pace(self.settings.prefetch)
        self.lost_reply = False
        """The store may have given us runs in a reply that was lost: they go back before we claim more."""
        self._lost_claims = LostClaims(self.settings.lease_ttl)
        self._dry_until = 0.0
        self._hints = 0
        self._limited_at = 0.0
        self._wanted = 0
        """Runs that trips under way asked for."""
        self._trips = 0
        self._used_up: list[int] = []
        self._lanes_read_at = 0.0

    @property
    def under_way(self) -> bool:
        return self._trips > 0

    @contextmanager
    def _on_trip(self, want: int = 0) -> Iterator[None]:
        self._trips += 1
        self._wanted += want
        try:
            yield
        finally:
            self._trips -= 1
            self._wanted -= want

    def opened(self) -> None:
        """A session began: claim at once."""
        self._dry_until = 0.0
        self.nudge()

    def renewed(self) -> None:
        # A claim that lost its connection may commit after we looked for it.
        if self._lost_claims.due(time.monotonic()):
            self.lost_reply = True
            self.nudge()

    def expired(self) -> None:
        """The session is over, and with it all its receipts."""
        self._used_up.clear()
        self._lost_claims.end()

    def hear_pending(self) -> None:
        """A hint: there may be runs to claim."""
        self.served.notice()
        self._hints += 1
        self._dry_until = 0.0
        self.nudge()

    async def courier(self) -> None:
        """One loop."""
        failures = 0
        while True:
            try:
                if not await self._trip():
                    await self.rest()
                failures = 0
            except Exception as error:
                # Whatever failed, outcomes must still be written: go on trying.
                failures += 1
                self.bus.emit(LoopFailed(loop="courier", error=error, failures=failures))
                await asyncio.sleep(min(2.0, 0.05 * 2 ** min(failures, 6)))

    async def rest(self) -> None:
        """Wait for an outcome, a hint, or the next poll."""
        if self._trips:
            # The other courier is under way and nudges when it is back: let outcomes gather until then.
            await self.nudge.wait(self.settings.poll_interval)
            return
        if self.pool.outcomes:
            return
        pause = self._dry_until - time.monotonic()
        if pause <= 0:  # there is work but no room: a run that ends nudges
            pause = self.settings.poll_interval
        if self.served.limited or self.served.own_limited:
            pause = min(pause, LIMITED_EVERY)
        await self.nudge.wait(pause)

    async def _trip(self) -> bool:
        """Go to the store if there is something to report or to fetch; returns whether there was."""
        session = self.held.session
        if session is None:
            await asyncio.sleep(0.01)
            return True
        if self.lost_reply:
            if self._trips:
                return False  # runs in a reply under way would be handed back as unknown
            await self._reconcile(session)
        if self.served.unread:
            await self.served.read()
            if session != self.held.session:
                return True
        now = time.monotonic()
        self.pace.measure(self.pool.outcomes.completed, now)
        if not self.served.free and now >= self._dry_until:
            await self._ran_dry(self._hints)
            if session != self.held.session:
                return True  # it expired meanwhile: what we hold now belongs to another session
        want = self._room(now)
        if not want and not self.pool.outcomes:
            return await self.claim_limited(session)
        hints = self._hints
        try:
            with self._on_trip(want):
                exchanged = await self._exchange(session, want, now)
        finally:
            self.nudge()
        if exchanged is None:
            return True
        if len(exchanged.claimed) < want:
            await self._ran_dry(hints, found=bool(exchanged.claimed))
        await self.claim_limited(session)
        return True

    async def _exchange(self, session: int, want: int, now: float) -> Exchanged | None:
        """Report outcomes and claim up to `want` runs; returns None when the lease turns out to be over."""
        outcomes = self.pool.outcomes
        finished, settlements = outcomes.collect()
        used_up: list[int] = []
        try:
            if settlements:
                refused = await self.reports.settle(session, settlements)
                written = [s.receipt for s in settlements if (s.run_id, s.attempt) not in refused]
                self._used_up += self.pool.receipts.ended(written)
                if any(s.ticket for s in settlements):
                    self._limited_at = 0.0  # a place came free
                settlements = []
            # Forgotten one trip after the one that writes their last outcome: if that trip is lost, the
            # receipts must still be there.
            used_up, self._used_up = self._used_up, []
            order = Order(want, self.served.free, self.pool.receipts.next() if want else 0, used_up)
            exchanged = await self.work_source.exchange(session, finished, order)
        except BaseException as error:
            if isinstance(error, LeaseLost) and self.held.session == session:
                outcomes.put_back(finished, settlements)
                self.expire()
                return None
            if want:
                self._lose_reply()
            if self.held.session == session:
                outcomes.put_back(finished, settlements)
                self._used_up += used_up
            raise
        self._arrive(session, await self._of_known_lanes(exchanged.claimed), now)
        if not exchanged.refused:  # else they stay until the session ends, which does no harm
            self._used_up += self.pool.receipts.ended(finished.receipts)
        else:
            await self.reports.refused((run, attempt, End.SUCCEEDED) for run, attempt in exchanged.refused)
        return exchanged

    def _lose_reply(self) -> None:
        self.lost_reply = True
        self._lost_claims.begin(time.monotonic())

    def _room(self, now: float) -> int:
        """Return how many runs to claim: enough to keep busy, and not in many small portions."""
        if self.draining.is_set() or now < self._dry_until or not self.served.free:
            return 0
        if not self.held.lease.holds(now) or self.lost_reply or self.memory.full:
            return 0
        pool = self.pool
        target = pool.capacity + self.pace.ahead
        room = target - pool.holding - self._wanted
        idle = pool.capacity - pool.holding - self._wanted
        if room <= 0 or (idle <= 0 and room < target // 4):
            return 0
        return min(room, MOST_A_TRIP)

    async def _of_known_lanes(self, claimed: list[Claimed]) -> list[Claimed]:
        """Return the runs of lanes that we know; a dispatcher may have read a new lane before us."""
        if not self.served.may_have_assigned or all(run.lane_id in self.pool.plans for run in claimed):
            return claimed
        try:
            await self.served.look_for_new()
        except BaseException:
            self.lost_reply = True  # they go back as unknown
            raise
        known = [run for run in claimed if run.lane_id in self.pool.plans]
        if len(known) < len(claimed):
            self.lost_reply = True
        return known

    def _arrive(self, session: int, claimed: list[Claimed], asked_at: float) -> None:
        if not claimed:
            return
        if not self.held.allows(session, time.monotonic()):
            # No longer ours: the dispatcher returns them with the rest of that session; if the session lives
            # on after all, we do.
            self.lost_reply = self.lost_reply or session == self.held.session
            return
        start_by = self.held.start_by(asked_at)
        for run in claimed:
            run.start_by = start_by
        if self.bus.wants(RunsClaimed):
            self.bus.emit(RunsClaimed(session=session, count=len(claimed)))
        self.pool.take(claimed)
        if self.draining.is_set():
            self.pool.hand_back_all()

    async def _ran_dry(self, hints: int, *, found: bool = False) -> None:
        """Fewer runs came than we asked for: wait for a hint, unless one came meanwhile.

        A hint that led to nothing may be about a lane that another process has just created.
        """
        now = time.monotonic()
        if not found or now - self._lanes_read_at > self.settings.poll_interval:
            self._lanes_read_at = now
            if await self.served.look_for_new():
                return
        if hints == self._hints:
            self._dry_until = time.monotonic() + self.settings.poll_interval

    async def claim_limited(self, session: int) -> bool:
        """Claim from queues with limits, one after the other: ten times a second, or when a place came free.

        Returns whether anything was claimed.
        """
        now = time.monotonic()
        claims: list[tuple[Sequence[str], list[int]]] = [
            ((queue,), lanes) for queue, lanes in self.served.limited.items()
        ]
        if self.served.own_limited:
            claims.append((self.served.own_limited, []))
        if not claims or self.draining.is_set() or self.memory.full:
            return False
        # After a lost reply, what we claim would be handed back as unknown.
        if self.lost_reply or now - self._limited_at < LIMITED_EVERY / 2:
            return False
        self._limited_at = now
        took = False
        for queues, lanes in claims:
            room = self.pool.capacity - self.pool.holding - self._wanted
            if room <= 0 or self.lost_reply or session != self.held.session or not self.held.lease.holds(now):
                break
            order = Order(room, lanes, self.pool.receipts.next())
            with self._on_trip(room):
                try:
                    if lanes:
                        claimed = await self.work_source.claim_limited(session, queues[0], order)
                    else:
                        assigned = await self.work_source.claim_assigned(session, queues, order)
                        claimed = await self._of_known_lanes(assigned)
                except BaseException:
                    self._lose_reply()
                    raise
            self._arrive(session, claimed, now)
            took = took or bool(claimed)
        return took

    async def _reconcile(self, session: int) -> None:
        with self._on_trip():
            await self.reports.return_unknown(session, self.pool.in_hand())
            self.lost_reply = False
