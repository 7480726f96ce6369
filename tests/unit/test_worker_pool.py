"""The pool: what it makes of an attempt that was told to stop and answered all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.worker.executor import Job, Unstoppable
from fusee.engine.worker.handlers import Handlers
from fusee.engine.worker.plan import Options, Plan, Planner
from fusee.engine.worker.pool import Pool
from fusee.engine.worker.slot import Slot
from fusee.events import Bus, RunAttemptEnded, RunStuck
from fusee.stores import RUN_KINDS


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
    pool = Pool(1, 5.0, bus, lambda: None, wanted, RUN_KINDS)
    pool.plans[1] = Plan(
        Lane("default", "default", "http", "http"), executor, None, None, None, RetryPolicy()
    )
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60)])
    await executor.begun.wait()
    (slot,) = pool.slots
    pool.stop_all(told, time.monotonic())
    assert slot.task is not None
    await slot.task
    _, (settlement,) = pool.outcomes.collect()
    assert (settlement.ended.end, settlement.verdict.status) == (End.ACCEPTED, RunStatus.WAITING)
    assert ended == [], "the attempt has not ended"


async def test_a_worker_without_its_lease_says_nothing() -> None:
    executor = Taken()
    pool = Pool(1, 5.0, Bus(), lambda: None, wanted, RUN_KINDS)
    pool.plans[1] = Plan(
        Lane("default", "default", "http", "http"), executor, None, None, None, RetryPolicy()
    )
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60)])
    await executor.begun.wait()
    (slot,) = pool.slots
    pool.stop_all(End.LOST, time.monotonic())
    assert slot.task is not None
    await slot.task
    assert pool.outcomes.collect()[1] == []


class Counting:
    """Does nothing with each job that it gets."""

    name = "python"

    def __init__(self) -> None:
        self.jobs: list[int] = []

    async def execute(self, job: Job) -> Ended:
        self.jobs.append(job.run_id)
        return Ended(End.SUCCEEDED)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("payload", "options", "says"),
    [
        ("{ what", None, "DecodeError"),
        ("[1, 2]", None, "list"),
        (None, '{"timeout": "long"}', "TypeError"),
        (None, '{"fire_time": "noon"}', "TypeError"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_run_that_cannot_be_read_fails_and_its_worker_goes_on(
    payload: str | None, options: str | None, says: str, is_async: bool
) -> None:
    executor, handlers = Counting(), Handlers()
    if is_async:

        async def awaited() -> None:
            executor.jobs.append(6)

        handlers.register("work", awaited)
    else:
        handlers.register("work", lambda: None)
    pool = Pool(1, 5.0, Bus(), lambda: None, wanted, RUN_KINDS)
    lane = Lane("default", "default", "python", "work")
    pool.plans[1] = Planner(handlers, {"python": executor}).plan(lane)
    soon = time.monotonic() + 60
    pool.take(
        [
            Claimed(5, 1, 0, 1, payload, options, start_by=soon),
            Claimed(6, 1, 0, 1, None, None, start_by=soon),
        ]
    )
    (slot,) = pool.slots
    assert slot.task is not None
    await slot.task
    finished, (settlement,) = pool.outcomes.collect()
    assert executor.jobs == [6] and finished.ids == [6]
    assert (settlement.run_id, settlement.ended.end) == (5, End.FAILED)
    assert says in (settlement.ended.error or "")


async def test_options_that_no_version_wrote_count_as_not_given() -> None:
    plan = Plan(Lane("default", "default", "python", "work"), None, None, None, 7.0, RetryPolicy())
    for text in ("{ what", "[1]", '"x"', '{"retry": 3}'):
        assert Options.of(plan, text) == Options(7.0, RetryPolicy())
    newer = Options.of(plan, '{"timeout": 3, "retry": {"max_attempts": 9, "backoff": "fibonacci", "x": 1}}')
    assert newer == Options(3, RetryPolicy(max_attempts=9)), "what is known holds"


@pytest.mark.parametrize(
    ("kind", "payload", "options", "belongs"),
    [
        (None, "{}", None, {}),
        ("task", None, '{"task": "nightly", "shard_index": 2}', {"task": "nightly", "shard": 2}),
        ("batch", '{"target_id": "t1"}', None, {"batch_id": 9, "target_id": "t1"}),
        (
            "batch",
            '{"target_id": "t1", "rollback": true}',
            None,
            {"batch_id": 9, "target_id": "t1", "rollback": True},
        ),
        ("bulk", '{"job": 9, "segment": 4}', None, {"bulk_job_id": 9, "segment": 4}),
        ("batch", "{ what", None, {}),
    ],
)
async def test_an_attempt_that_failed_names_what_it_belongs_to(
    kind: str | None, payload: str | None, options: str | None, belongs: dict[str, object]
) -> None:
    bus, handlers = Bus(), Handlers()
    ended: list[RunAttemptEnded] = []
    bus.subscribe(RunAttemptEnded, ended.append)

    async def fail(**_: object) -> None:
        raise RuntimeError("no luck")

    handlers.register("work", fail)
    pool = Pool(1, 5.0, bus, lambda: None, wanted, RUN_KINDS)
    pool.plans[1] = Planner(handlers, {}).plan(Lane("default", "default", "python", "work"))
    if options is not None:  # such runs go through an executor
        pool.plans[1] = replace(pool.plans[1], executor=Failing())
    soon = time.monotonic() + 60
    pool.take([Claimed(5, 1, 0, 1, payload, options, start_by=soon, kind=kind, owner_id=9)])
    (slot,) = pool.slots
    assert slot.task is not None
    await slot.task
    (event,) = ended
    assert event.belongs == belongs


class Failing(Counting):
    async def execute(self, job: Job) -> Ended:
        return Ended(End.FAILED, error="no luck")


# --- a handler that does not stop ----------------------------------------------------------------------


class Deaf:
    """Swallows its cancellation, and goes on until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self) -> None:
        self.begun.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                pass
        raise RuntimeError("half done")


