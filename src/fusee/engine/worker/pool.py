"""Executing: at most `capacity` runs at once, out of a short line of claimed ones.

A runner is a task that serves one run after the other, so a run that never suspends costs an `await`,
not a task; when it suspends, the other runners go on. A whole run costs the worker
about 6 µs of processor time (PostgreSQL, a no-op with a small payload).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec

from fusee.engine.model.belongs import belongs_to
from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.run import Claimed
from fusee.engine.model.session import START_WITHIN
from fusee.engine.store.contract import Finished, Settlement
from fusee.engine.worker.context import serve
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.plan import Options, Plan
from fusee.engine.worker.receipts import Receipts
from fusee.engine.worker.results import ended_by, ended_by_error, misfit
from fusee.engine.worker.slot import ConfirmStart, Slot
from fusee.events import Bus, RunAttemptEnded, RunsFinished, RunStuck
from fusee.values.times import iso

__all__ = ["Pool"]

SLICE = 0.005
"""Seconds that handlers may run without a pause before the loop gets a turn for everything else."""

STUCK_AFTER = 5.0
"""Seconds beyond the grace after which a run that was told to stop counts as stuck."""

LOOK_EVERY = 0.1
"""Seconds between two looks at a thread that does not stop."""

_decode = msgspec.json.Decoder().decode


class Pool:
    """Runs what is in `ready` and collects how it ended."""

    def __init__(
        self, capacity: int, grace: float, bus: Bus, on_outcome: Callable[[], None], confirm: ConfirmStart
    ) -> None:
        self.capacity = capacity
        self.confirm = confirm
        """Asks the store, for an attempt that begins late."""
        self.grace = grace
        self.bus = bus
        self.on_outcome = on_outcome
        self.ready: deque[Claimed] = deque()
        self.plans: dict[int, Plan] = {}
        self.slots: set[Slot] = set()
        self._unstopped: list[tuple[float, Callable[[], bool] | None]] = []
        """Work that could not be stopped and has left its slot: when it began, and what tells that it is over
        (None: nobody here can know)."""
        self.finished = Finished()
        self.settlements: list[Settlement] = []
        self.receipts = Receipts()
        self.completed = 0
        """Runs ended since the start; their pace sizes the prefetch."""
        self._timed = bus.wants(RunsFinished)
        self._seconds: dict[str, list[float]] = {}
        self._slice_began = 0.0
        self._pausing = False

    # -- taking in and giving out

    @property
    def busy(self) -> int:
        return len(self.slots)

    @property
    def holding(self) -> int:
        """Runs in our hands that have not ended."""
        return len(self.slots) + len(self.ready)

    def take(self, claimed: list[Claimed]) -> None:
        """Accept claimed runs and start as many as there is room for."""
        self.receipts.open(claimed)
        self.ready.extend(claimed)
        self.start()

    def start(self) -> None:
        """Two runners now; each brings two more while there is something left for them. Runs that never
        suspend are all served by the first, and runs that do have all slots after five turns of the loop."""
        for _ in range(min(2, self.capacity - len(self.slots), len(self.ready))):
            slot = Slot(self.confirm)
            self.slots.add(slot)
            # A context of its own: what one runner's handlers set is not seen by another's.
            slot.task = asyncio.get_running_loop().create_task(
                self._serve(slot), context=contextvars.Context()
            )

    def collect(self) -> tuple[Finished, list[Settlement]]:
        """Hand over the outcomes so far."""
        finished, self.finished = self.finished, Finished()
        settlements, self.settlements = self.settlements, []
        self._timed = self.bus.wants(RunsFinished)
        if self._seconds:
            seconds, self._seconds = self._seconds, {}
            for handler, times in seconds.items():
                self.bus.emit(RunsFinished(handler=handler, seconds=times))
        return finished, settlements

    def put_back(self, finished: Finished, settlements: list[Settlement]) -> None:
        """Outcomes that could not be written yet."""
        for row in zip(finished.ids, finished.attempts, finished.results, finished.receipts, strict=True):
            self.finished.add(*row)
        self.finished.told += finished.told
        self.settlements[:0] = settlements

    def in_hand(self) -> set[tuple[int, int]]:
        """(run, attempt) of everything that is waiting, running, or ended but not written."""
        hand = {(c.id, c.attempt) for c in self.ready}
        hand |= {(s.claimed.id, s.claimed.attempt) for s in self.slots if s.claimed is not None}
        hand |= set(zip(self.finished.ids, self.finished.attempts, strict=True))
        return hand | {(s.run_id, s.attempt) for s in self.settlements}

    def held_ids(self) -> list[int]:
        """The runs that are waiting or running here."""
        return [c.id for c in self.ready] + [s.claimed.id for s in self.slots if s.claimed is not None]

    def hand_back(self, claimed: Claimed) -> None:
        """It has not started: another worker may have it, and no attempt is spent."""
        ended = Ended(End.RETURNED, effect=Effect.NONE)
        self._settle(claimed, self.plans[claimed.lane_id], ended, 0.0)

    def hand_back_all(self) -> int:
        count = len(self.ready)
        while self.ready:
            self.hand_back(self.ready.popleft())
        return count

    def hand_back_stale(self, now: float) -> int:
        """Give back what has waited here too long: its runs became slow, or we were stopped."""
        count = 0
        while self.ready and now > self.ready[0].start_by - START_WITHIN * 0.2:
            self.hand_back(self.ready.popleft())
            count += 1
        return count

    # -- stopping

    def cancel(self, run_id: int, attempt: int, now: float) -> bool:
        """Someone asked for it; true when it was ours and had not been told before."""
        for claimed in self.ready:
            if claimed.id == run_id and claimed.attempt == attempt:
                self.ready.remove(claimed)
                ended = Ended(End.CANCELED, effect=Effect.NONE)
                self._settle(claimed, self.plans[claimed.lane_id], ended, 0.0)
                return True
        for slot in self.slots:
            running = slot.claimed
            if (
                running is not None
                and (running.id, running.attempt) == (run_id, attempt)
                and slot.told is None
            ):
                slot.tell(End.CANCELED, now)
                return True
        return False

    def tell_all(self, end: End, now: float) -> int:
        """Tell everything that runs to stop; answers how many."""
        told = [slot for slot in self.slots if slot.claimed is not None]
        for slot in told:
            slot.tell(end, now)
        return len(told)

    def still_runs(self, before: float) -> bool:
        """Whether anything that began by that moment goes on here, in a slot or after it left one."""
        self._drop_ended()
        in_slots = any(slot.claimed is not None and slot.started <= before for slot in self.slots)
        return in_slots or any(began <= before for began, _ in self._unstopped)

    def forget_unstopped(self, before: float) -> None:
        """What began by that moment matters no longer."""
        self._unstopped = [work for work in self._unstopped if work[0] > before]

    def _drop_ended(self) -> None:
        self._unstopped = [work for work in self._unstopped if work[1] is None or not work[1]()]

    def tell_those_that_hand_over(self, now: float) -> int:
        """Another worker goes on where they are: they need not end here."""
        told = [slot for slot in self.slots if slot.claimed is not None and _hands_over(slot.plan)]
        for slot in told:
            slot.tell(End.RETURNED, now)
        return len(told)

    def watch(self, now: float) -> None:
        """Called ten times a second: deadlines, and what does not stop though told to."""
        for slot in tuple(self.slots):
            if slot.claimed is None:
                continue
            if slot.told is None and now >= slot.deadline:
                slot.tell(End.TIMED_OUT, now)
            elif (
                slot.told is not None and not slot.reported and now > slot.told_at + self.grace + STUCK_AFTER
            ):
                self._tell_of_stuck(slot)
                if not slot.awaited:
                    self._give_up_on(slot, now)

    def _tell_of_stuck(self, slot: Slot) -> None:
        assert slot.claimed is not None and slot.plan is not None
        if not slot.stuck:
            slot.stuck = True
            run = slot.claimed
            self.bus.emit(RunStuck(run_id=run.id, attempt=run.attempt, handler=slot.plan.lane.handler))

    def _give_up_on(self, slot: Slot, now: float) -> None:
        """It can be neither stopped nor killed: end the run for good, so that no attempt runs beside it."""
        assert slot.claimed is not None and slot.plan is not None and slot.told is not None
        slot.reported = True
        error = (
            f"told to stop ({slot.told}) and still running {now - slot.told_at:.0f} s later: no further"
            " attempt is started beside it. Let the handler end when it is cancelled,"
            " or give it isolation='process'"
        )
        ended = Ended(slot.told, error=error, effect=Effect.UNKNOWN, final=True)
        if slot.told is not End.LOST:
            if slot.told is End.RETURNED:
                ended = Ended(End.FAILED, error=error, effect=Effect.UNKNOWN, final=True)
            self._settle(slot.claimed, slot.plan, ended, now - slot.started)

    # -- running

    async def _serve(self, slot: Slot) -> None:
        """One runner: serves the line until it is empty, or until this task should not be used again."""
        serve(slot.context)
        clean = contextvars.copy_context()
        ready, plans, monotonic = self.ready, self.plans, time.monotonic
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
                        value = await (inline() if payload is None else inline(**_decode(payload)))
                    except BaseException as error:
                        self._failed(slot, plan, claimed, error)
                    else:
                        if value is None and slot.told is None and not claimed.ticket:
                            finished = self.finished
                            finished.ids.append(claimed.id)
                            finished.attempts.append(claimed.attempt)
                            finished.results.append(None)
                            finished.receipts.append(claimed.receipt)
                            if claimed.kind is not None:
                                finished.told.append(claimed.id)
                            self.completed += 1
                            if self._timed:
                                self._time(plan, monotonic() - now)
                        else:
                            self._ended(slot, claimed, plan, ended_by(value))
                else:
                    await self._execute(slot, claimed, plan, now)
                slot.claimed = slot.job = None
                if slot.told is not None or contextvars.copy_context() != clean:
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
            job = self._job(slot, claimed, plan, now)
        except Exception as error:  # a row that no attempt can read: this one fails, the worker goes on
            self._failed(slot, plan, claimed, error)
            return
        slot.job = job
        assert plan.executor is not None
        try:
            ended = await plan.executor.execute(job)
        except Unstoppable as error:
            self._tell_of_stuck(slot)
            outlasted = await self._outlast(slot, error)
            if outlasted is error:
                self._drop_ended()
                self._unstopped.append((slot.started, error.over))
            self._failed(slot, plan, claimed, outlasted)
        except BaseException as error:
            self._failed(slot, plan, claimed, error)
        else:
            self._ended(slot, claimed, plan, ended)

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

    def _job(self, slot: Slot, claimed: Claimed, plan: Plan, now: float) -> Job:
        options = Options.of(plan, claimed.options)
        slot.deadline = inf if options.timeout is None else now + options.timeout
        lane, payload = plan.lane, _payload(claimed)
        job = Job(claimed.id, claimed.attempt, lane.handler, lane.queue, payload, options.timeout, self.grace)
        job.start_by, job.confirm = claimed.start_by, slot.confirm
        if options.fire_time is not None:
            job.fire_time, job.task = iso(options.fire_time), options.task
            job.shard_index, job.shard_total = options.shard_index, options.shard_total
        job.kind = claimed.kind
        return job

    def _failed(self, slot: Slot, plan: Plan, claimed: Claimed, error: BaseException) -> None:
        """What a handler or executor raised, or what we made it raise."""
        output = slot.job.output if slot.job is not None else None
        effect = slot.job.effect if slot.job is not None else Effect.UNKNOWN
        if isinstance(error, Unstoppable):
            # Its executor cannot stop the work: whatever the reason was, no attempt may follow.
            told = slot.told if slot.told in (End.TIMED_OUT, End.CANCELED) else End.FAILED
            ended = Ended(told, error=str(error), output=output, effect=effect, final=True)
        elif slot.told is not None:
            ended = Ended(slot.told, error=_why(slot, claimed), output=output, effect=effect)
        elif isinstance(error, asyncio.CancelledError) and slot.task is not None and slot.task.cancelling():
            # Not by us: the loop is going down, or a timer that an earlier handler left behind hit this run.
            ended = Ended(End.FAILED, error="its runner was cancelled from outside", effect=effect)
            self._end(slot, claimed, plan, ended)
            raise error  # this task should not be used again
        elif isinstance(error, GeneratorExit):
            raise error  # the loop is gone
        else:
            # Also SystemExit and its kin: let through, they would end the loop, or strand the run.
            ended = _unfit(plan, claimed, error) or ended_by_error(error)
        self._end(slot, claimed, plan, ended)

    def _ended(self, slot: Slot, claimed: Claimed, plan: Plan, ended: Ended) -> None:
        """It answered; when it had been told to stop, that counts only if it failed: real success is kept,
        and so is that a service took the work."""
        if slot.told is not None and ended.end not in (End.SUCCEEDED, End.SKIPPED, End.ACCEPTED):
            ended = Ended(slot.told, error=ended.error, output=ended.output, effect=ended.effect)
        self._end(slot, claimed, plan, ended)

    def _end(self, slot: Slot, claimed: Claimed, plan: Plan, ended: Ended) -> None:
        if slot.reported or slot.told is End.LOST:
            return  # decided without it, or no longer ours: a zombie changes nothing
        seconds = time.monotonic() - slot.started
        plain = ended.end is End.SUCCEEDED and ended.output is None and ended.effect is not Effect.NONE
        if plain and not claimed.ticket:
            self.finished.add(claimed.id, claimed.attempt, ended.result, claimed.receipt, claimed.kind)
            self.completed += 1
            if self._timed:
                self._time(plan, seconds)
        else:
            self._settle(claimed, plan, ended, seconds)
        if slot.told is None and not self.ready:
            self.on_outcome()

    def _settle(self, claimed: Claimed, plan: Plan, ended: Ended, seconds: float) -> None:
        policy = Options.of(plan, claimed.options).policy
        verdict = decide(ended, policy, claimed.spent, random.random())
        self.settlements.append(
            Settlement(claimed.id, claimed.attempt, ended, verdict, claimed.receipt, claimed.ticket)
        )
        if ended.end is not End.RETURNED:
            # Counted as done, what is handed back would keep the pace up, and be taken here again.
            self.completed += 1
        self.on_outcome()
        if ended.end is End.SUCCEEDED:
            if self._timed:
                self._time(plan, seconds)
        elif ended.end is not End.ACCEPTED and self.bus.wants(RunAttemptEnded):
            self.bus.emit(
                RunAttemptEnded(
                    run_id=claimed.id,
                    attempt=claimed.attempt,
                    handler=plan.lane.handler,
                    end=ended.end,
                    status=verdict.status,
                    seconds=seconds,
                    error=ended.error,
                    belongs=_belongs(claimed),
                )
            )

    def _time(self, plan: Plan, seconds: float) -> None:
        times = self._seconds.get(plan.lane.handler)
        if times is None:
            times = self._seconds[plan.lane.handler] = []
        times.append(seconds)


def _hands_over(plan: Plan | None) -> bool:
    if plan is None:
        return False
    if plan.handler is not None:
        return plan.handler.hands_over
    return getattr(plan.executor, "hands_over", False)


def _payload(claimed: Claimed) -> dict[str, Any]:
    payload = {} if claimed.payload is None else _decode(claimed.payload)
    if not isinstance(payload, dict):
        raise ValueError(f"the payload is no JSON object but {type(payload).__name__}")
    return payload


def _unfit(plan: Plan, claimed: Claimed, error: BaseException) -> Ended | None:
    """What to say when the payload does not fit its handler; nothing when that was not the reason."""
    if plan.handler is None:
        return None
    try:
        payload = _payload(claimed)
    except ValueError:
        return None  # it cannot be read at all: the error says so
    return misfit(plan.handler, payload, error)


def _belongs(claimed: Claimed) -> dict[str, Any]:
    """Whose run it is; read only for attempts that are told of."""
    if claimed.kind is None:
        return {}
    try:
        options = {} if claimed.options is None else _decode(claimed.options)
        return belongs_to(claimed.kind, claimed.owner_id, options, _payload(claimed))
    except (ValueError, AttributeError):  # unreadable: the error of the attempt says so
        return {}


def _why(slot: Slot, claimed: Claimed) -> str:
    match slot.told:
        case End.TIMED_OUT:
            return f"took longer than its timeout of {slot.deadline - slot.started:g} s and was stopped"
        case End.CANCELED:
            return "stopped because someone canceled it"
        case _:
            return "stopped because its worker went away"
