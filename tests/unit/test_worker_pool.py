"""The pool: what it makes of an attempt that was told to stop and answered all the same."""

from __future__ import annotations

import asyncio
import time

import pytest

from fusee.events import Bus, RunAttemptEnded
from fusee.model import Claimed, Effect, End, Ended, Lane, RetryPolicy, RunStatus
from fusee.worker.executors.base import Job
from fusee.worker.plan import Plan
from fusee.worker.pool import Pool


class Taken:
    """A call whose service takes the work at the very moment in which the call is told to stop."""

    name = "http"

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def execute(self, job: Job) -> Ended:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return Ended(End.ACCEPTED, effect=Effect.UNKNOWN)

    async def close(self) -> None: ...


async def wanted(_run_id: int, _attempt: int) -> float:
    return time.monotonic() + 60


@pytest.mark.parametrize("told", [End.TIMED_OUT, End.CANCELED, End.RETURNED])
async def test_what_a_service_took_is_waited_for_whatever_the_call_was_told(told: End) -> None:
    executor, bus = Taken(), Bus()
    ended: list[RunAttemptEnded] = []
    bus.subscribe(RunAttemptEnded, ended.append)
    pool = Pool(1, 5.0, bus, lambda: None, wanted)
    pool.plans[1] = Plan(
        Lane("default", "default", "http", "http"), executor, None, None, None, RetryPolicy()
    )
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60)])
    await executor.begun.wait()
    (slot,) = pool.slots
    pool.tell_all(told, time.monotonic())
    assert slot.task is not None
    await slot.task
    _, (settlement,) = pool.collect()
    assert (settlement.ended.end, settlement.verdict.status) == (End.ACCEPTED, RunStatus.WAITING)
    assert ended == [], "the attempt has not ended"


async def test_a_worker_without_its_lease_says_nothing() -> None:
    executor = Taken()
    pool = Pool(1, 5.0, Bus(), lambda: None, wanted)
    pool.plans[1] = Plan(
        Lane("default", "default", "http", "http"), executor, None, None, None, RetryPolicy()
    )
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60)])
    await executor.begun.wait()
    (slot,) = pool.slots
    pool.tell_all(End.LOST, time.monotonic())
    assert slot.task is not None
    await slot.task
    assert pool.collect()[1] == []