@pytest.fixture
async def deaf() -> AsyncIterator[Deaf]:
    """Let go at the end, or a test that fails would never end."""
    deaf = Deaf()
    yield deaf
    deaf.let_go.set()


async def told_to_stop(deaf: Deaf, kind: str | None, end: End) -> tuple[Pool, Slot, list[RunStuck]]:
    """A run of that kind that was told to stop, and is looked at long after its grace."""
    bus, stuck = Bus(), list[RunStuck]()
    bus.subscribe(RunStuck, stuck.append)
    pool = Pool(1, 5.0, bus, lambda: None, wanted, RUN_KINDS)
    handlers = Handlers()
    handlers.register("deaf", deaf.__call__)
    pool.plans[1] = Planner(handlers, {}).plan(Lane("default", "default", "python", "deaf"))
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60, kind=kind)])
    await deaf.begun.wait()
    (slot,) = pool.slots
    pool.stop_all(end, time.monotonic())
    for seconds in (10.1, 20.0, 1000.0):
        pool.watch(time.monotonic() + seconds)
    return pool, slot, stuck


async def test_a_canceled_fire_ends_when_its_handler_has_ended(deaf: Deaf) -> None:
    pool, slot, stuck = await told_to_stop(deaf, "task", End.CANCELED)
    assert len(stuck) == 1, "told once"
    assert pool.outcomes.collect()[1] == [], "the next fire would start beside it"
    deaf.let_go.set()
    assert slot.task is not None
    await slot.task
    _, (settlement,) = pool.outcomes.collect()
    assert settlement.verdict.status == RunStatus.CANCELED


