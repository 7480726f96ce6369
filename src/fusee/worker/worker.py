"""A worker: claims what it can run, runs it, reports how it ended; its session holds the lease.

Two couriers go to the store and back: each trip hands in outcomes and brings new runs, so while one is
under way the other's runs execute. The store is never asked about a single run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence

from fusee.broker import Depot
from fusee.ending import end
from fusee.errors import FuseeError, LeaseLost
from fusee.events import (
    Bus,
    LoopFailed,
    RunCancelRequested,
    RunsClaimed,
    SessionEnded,
    SessionExpired,
    SessionStarted,
)
from fusee.model import Claimed, End, Lease, WorkerInfo
from fusee.store import Order
from fusee.worker.nudge import Nudge
from fusee.worker.pace import Pace
from fusee.worker.plan import Planner
from fusee.worker.pool import Pool
from fusee.worker.reports import Late, Reports
from fusee.worker.served import ServedLanes
from fusee.worker.settings import WorkerSettings

__all__ = ["Worker"]

COURIERS = 2
MOST_A_TRIP = 500
"""Runs claimed by one statement at most: beyond this the database's time a run no longer falls."""
LIMITS_EVERY = 1.0
CANCELS_EVERY = 1.0
DRAIN_EVERY = 1.0
WATCH_EVERY = 0.1
LIMITED_EVERY = 0.1
LOOK_AGAIN = 5
"""Renewals after which a claim whose answer was lost cannot commit any more."""


