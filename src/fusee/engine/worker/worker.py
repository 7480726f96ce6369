"""A worker claims what it can run, runs it and reports how it ended; its session holds the lease."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine

from fusee.engine.ending import end
from fusee.engine.model.outcome import End
from fusee.engine.model.session import Lease, WorkerInfo
from fusee.engine.worker.couriers import COURIERS, Couriers
from fusee.engine.worker.memory import MemoryLimit
from fusee.engine.worker.nudge import Nudge
from fusee.engine.worker.outcomes import Late, Reports
from fusee.engine.worker.plan import Planner
from fusee.engine.worker.pool import Pool
from fusee.engine.worker.served import ServedLanes
from fusee.engine.worker.session import HeldSession, LostSessions
from fusee.engine.worker.settings import WorkerSettings
from fusee.engine.worker.work_source import WorkSource
from fusee.errors import FuseeError, LeaseLost
from fusee.events import Bus, LoopFailed, RunCancelRequested, SessionEnded, SessionExpired, SessionStarted

__all__ = ["Worker"]

WATCH_EVERY = 0.1
GIVE_UP_EVERY = 0.2
"""Seconds between two looks at whether a lost session can be given up."""
LAST_REPLY = 2.0
"""Seconds that a worker which was told to leave waits for the session that it asked for."""


class Worker:
    """`await worker.run()` works until `worker.stop()`, then drains."""

    def __init__(
        self, work_source: WorkSource, planner: Planner, info: WorkerInfo, settings: WorkerSettings, bus: Bus
    ) -> None:
        self.work_source = work_source
        self.planner = planner
        self.info = info
        self.settings = settings
        self.bus = bus
        self._nudge = Nudge()
        self.pool = Pool(info.capacity, settings.grace, bus, self._nudge, self._confirm_start, planner.kinds)
        self.served = ServedLanes(work_source, planner, self.pool.plans)
        self.reports = Reports(work_source, bus)
        self.held = HeldSession(Lease(settings.lease, time.monotonic() - settings.lease))
        self.started = asyncio.Event()
        """Set when the first session is open."""
        self._draining = asyncio.Event()
        self.drained = False
        """Someone asked this worker to leave, and did not stop the process."""
        self._cancel_hinted = Nudge()
        self._drain_hinted = Nudge()
        self._sessions: list[int] = []
        """The latest sessions of this process: a drain asked of one of them counts for the next."""
        self.lost_sessions = LostSessions(work_source, self.pool, settings.lease)
        self._beat_now = Nudge()
        self._late: list[Late] = []
        """What ended after the lease was lost: reported as stale once the store answers."""
        self.memory = MemoryLimit(settings.max_memory, info.name, bus)
        self.couriers = Couriers(
            work_source,
            self.pool,
            self.served,
            self.reports,
            self.held,
            settings,
            bus,
            self._nudge,
            self._draining,
            self.memory,
            self._expire,
        )

    @property
    def session(self) -> int | None:
        return self.held.session

    # -- life

    def stop(self) -> None:
        """Claim nothing more, finish or hand back what there is, then end."""
        self._draining.set()
        self._nudge()

    async def run(self) -> None:
        undo = [
            self.work_source.wakes.on("pending", self.couriers.hear_pending),
            self.work_source.wakes.on("cancel", self._cancel_hinted),
            self.work_source.wakes.on("drain", self._drain_hinted),
        ]
        try:
            await self._open()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.couriers.courier(), name=f"fusee-courier-{n}")
                    for n in range(COURIERS)
                ]
                tasks += [group.create_task(loop) for loop in self._loops()]
                await self._draining.wait()
                await self._drain()
                await end(tasks)
            await self._close()
        finally:
            for forget in undo:
                forget()

    def _loops(self) -> tuple[Coroutine[None, None, None], ...]:
        return (
            self._beat(),
            self._watch(),
            self._regularly("limits", self.served.read, Nudge()),
            self._regularly("cancels", self._heed_cancels, self._cancel_hinted),
            self._regularly("drain", self._heed_drain, self._drain_hinted),
        )

    async def _open(self) -> None:
        """Open a session, however long the store takes to answer."""
        failures = 0
        while not self._draining.is_set():
            asked_at = time.monotonic()
            try:
                session = await self._ask_for_session()
            except Exception as error:
                failures += 1
                self.bus.emit(LoopFailed(loop="worker", error=error, failures=failures))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(5.0, 0.2 * 2**failures)):
                        await self._draining.wait()
                continue
            if session is None:
                return
            self.held.session, self.held.lease = session, Lease(self.settings.lease, asked_at)
            self._sessions = [*self._sessions[-9:], session]
            self.served.session = session
            self.served.sort()
            self.bus.emit(SessionStarted(session=session, worker=self.info.name))
            self.started.set()
            self.couriers.opened()
            return

    async def _ask_for_session(self) -> int | None:
        """Return a new session's number; None when this worker is told to leave and the store is silent."""

        async def ask() -> int:
            await self.served.read()
            return await self.work_source.open_session(self.info, self.settings.lease)

        asking, leaving = asyncio.ensure_future(ask()), asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                # A session that is being opened right now must be ended, not lost.
                await asyncio.wait({asking}, timeout=LAST_REPLY)
            return asking.result() if asking.done() else None
        finally:
            await end([asking, leaving])

    async def _drain(self) -> None:
        """Hand back what has not started, wait for what runs, and hand back the rest when the time is up."""
        self.pool.hand_back_all()
        self.pool.stop_all(End.RETURNED, time.monotonic(), only_handed_over=True)
        if self.session is not None:
            with contextlib.suppress(FuseeError):
                await self.work_source.drain_session(self.session)
        if not await self._emptied(self.settings.drain_timeout):
            self.pool.stop_all(End.RETURNED, time.monotonic())
            await self._emptied(self.settings.grace + 10)

    async def _emptied(self, seconds: float) -> bool:
        """Return whether everything we hold ended and was written within that time."""
        deadline = time.monotonic() + seconds
        while not self._empty_handed:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    @property
    def _empty_handed(self) -> bool:
        pool, couriers = self.pool, self.couriers
        unsure = couriers.lost_reply and self.session is not None
        return not (pool.holding or pool.outcomes or couriers.under_way or unsure)

    async def _close(self) -> None:
        if self.session is not None:
            with contextlib.suppress(FuseeError):
                await self.work_source.end_session(self.session)
            self.bus.emit(SessionEnded(session=self.session, worker=self.info.name, returned=0))
        for executor in self.planner.executors.values():
            await executor.close()

    # -- the lease

    async def _beat(self) -> None:
        """Hold a session: renew its lease, retry soon when the store is silent, open the next session."""
        pause = self.settings.renew_interval
        while True:
            await self._beat_now.wait(pause)
            try:
                if self.session is None:
                    await self._open()
                    await self._record_late()
                else:
                    await self._renew(self.session)
                pause = self.settings.renew_interval
                await self.lost_sessions.give_up(time.monotonic())
                if self.lost_sessions:
                    pause = min(pause, GIVE_UP_EVERY)
            except Exception as error:
                self.bus.emit(LoopFailed(loop="heartbeat", error=error, failures=1))
                pause = min(1.0, self.settings.renew_interval / 4)

    async def _renew(self, session: int) -> None:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(max(1.0, self.held.lease.left(asked_at))):
                await self.work_source.renew(session, self.settings.lease, self.pool.busy)
        except LeaseLost:
            self._expire()
        else:
            self.held.lease.renewed(asked_at)
            self.couriers.renewed()

    def _expire(self) -> None:
        """The lease is over: stop and forget everything, since it may soon run elsewhere.

        This asks the store nothing, so it is done in time even when the store has gone silent.
        """
        session, self.held.session = self.session, None
        if session is None:
            return
        now = time.monotonic()
        dropped = len(self.pool.ready) + self.pool.stop_all(End.LOST, now)
        self.pool.stop_all(End.LOST, now)  # a second time: no grace, others may have started
        self.pool.ready.clear()
        self.pool.receipts.forget()
        self.couriers.expired()
        finished, settlements = self.pool.outcomes.collect()
        self._late += [(i, a, "succeeded") for i, a in zip(finished.ids, finished.attempts, strict=True)]
        self._late += [(s.run_id, s.attempt, str(s.ended.end)) for s in settlements]
        self.bus.emit(
            SessionExpired(session=session, worker=self.info.name, dropped=dropped + len(self._late))
        )
        self.lost_sessions.add(session, now)
        self._beat_now()

    async def _record_late(self) -> None:
        late, self._late = self._late, []
        await self.reports.stale(late)

    async def _confirm_start(self, run_id: int, attempt: int) -> float | None:
        """Return until when an attempt that begins late may begin; None when it may not."""
        while True:
            asked_at = time.monotonic()
            session = self.session
            try:
                if session is None:
                    return None
                if not await self.work_source.confirm_start(session, run_id, attempt):
                    return None
                if self.held.allows(session, time.monotonic()):
                    return self.held.start_by(asked_at)
            except Exception as error:
                self.bus.emit(LoopFailed(loop="start", error=error, failures=1))
            # At most until the lease is over.
            await asyncio.sleep(min(1.0, self.settings.renew_interval / 4))

    # -- watching

    async def _watch(self) -> None:
        """Ten times a second: check deadlines, runs held too long, the lease. Never waits for the store."""
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = time.monotonic()
            self.pool.watch(now)
            if self.memory.look():
                self._nudge()
            if self.pool.hand_back_stale(now):
                self.couriers.pace.stall()
            if self.session is not None and not self.held.lease.holds(now):
                self._expire()

    async def _regularly(self, loop: str, look: Callable[[], Awaitable[None]], hinted: Nudge) -> None:
        """Call `look` once a second, and at every hint."""
        while True:
            await hinted.wait(self.settings.look_interval)
            try:
                await look()
            except Exception as error:
                self.bus.emit(LoopFailed(loop=loop, error=error, failures=1))

    async def _heed_drain(self) -> None:
        """Leave if someone asked this worker to."""
        if not self._sessions or self._draining.is_set():
            return
        if await self.work_source.drain_asked(self._sessions):
            self.drained = True
            self.stop()

    async def _heed_cancels(self) -> None:
        """Stop those of our runs that someone canceled."""
        if self.session is None or not self.pool.holding:
            return
        for run_id, attempt in await self.work_source.cancel_requests(self.session, self.pool.held_ids()):
            if self.pool.cancel(run_id, attempt, time.monotonic()):
                self.bus.emit(RunCancelRequested(run_id=run_id, attempt=attempt))