@pytest.mark.parametrize(
    ("kind", "end", "status"),
    [
        (None, End.CANCELED, RunStatus.CANCELED),
        ("task", End.TIMED_OUT, RunStatus.TIMED_OUT),
        ("batch", End.CANCELED, RunStatus.CANCELED),
    ],
)
async def test_any_other_run_that_does_not_stop_is_ended_for_good(
    deaf: Deaf, kind: str | None, end: End, status: RunStatus
) -> None:
    pool, slot, stuck = await told_to_stop(deaf, kind, end)
    _, (settlement,) = pool.outcomes.collect()
    assert (settlement.verdict.status, settlement.ended.final, len(stuck)) == (status, True, 1)
    deaf.let_go.set()
    assert slot.task is not None
    await slot.task
    assert pool.outcomes.collect()[1] == [], "what it says afterwards changes nothing"


async def test_a_worker_that_leaves_waits_for_no_canceled_fire(deaf: Deaf) -> None:
    pool, slot, stuck = await told_to_stop(deaf, "task", End.CANCELED)
    pool.stop_all(End.RETURNED, time.monotonic())
    pool.watch(time.monotonic() + 1000)
    _, (settlement,) = pool.outcomes.collect()
    assert (settlement.verdict.status, len(stuck)) == (RunStatus.CANCELED, 1)
    deaf.let_go.set()
    assert slot.task is not None
    await slot.task


class Mute:
    """An executor whose work cannot be stopped; it can tell when that is over."""

    name = "python"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = False

    async def execute(self, job: Job) -> Ended:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Unstoppable("it goes on", over=lambda: self.over) from None
        raise AssertionError

    async def close(self) -> None: ...


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_canceled_fire_in_a_thread_ends_when_the_thread_has_ended(leaves: bool) -> None:
    mute, bus, stuck = Mute(), Bus(), asyncio.Event()
    bus.subscribe(RunStuck, lambda _: stuck.set())
    pool = Pool(1, 5.0, bus, lambda: None, wanted, RUN_KINDS)
    pool.plans[1] = Plan(Lane("default", "default", "python", "mute"), mute, None, None, None, RetryPolicy())
    pool.take([Claimed(5, 1, 0, 1, None, None, start_by=time.monotonic() + 60, kind="task")])
    await mute.begun.wait()
    (slot,) = pool.slots
    pool.stop_all(End.CANCELED, time.monotonic())
    await stuck.wait()
    assert pool.outcomes.collect()[1] == []
    if leaves:
        pool.stop_all(End.RETURNED, time.monotonic())
    else:
        mute.over = True
    assert slot.task is not None
    await slot.task
    _, (settlement,) = pool.outcomes.collect()
    assert (settlement.verdict.status, settlement.ended.final) == (RunStatus.CANCELED, leaves)


class Busy(Taken):
    """A call that goes on until it is told to stop."""

    async def execute(self, job: Job) -> Ended:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_a_run_that_waits_in_the_worker_is_canceled_and_never_starts() -> None:
    executor = Busy()
    pool = Pool(1, 5.0, Bus(), lambda: None, wanted, RUN_KINDS)
    pool.plans[1] = Plan(
        Lane("default", "default", "http", "http"), executor, None, None, None, RetryPolicy()
    )
    start_by = time.monotonic() + 60
    pool.take([Claimed(run_id, 3, 0, 1, None, None, start_by=start_by) for run_id in (5, 6, 7)])
    try:
        await executor.begun.wait()
        assert not pool.cancel(6, 2, time.monotonic()), "another attempt"
        assert pool.cancel(6, 3, time.monotonic())
        assert not pool.cancel(6, 3, time.monotonic()), "it has been told"
        (settlement,) = pool.outcomes.settlements
        assert (settlement.run_id, settlement.attempt) == (6, 3)
        assert (settlement.ended.end, settlement.ended.effect) == (End.CANCELED, Effect.NONE)
        assert [claimed.id for claimed in pool.ready] == [7]
    finally:
        pool.ready.clear()
        pool.stop_all(End.LOST, time.monotonic())
