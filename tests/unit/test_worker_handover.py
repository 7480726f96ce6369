"""When a worker hands over the sessions it has lost, and when it leaves them to their leases."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fusee.engine.model.outcome import End, Ended
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, Lane
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.plan import Plan
from fusee.engine.worker.pool import Pool
from fusee.engine.worker.session import LostSessions
from fusee.events import Bus
from fusee.stores import RUN_KINDS

LEASE = 30.0


class WorkSource:
    def __init__(self) -> None:
        self.given_up: list[int] = []

    async def give_up_session(self, session: int) -> None:
        self.given_up.append(session)


class Mute:
    """An executor whose work cannot be stopped."""

    name = "python"

    def __init__(self, knows: bool) -> None:
        self.begun = asyncio.Event()
        self.knows = knows
        self.over = False

    async def execute(self, job: Job) -> Ended:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unstoppable("it goes on", over=(lambda: self.over) if self.knows else None) from None
        raise AssertionError

    async def close(self) -> None: ...


async def wanted(run_id: int, attempt: int) -> float | None:
    raise AssertionError


async def lost_with(mute: Mute) -> tuple[Any, Pool, LostSessions, float]:
    """Session 7 is lost, and what it ran has left its slot and goes on."""
    work_source: Any = WorkSource()
    pool = Pool(1, 5.0, Bus(), lambda: None, wanted, RUN_KINDS)
    lost_sessions = LostSessions(work_source, pool, LEASE)
    pool.plans[1] = Plan(Lane("default", "default", "python", "mute"), mute, None, None, None, RetryPolicy())
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60)])
    await mute.begun.wait()
    (slot,) = pool.slots
    now = time.monotonic()
    pool.stop_all(End.LOST, now)
    lost_sessions.add(7, now)
    await lost_sessions.give_up(now)
    assert work_source.given_up == [], "it is still in its slot"
    assert slot.task is not None
    await slot.task
    assert not pool.slots
    return work_source, pool, lost_sessions, now


async def test_a_session_is_handed_over_when_work_that_could_not_be_stopped_is_over() -> None:
    mute = Mute(knows=True)
    work_source, _, lost_sessions, now = await lost_with(mute)
    await lost_sessions.give_up(now + 1)
    assert (work_source.given_up, bool(lost_sessions)) == ([], True)
    mute.over = True
    await lost_sessions.give_up(now + 2)
    assert (work_source.given_up, bool(lost_sessions)) == ([7], False)


@pytest.mark.parametrize("knows", [True, False])
async def test_a_session_is_left_to_its_lease_when_its_work_is_never_known_to_be_over(knows: bool) -> None:
    work_source, _, lost_sessions, now = await lost_with(Mute(knows))
    await lost_sessions.give_up(now + LEASE - 1)
    assert (work_source.given_up, bool(lost_sessions)) == ([], True)
    await lost_sessions.give_up(now + LEASE + 1)
    assert (work_source.given_up, bool(lost_sessions)) == ([], False)


async def test_work_of_an_earlier_session_does_not_keep_a_later_one() -> None:
    work_source, _, lost_sessions, now = await lost_with(Mute(knows=False))
    await lost_sessions.give_up(now + LEASE + 1)
    lost_sessions.add(8, now + LEASE + 2)
    await lost_sessions.give_up(now + LEASE + 3)
    assert work_source.given_up == [8]
