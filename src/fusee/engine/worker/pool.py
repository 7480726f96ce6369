"""The pool: executes at most `capacity` runs at once, out of a short queue of claimed ones.

A runner is a task that serves one run after the other, so a run that never suspends costs an `await` and not
a task; when it suspends, the other runners go on. A whole run costs the worker about 6 µs of processor time
(PostgreSQL, a no-op with a small payload).
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.run import Claimed, RunKind
from fusee.engine.model.session import START_WITHIN
from fusee.engine.worker.claims import Receipts
from fusee.engine.worker.context import serve
from fusee.engine.worker.executor import Unstoppable
from fusee.engine.worker.outcomes import OutcomeBuffer
from fusee.engine.worker.plan import Plan, decode, payload_of
from fusee.engine.worker.results import ended_by, ended_by_error, misfit
from fusee.engine.worker.slot import ConfirmStart, Slot
from fusee.events import Bus, RunStuck

__all__ = ["Pool"]

SLICE = 0.005
"""Seconds that handlers may run without a pause before the loop gets a turn for everything else."""

STUCK_AFTER = 5.0
"""Seconds beyond the grace after which a run that was told to stop counts as stuck."""

LOOK_EVERY = 0.1
"""Seconds between two looks at a thread that does not stop."""


class Pool:
    """Executes the runs in `ready` and collects their `outcomes`."""

    def __init__(
        self,
        capacity: int,
        grace: float,
        bus: Bus,
        on_outcome: Callable[[], None],
        confirm: ConfirmStart,
        kinds: Mapping[str, RunKind],
    ) -> None:
        self.capacity = capacity
        self.confirm = confirm
        """Asks the store, for an attempt that begins late."""
        self.kinds = kinds
        self.grace = grace
        self.bus = bus
        self.on_outcome = on_outcome
        self.outcomes = OutcomeBuffer(bus, on_outcome, kinds)
        self.ready: deque[Claimed] = deque()
        self.plans: dict[int, Plan] = {}
        self.slots: set[Slot] = set()
        self.receipts = Receipts()
        self._unstopped: list[tuple[float, Callable[[], bool] | None]] = []
        """Work that could not be stopped and has left its slot: when it began, and a function that returns
        whether it is over (None: nothing in this process can know)."""
        self._slice_began = 0.0
        self._pausing = False

    # -- taking in and handing back

    @property
    def busy(self) -> int:
        return len(self.slots)

    @property
    def holding(self) -> int:
        """The number of claimed runs that have not ended."""
        return len(self.slots) + len(self.ready)

    def take(self, claimed: list[Claimed]) -> None:
        """Accept claimed runs and start as many as there is room for."""
        self.receipts.open(claimed)
        self.ready.extend(claimed)
        self.start()

    def start(self) -> None:
        """Start two runners; each starts two more while there are runs left for them.

        Runs that never suspend are all served by the first. Runs that do suspend fill all slots after five
        turns of the loop.
        """
        for _ in range(min(2, self.capacity - len(self.slots), len(self.ready))):
            slot = Slot(self.confirm, self.kinds)
            self.slots.add(slot)
            # A context of its own: what one runner's handlers set is not seen by another's.
            slot.task = asyncio.get_running_loop().create_task(
                self._serve(slot), context=contextvars.Context()
            )

    def in_hand(self) -> set[tuple[int, int]]:
        """Return (run, attempt) of everything that is waiting, running, or ended but not written."""
        hand = {(c.id, c.attempt) for c in self.ready}
        hand |= {(s.claimed.id, s.claimed.attempt) for s in self.slots if s.claimed is not None}
        return hand | self.outcomes.attempts()

    def held_ids(self) -> list[int]:
        """Return the ids of the runs that are waiting or running here."""
        return [c.id for c in self.ready] + [s.claimed.id for s in self.slots if s.claimed is not None]

    def hand_back(self, claimed: Claimed) -> None:
        """Return a run that has not started: another worker may claim it, and no attempt is spent."""
        ended = Ended(End.RETURNED, effect=Effect.NONE)
        self.outcomes.settle(claimed, self.plans[claimed.lane_id], ended)

    def hand_back_all(self) -> int:
        count = len(self.ready)
        while self.ready:
            self.hand_back(self.ready.popleft())
        return count

    def hand_back_stale(self, now: float) -> int:
        """Hand back what has waited here too long: its runs became slow, or this process was suspended."""
        count = 0
        while self.ready and now > self.ready[0].start_by - START_WITHIN * 0.2:
            self.hand_back(self.ready.popleft())
            count += 1
        return count

    # -- stopping

    def cancel(self, run_id: int, attempt: int, now: float) -> bool:
        """Cancel a run; returns whether it was here and had not been told to stop before."""
        for claimed in self.ready:
            if claimed.id == run_id and claimed.attempt == attempt:
                self.ready.remove(claimed)
                ended = Ended(End.CANCELED, effect=Effect.NONE)
                self.outcomes.settle(claimed, self.plans[claimed.lane_id], ended)
                return True
        for slot in self.slots:
            running = slot.claimed
            if running is None or (running.id, running.attempt) != (run_id, attempt):
                continue
            if slot.stop_reason is None:
                slot.stop(End.CANCELED, now)
                return True
        return False

    def stop_all(self, reason: End, now: float, *, only_handed_over: bool = False) -> int:
        """Tell everything that runs to stop; returns how many runs that were.

        With `only_handed_over`, only those that another worker resumes: they need not end here.
        """
        running = [slot for slot in self.slots if slot.claimed is not None and slot.plan is not None]
        if only_handed_over:
            running = [slot for slot in running if slot.plan is not None and slot.plan.hands_over]
        for slot in running:
            slot.stop(reason, now)
        return len(running)

    def still_runs(self, before: float) -> bool:
        """Return whether anything that began by that moment goes on here, in a slot or after it left one."""
        self._drop_ended()
        in_slots = any(slot.claimed is not None and slot.started <= before for slot in self.slots)
        return in_slots or any(began <= before for began, _ in self._unstopped)

    def forget_unstopped(self, before: float) -> None:
        """Forget work that began by that moment and could not be stopped."""
        self._unstopped = [work for work in self._unstopped if work[0] > before]

    def _drop_ended(self) -> None:
        self._unstopped = [work for work in self._unstopped if work[1] is None or not work[1]()]

    def watch(self, now: float) -> None:
        """Enforce deadlines, and give up on runs that do not stop; called ten times a second."""
        for slot in tuple(self.slots):
            if slot.claimed is None:
                continue
            if slot.stop_reason is None:
                if now >= slot.deadline:
                    slot.stop(End.TIMED_OUT, now)
            elif not slot.settled and now > slot.stopped_at + self.grace + STUCK_AFTER:
                self._report_stuck(slot)
                if not slot.awaited:
                    self._give_up_on(slot, now)

    def _report_stuck(self, slot: Slot) -> None:
        assert slot.claimed is not None and slot.plan is not None
        if not slot.stuck:
            slot.stuck = True
            run = slot.claimed
            self.bus.emit(RunStuck(run_id=run.id, attempt=run.attempt, handler=slot.plan.lane.handler))

    def _give_up_on(self, slot: Slot, now: float) -> None:
        """End the run for good, so that no attempt runs beside one that can be neither stopped nor killed."""
        assert slot.claimed is not None and slot.plan is not None and slot.stop_reason is not None
        slot.settled = True
        if slot.stop_reason is End.LOST:
            return
        end = End.FAILED if slot.stop_reason is End.RETURNED else slot.stop_reason
        error = (
            f"told to stop ({slot.stop_reason}) and still running {now - slot.stopped_at:.0f} s later: no"
            " further attempt is started beside it. Let the handler end when it is cancelled,"
            " or give it isolation='process'"
        )
        ended = Ended(end, error=error, effect=Effect.UNKNOWN, final=True)
        self.outcomes.settle(slot.claimed, slot.plan, ended, now - slot.started)

    # -- running

    async def _serve(self, slot: Slot) -> None:
        """One runner: serves `ready` until it is empty, or until this task should not be used again."""
        serve(slot.context)
        clean = contextvars.copy_context()
        ready, plans, outcomes, monotonic = self.ready, self.plans, self.outcomes, time.monotonic
        self.start()
        try:
            while ready:
                now = monotonic()
                if now - self._slice_began > SLICE:
                    if not self._pausing:
                        self._pausing = True
                        asyncio.get_running_loop().call_soon(self._new_slice)
                    await asyncio.sleep(0)
                    continue
                claimed = ready.popleft()
                plan = plans[claimed.lane_id]
                if now > claimed.start_by:
                    self.hand_back(claimed)
                    continue
                slot.claimed, slot.plan, slot.started = claimed, plan, now
                inline = plan.inline
                if inline is not None and claimed.options is None:
                    slot.deadline = inf if plan.timeout is None else now + plan.timeout
                    try:
                        payload = claimed.payload
                        value = await (inline() if payload is None else inline(**decode(payload)))
                    except BaseException as error:
                        self._raised(slot, plan, claimed, error)
                    else:
                        if value is None and slot.stop_reason is None and not claimed.ticket:
                            finished = outcomes.finished
                            finished.ids.append(claimed.id)
                            finished.attempts.append(claimed.attempt)
                            finished.results.append(None)
                            finished.receipts.append(claimed.receipt)
                            if claimed.kind is not None:
                                finished.for_outbox.append(claimed.id)
                            outcomes.completed += 1
                            if outcomes.timed:
                                outcomes.time(plan, monotonic() - now)
                        else:
                            self._returned(slot, claimed, plan, ended_by(value))
                else:
                    await self._execute(slot, claimed, plan, now)
                slot.claimed = slot.job = None
                if slot.stop_reason is not None or contextvars.copy_context() != clean:
                    break  # a cancel may still be under way, or a handler left a context variable set
        finally:
            slot.claimed = None
            self.slots.discard(slot)
            if ready:
                self.start()
            self.on_outcome()

    def _new_slice(self) -> None:
        self._pausing = False
        self._slice_began = time.monotonic()

    async def _execute(self, slot: Slot, claimed: Claimed, plan: Plan, now: float) -> None:
        try:
            job = plan.job(claimed, self.grace)
            slot.deadline = inf if job.timeout is None else now + job.timeout
        except Exception as error:  # a row that no attempt can read: this one fails, the worker goes on
            self._raised(slot, plan, claimed, error)
            return
        job.confirm = slot.confirm
        slot.job = job
        assert plan.executor is not None
        try:
            ended = await plan.executor.execute(job)
        except Unstoppable as error:
            self._report_stuck(slot)
            outlasted = await self._outlast(slot, error)
            if outlasted is error:
                self._drop_ended()
                self._unstopped.append((slot.started, error.over))
            self._raised(slot, plan, claimed, outlasted)
        except BaseException as error:
            self._raised(slot, plan, claimed, error)
        else:
            self._returned(slot, claimed, plan, ended)

    async def _outlast(self, slot: Slot, error: Unstoppable) -> BaseException:
        """Wait until work that cannot be stopped has ended, where its run is awaited; returns its end."""
        if error.over is None:
            return error
        while not error.over():
            if not slot.awaited:
                return error
            try:
                await asyncio.sleep(LOOK_EVERY)
            except asyncio.CancelledError:  # told again: this worker leaves
                return error
        return asyncio.CancelledError()

    def _raised(self, slot: Slot, plan: Plan, claimed: Claimed, error: BaseException) -> None:
        """Take what a handler or executor raised, or what we made it raise."""
        output = slot.job.output if slot.job is not None else None
        effect = slot.job.effect if slot.job is not None else Effect.UNKNOWN
        reason = slot.stop_reason
        if isinstance(error, Unstoppable):
            # Its executor cannot stop the work: whatever the reason was, no attempt may follow.
            end = reason if reason in (End.TIMED_OUT, End.CANCELED) else End.FAILED
            ended = Ended(end, error=str(error), output=output, effect=effect, final=True)
        elif reason is not None:
            ended = Ended(reason, error=slot.why_stopped(), output=output, effect=effect)
        elif isinstance(error, asyncio.CancelledError) and slot.task is not None and slot.task.cancelling():
            # Not by us: the loop is going down, or a timer that an earlier handler left behind hit this run.
            ended = Ended(End.FAILED, error="its runner was cancelled from outside", effect=effect)
            self._end(slot, claimed, plan, ended)
            raise error  # this task should not be used again
        elif isinstance(error, GeneratorExit):
            raise error  # the loop is gone
        else:
            # Also SystemExit and the like: let through, they would end the loop, or strand the run.
            ended = _misfit(plan, claimed, error) or ended_by_error(error)
        self._end(slot, claimed, plan, ended)

    def _returned(self, slot: Slot, claimed: Claimed, plan: Plan, ended: Ended) -> None:
        """Take how the attempt ended. If it had been told to stop, that reason replaces a failure; a real
        success is kept, and so is that a service accepted the work."""
        if slot.stop_reason is not None and ended.end not in (End.SUCCEEDED, End.SKIPPED, End.ACCEPTED):
            ended = Ended(slot.stop_reason, error=ended.error, output=ended.output, effect=ended.effect)
        self._end(slot, claimed, plan, ended)

    def _end(self, slot: Slot, claimed: Claimed, plan: Plan, ended: Ended) -> None:
        if slot.settled or slot.stop_reason is End.LOST:
            return  # decided without it, or no longer ours: a zombie changes nothing
        self.outcomes.add(claimed, plan, ended, time.monotonic() - slot.started)
        if slot.stop_reason is None and not self.ready:
            self.on_outcome()


def _misfit(plan: Plan, claimed: Claimed, error: BaseException) -> Ended | None:
    """Return the end if the payload does not fit its handler, else None."""
    if plan.handler is None:
        return None
    try:
        payload = payload_of(claimed)
    except ValueError:
        return None  # it cannot be read at all: the error says so
    return misfit(plan.handler, payload, error)