class Worker:
    """`await worker.run()` until `worker.stop()`; then it drains."""

    def __init__(
        self, depot: Depot, planner: Planner, info: WorkerInfo, settings: WorkerSettings, bus: Bus
    ) -> None:
        self.depot = depot
        self.planner = planner
        self.info = info
        self.settings = settings
        self.bus = bus
        self._nudge = Nudge()
        self.pool = Pool(info.capacity, settings.grace, bus, self._nudge)
        self.served = ServedLanes(depot, planner, self.pool.plans)
        self.reports = Reports(depot, bus)
        self.pace = Pace(settings.prefetch)
        self.session: int | None = None
        self.lease = Lease(settings.lease_ttl, time.monotonic() - settings.lease_ttl)
        self.started = asyncio.Event()
        """Set when the first session is open."""
        self._draining = asyncio.Event()
        self.drained = False
        """Someone asked this worker, and not this process, to leave."""
        self._cancels_wanted = asyncio.Event()
        self._drain_hinted = asyncio.Event()
        self._sessions: list[int] = []
        """Of this life of the process: what was asked of one is asked of the next."""
        self._beat_now = Nudge()
        self._late: list[Late] = []
        """What ended after the lease was lost: told to the store as stale, once it answers."""
        self._dry_until = 0.0
        self._hints = 0
        self._limited_at = 0.0
        self._wanted = 0
        """Runs asked for by trips under way."""
        self._trips = 0
        self._lost_answer = False
        self._look_again = 0
        self._used_up: list[int] = []
        self._lanes_read_at = 0.0

    # -- life

    def stop(self) -> None:
        """Claim nothing more; finish or hand back what there is, then end."""
        self._draining.set()
        self._nudge()

    async def run(self) -> None:
        undo = [
            self.depot.wakes.on("pending", self._hear_pending),
            self.depot.wakes.on("cancel", self._cancels_wanted.set),
            self.depot.wakes.on("drain", self._drain_hinted.set),
        ]
        try:
            await self._open()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._courier(), name=f"fusee-courier-{n}") for n in range(COURIERS)
                ]
                tasks += [group.create_task(loop()) for loop in self._loops()]
                await self._draining.wait()
                await self._drain()
                await end(tasks)
            await self._close()
        finally:
            for forget in undo:
                forget()

    def _loops(self) -> tuple[Callable[[], Coroutine[None, None, None]], ...]:
        return self._beat, self._watch, self._follow_limits, self._heed_cancels, self._heed_drain

    async def _open(self) -> None:
        """Begin a session, however long the store takes to answer."""
        failures = 0
        while not self._draining.is_set():
            asked_at = time.monotonic()
            try:
                await self.served.read()
                self.session = await self.depot.open_session(self.info, self.settings.lease_ttl)
            except Exception as error:
                failures += 1
                self.bus.emit(LoopFailed(loop="worker", error=error, failures=failures))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(5.0, 0.2 * 2**failures)):
                        await self._draining.wait()
                continue
            self.lease = Lease(self.settings.lease_ttl, asked_at)
            self._sessions = [*self._sessions[-9:], self.session]
            self.served.session = self.session
            self.served.sort()
            self.bus.emit(SessionStarted(session=self.session, worker=self.info.name))
            self._dry_until = 0.0
            self.started.set()
            self._nudge()
            return

    async def _drain(self) -> None:
        """Hand back what has not started, wait for what runs, hand back the rest when time is up."""
        self.pool.hand_back_all()
        self.pool.tell_those_that_hand_over(time.monotonic())
        if self.session is not None:
            with contextlib.suppress(FuseeError):
                await self.depot.drain_session(self.session)
        if not await self._emptied(self.settings.drain_timeout):
            self.pool.tell_all(End.RETURNED, time.monotonic())
            await self._emptied(self.settings.grace + 10)

    async def _emptied(self, seconds: float) -> bool:
        """Whether, within that time, everything in our hands had ended and was written."""
        deadline = time.monotonic() + seconds
        while not self._empty_handed:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    @property
    def _empty_handed(self) -> bool:
        pool = self.pool
        unsure = self._lost_answer and self.session is not None
        return not (
            pool.slots or pool.ready or pool.finished.ids or pool.settlements or self._trips or unsure
        )

    async def _close(self) -> None:
        if self.session is not None:
            with contextlib.suppress(FuseeError):
                await self.depot.end_session(self.session)
            self.bus.emit(SessionEnded(session=self.session, worker=self.info.name, returned=0))
        for executor in self.planner.executors.values():
            await executor.close()

    # -- the lease

    async def _beat(self) -> None:
        """Hold a session: renew its lease, soon again when the store does not answer; open the next one."""
        pause = self.settings.heartbeat
        while True:
            await self._beat_now.wait(pause)
            try:
                if self.session is None:
                    await self._open()
                    await self._record_late()
                else:
                    await self._renew(self.session)
                pause = self.settings.heartbeat
            except Exception as error:
                self.bus.emit(LoopFailed(loop="heartbeat", error=error, failures=1))
                pause = min(1.0, self.settings.heartbeat / 4)

    async def _renew(self, session: int) -> None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(max(1.0, self.lease.left(asked_at))):
                await self.depot.renew(session, self.settings.lease_ttl, self.pool.busy)
        except LeaseLost:
            self._expire()
        else:
            self.lease.renewed(asked_at)
            if self._look_again:
                # A claim that lost its connection may commit later than we looked for it.
                self._look_again -= 1
                self._lost_answer = True
                self._nudge()

    def _expire(self) -> None:
        """The lease is over: whatever runs here may run elsewhere soon, so stop it and forget it.

        Asks the store nothing: it is done in time even when the store has gone silent.
        """
        session, self.session = self.session, None
        if session is None:
            return
        now = time.monotonic()
        dropped = len(self.pool.ready) + self.pool.tell_all(End.LOST, now)
        self.pool.tell_all(End.LOST, now)  # a second time: no grace, others may have started
        self.pool.ready.clear()
        self.pool.receipts.forget()
        self._used_up.clear()
        finished, settlements = self.pool.collect()
        self._late += [(i, a, "succeeded") for i, a in zip(finished.ids, finished.attempts, strict=True)]
        self._late += [(s.run_id, s.attempt, str(s.ended.end)) for s in settlements]
        self.bus.emit(
            SessionExpired(session=session, worker=self.info.name, dropped=dropped + len(self._late))
        )
        self._beat_now()

    async def _record_late(self) -> None:
        late, self._late = self._late, []
        await self.reports.stale(late)

    # -- the couriers

    def _hear_pending(self) -> None:
        self.served.notice()
        self._hints += 1
        self._dry_until = 0.0
        self._nudge()

    async def _courier(self) -> None:
        failures = 0
        while True:
            try:
                if not await self._trip():
                    await self._rest()
                failures = 0
            except Exception as error:
                # Whatever it was, what is in our hands must still be written: go on trying.
                failures += 1
                self.bus.emit(LoopFailed(loop="courier", error=error, failures=failures))
                await asyncio.sleep(min(2.0, 0.05 * 2 ** min(failures, 6)))

    async def _rest(self) -> None:
        """Wait for an outcome, a hint, or the next poll."""
        if self._trips:
            # The other courier is under way and nudges when it is back: let outcomes gather until then.
            await self._nudge.wait(self.settings.poll_interval)
            return
        if self.pool.finished.ids or self.pool.settlements:
            return
        pause = self._dry_until - time.monotonic()
        if pause <= 0:  # there is work, but no room: whatever ends here nudges
            pause = self.settings.poll_interval
        if self.served.limited or self.served.own_limited:
            pause = min(pause, LIMITED_EVERY)
        await self._nudge.wait(pause)

    async def _trip(self) -> bool:
        """To the store and back, when there is something to bring or to fetch; false when there was not."""
        session = self.session
        if session is None:
            await asyncio.sleep(0.01)
            return True
        if self._lost_answer:
            if self._trips:
                return False  # what is on its way would be taken for a stranger
            await self._reconcile(session)
        now = time.monotonic()
        self.pace.measure(self.pool.completed, now)
        if not self.served.free and now >= self._dry_until:
            await self._ran_dry(self._hints)
            if session != self.session:
                return True  # expired meanwhile: what is in our hands now is another session's
        want = self._room(now)
        if not want and not self.pool.finished.ids and not self.pool.settlements:
            return await self._claim_limited(session)
        finished, settlements = self.pool.collect()
        used_up: list[int] = []
        hints = self._hints
        self._trips += 1
        self._wanted += want
        try:
            if settlements:
                refused = await self.reports.settle(session, settlements)
                written = [s.receipt for s in settlements if (s.run_id, s.attempt) not in refused]
                self._used_up += self.pool.receipts.ended(written)
                if any(s.ticket for s in settlements):
                    self._limited_at = 0.0  # a place came free
                settlements = []
            # Forgotten with a later trip than the one that writes their last outcome: should that one be
            # lost, the receipts must still be there.
            used_up, self._used_up = self._used_up, []
            order = Order(want, self.served.free, self.pool.receipts.next() if want else 0, used_up)
            exchanged = await self.depot.exchange(session, finished, order)
        except BaseException as error:
            if isinstance(error, LeaseLost) and self.session == session:
                self.pool.put_back(finished, settlements)
                self._expire()
                return True
            if want:
                self._lost_answer, self._look_again = True, LOOK_AGAIN
            if self.session == session:
                self.pool.put_back(finished, settlements)
                self._used_up += used_up
            raise
        finally:
            self._trips -= 1
            self._wanted -= want
            self._nudge()
        self._arrive(session, await self._understood(exchanged.claimed), now)
        if not exchanged.refused:  # else they stay until the session ends: a receipt too many harms nobody
            self._used_up += self.pool.receipts.ended(finished.receipts)
        else:
            await self.reports.refused((run, attempt, End.SUCCEEDED) for run, attempt in exchanged.refused)
        if len(exchanged.claimed) < want:
            await self._ran_dry(hints, found=bool(exchanged.claimed))
        await self._claim_limited(session)
        return True

    def _room(self, now: float) -> int:
        """How many to ask for: enough to keep busy, and not in many small portions."""
        if self._draining.is_set() or now < self._dry_until or not self.served.free:
            return 0
        if not self.lease.holds(now) or self._lost_answer:
            return 0
        pool = self.pool
        target = pool.capacity + self.pace.ahead
        room = target - pool.holding - self._wanted
        idle = pool.capacity - pool.holding - self._wanted
        if room <= 0 or (idle <= 0 and room < target // 4):
            return 0
        return min(room, MOST_A_TRIP)

    async def _understood(self, claimed: list[Claimed]) -> list[Claimed]:
        """Those of a lane that we know. A dispatcher may have given us runs of one that it read before us."""
        if not self.served.given or all(run.lane_id in self.pool.plans for run in claimed):
            return claimed
        await self.served.look_for_new()
        known = [run for run in claimed if run.lane_id in self.pool.plans]
        self._lost_answer = self._lost_answer or len(known) < len(claimed)  # the rest goes back as strangers
        return known

    def _arrive(self, session: int, claimed: list[Claimed], asked_at: float) -> None:
        if not claimed:
            return
        if session != self.session or not self.lease.holds(time.monotonic()):
            # Not ours any more: the dispatcher returns them with the rest of that session, or, should the
            # session live on after all, we do.
            self._lost_answer = self._lost_answer or session == self.session
            return
        for run in claimed:
            run.held_since = asked_at
        if self.bus.wants(RunsClaimed):
            self.bus.emit(RunsClaimed(session=session, count=len(claimed)))
        self.pool.take(claimed)
        if self._draining.is_set():
            self.pool.hand_back_all()

    async def _ran_dry(self, hints: int, *, found: bool = False) -> None:
        """There was less than we asked for: wait for a hint, unless one came while we asked.

        A hint that led to nothing may be about a lane that another process has just made.
        """
        now = time.monotonic()
        if not found or now - self._lanes_read_at > self.settings.poll_interval:
            self._lanes_read_at = now
            if await self.served.look_for_new():
                return
        if hints == self._hints:
            self._dry_until = time.monotonic() + self.settings.poll_interval

    async def _claim_limited(self, session: int) -> bool:
        """Queues with limits, one after the other; at most ten times a second, or when a place came free."""
        now = time.monotonic()
        nothing = not self.served.limited and not self.served.own_limited
        if nothing or self._draining.is_set() or now - self._limited_at < LIMITED_EVERY / 2:
            return False
        if self._lost_answer:
            return False  # what we claim now would be taken for a stranger
        self._limited_at = now
        took = False
        claims: list[tuple[Sequence[str], list[int]]] = [
            ((queue,), lanes) for queue, lanes in self.served.limited.items()
        ]
        if self.served.own_limited:
            claims.append((self.served.own_limited, []))
        for queues, lanes in claims:
            room = self.pool.capacity - self.pool.holding - self._wanted
            if room <= 0 or self._lost_answer or session != self.session or not self.lease.holds(now):
                break
            self._trips += 1
            self._wanted += room
            try:
                order = Order(room, lanes, self.pool.receipts.next())
                if lanes:
                    claimed = await self.depot.claim_limited(session, queues[0], order)
                else:
                    claimed = await self._understood(await self.depot.claim_given(session, queues, order))
            except BaseException:
                self._lost_answer, self._look_again = True, LOOK_AGAIN
                raise
            finally:
                self._trips -= 1
                self._wanted -= room
            self._arrive(session, claimed, now)
            took = took or bool(claimed)
        return took

    async def _reconcile(self, session: int) -> None:
        self._trips += 1
        try:
            await self.reports.return_strangers(session, self.pool.in_hand())
            self._lost_answer = False
        finally:
            self._trips -= 1

    # -- watching

    async def _watch(self) -> None:
        """Ten times a second: deadlines, stale holds, the lease. Never waits for the store."""
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = time.monotonic()
            self.pool.watch(now)
            if self.pool.hand_back_stale(now):
                self.pace.stall()
            if self.session is not None and not self.lease.holds(now):
                self._expire()

    async def _follow_limits(self) -> None:
        """Once a second: new lanes, and what limits their queues have."""
        while True:
            await asyncio.sleep(LIMITS_EVERY)
            try:
                await self.served.read()
            except Exception as error:
                self.bus.emit(LoopFailed(loop="limits", error=error, failures=1))

    async def _heed_drain(self) -> None:
        """Once a second, and at every hint: did someone ask this worker to leave?"""
        while not self._draining.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_EVERY):
                    await self._drain_hinted.wait()
            self._drain_hinted.clear()
            try:
                asked = bool(self._sessions) and await self.depot.drain_asked(self._sessions)
            except Exception as error:
                self.bus.emit(LoopFailed(loop="drain", error=error, failures=1))
                continue
            if asked:
                self.drained = True
                self.stop()

    async def _heed_cancels(self) -> None:
        """Once a second, and at every hint: which of our runs should stop?"""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCELS_EVERY):
                    await self._cancels_wanted.wait()
            self._cancels_wanted.clear()
            if self.session is None or not self.pool.holding:
                continue
            try:
                asked = await self.depot.cancel_requests(self.session, self.pool.held_ids())
            except Exception as error:
                self.bus.emit(LoopFailed(loop="cancels", error=error, failures=1))
                continue
            for run_id, attempt in asked:
                if self.pool.cancel(run_id, attempt, time.monotonic()):
                    self.bus.emit(RunCancelRequested(run_id=run_id, attempt=attempt))
