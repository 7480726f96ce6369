"""Two commands, or a command and an end, at the same moment: whoever comes first, the batch ends well.

Each pair is run many times on two stores; `make chaos` runs each a thousand times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from fusee.batches.model.batch import BatchPhase
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.rows import decode
from fusee.engine.store.tables import runs
from fusee.errors import Conflict
from fusee.stores import Store
from tests.store.batchwork import ONCE, Batchwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMES = 2
OFTEN = RetryPolicy(max_attempts=5, base=0.001, jitter=0)

Outcome = str
"""`done`, or why not."""


async def _at_once(*deeds: Callable[[], Awaitable[Any]]) -> list[Outcome]:
    """All of them, in an order that is left to chance; a conflict is an answer, anything else is wrong."""

    async def one(deed: Callable[[], Awaitable[Any]]) -> Outcome:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        try:
            await deed()
        except Conflict as conflict:
            return str(conflict)
        return "done"

    order = random.sample(range(len(deeds)), len(deeds))
    answers = await asyncio.gather(*(one(deeds[nr]) for nr in order))
    return [answers[order.index(nr)] for nr in range(len(deeds))]


async def _begun(world: World, session: int, count: int, applied: int = 0, **fields: Any) -> Batchwork:
    """A batch of which so many are applied and two are in a worker's hands."""
    work = await Batchwork.plan(world, count, session=session, **{"concurrency": 2, **fields})
    await work.store.batches.commands.apply_batch(work.id)
    for _ in range(applied // 2):
        await _claim(work)
        await world.finish(session, *work.take(list(work.held)))
        await _react(work.store)
    await _claim(work)
    return work


async def _claim(work: Batchwork) -> list[str]:
    """Without the invariants, which would look at every batch before this one."""
    claimed = await work.world.claim(work.session)
    assert all(run.owner_id == work.id for run in claimed)
    names = [decode(run.payload)["target_id"] for run in claimed]
    work.held |= dict(zip(names, claimed, strict=True))
    return names


async def _react(store: Store) -> None:
    while await store.aggregation.aggregate():
        pass


async def _to_the_end(work: Batchwork) -> list[str]:
    """Whatever is left to do is done well; answers which targets began on the way."""
    begun = []
    await _react(work.store)
    while True:
        await work.store.ready_queue.promote()
        names = await _claim(work)
        if not names and not work.held:
            break
        begun += names
        await work.world.finish(work.session, *work.take(list(work.held)))
        await _react(work.store)
    assert (await work.look()).phase is BatchPhase.DONE
    assert await work.recounted()
    return begun


# --- the pairs


async def cancel_against_finish(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 4)

    async def finish() -> None:
        await world.finish(session, *work.take(["t0", "t1"]), store=other)
        await _react(other)

    assert await _at_once(lambda: work.store.batches.commands.cancel_batch(work.id, "enough"), finish) == [
        "done",
        "done",
    ]
    assert await _to_the_end(work) == [], "nothing starts after a cancel"
    assert await work.counts() == {"success": 2, "cancel": 2}


async def cancel_against_another_try(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 4, retry=OFTEN)

    async def time_out() -> None:
        claimed = work.take(["t0", "t1"])
        await world.settle(session, *claimed, end=End.TIMED_OUT, policy=OFTEN, store=other)
        await _react(other)

    assert await _at_once(lambda: work.store.batches.commands.cancel_batch(work.id, "enough"), time_out) == [
        "done",
        "done",
    ]
    await world.clock.tick(1)
    assert await _to_the_end(work) == [], "nothing starts after a cancel, not even for another try"
    assert await work.counts() == {"cancel": 4}
    assert await work.effects() == {"t0": "unknown", "t1": "unknown", "t2": None, "t3": None}


async def cancel_against_apply(world: World, other: Store, session: int) -> None:
    work = await Batchwork.plan(world, 4, session=session, concurrency=2)
    applied, canceled = await _at_once(
        lambda: work.store.batches.commands.apply_batch(work.id),
        lambda: other.batches.commands.cancel_batch(work.id, "no"),
    )
    assert canceled == "done"
    assert applied == "done" or "retry its failed targets" in applied
    assert await _to_the_end(work) == []
    assert await work.counts() == {"cancel": 4}


async def cancel_against_claim(world: World, other: Store, session: int) -> None:
    work = await Batchwork.plan(world, 4, session=session, concurrency=2)
    await work.store.batches.commands.apply_batch(work.id)
    await _at_once(lambda: other.batches.commands.cancel_batch(work.id, "no"), lambda: _claim(work))
    started = set(work.held)
    assert await _to_the_end(work) == []
    assert {name for name, status in (await work.statuses()).items() if status == "success"} == started


async def rollback_against_running_targets(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 8, applied=2)

    async def end() -> None:
        await world.settle(session, *work.take(["t3"]), end=End.FAILED, policy=ONCE, store=other)
        await world.finish(session, *work.take(["t2"]), store=other)
        await _react(other)

    assert await _at_once(lambda: work.store.batches.commands.roll_back_batch(work.id), end) == [
        "done",
        "done",
    ]
    begun = await _to_the_end(work)
    assert sorted(begun) == ["t0", "t1", "t2", "t3"]
    assert await work.counts() == {"rollback_success": 4, "cancel": 4}


async def two_rollbacks(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 4, applied=2)
    await world.finish(session, *work.take(["t2", "t3"]))
    await _react(work.store)
    answers = await _at_once(
        lambda: work.store.batches.commands.roll_back_batch(work.id),
        lambda: other.batches.commands.roll_back_batch(work.id),
    )
    assert answers.count("done") == 1
    assert any("is being rolled back: wait for it" in answer for answer in answers)
    assert len(await _to_the_end(work)) == 4, "each is undone once"
    assert await work.counts() == {"rollback_success": 4}


async def two_rollbacks_of_chosen_targets(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 4, applied=2)
    await world.finish(session, *work.take(["t2", "t3"]))
    await _react(work.store)
    answers = await _at_once(
        lambda: work.store.batches.commands.roll_back_batch(work.id, targets=["t0", "t1"]),
        lambda: other.batches.commands.roll_back_batch(work.id, targets=["t1", "t2"]),
    )
    assert answers.count("done") == 1
    begun = await _to_the_end(work)
    assert sorted(begun) == (["t0", "t1"] if answers[0] == "done" else ["t1", "t2"])


async def applied_twice(world: World, other: Store, session: int) -> None:
    work = await Batchwork.plan(world, 5, session=session, concurrency=2)
    answers = await _at_once(
        lambda: work.store.batches.commands.apply_batch(work.id),
        lambda: other.batches.commands.apply_batch(work.id),
    )
    assert answers == ["done", "done"]
    assert await _to_the_end(work) == ["t0", "t1", "t2", "t3", "t4"]
    assert await work.counts() == {"success": 5}


async def retry_against_rollback(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 2)
    await world.finish(session, *work.take(["t0"]))
    await world.settle(session, *work.take(["t1"]), end=End.FAILED, policy=ONCE)
    await _react(work.store)
    retried, undone = await _at_once(
        lambda: work.store.batches.commands.retry_batch(work.id),
        lambda: other.batches.commands.roll_back_batch(work.id),
    )
    assert undone == "done"
    assert retried == "done" or "wait until it is done" in retried
    await _to_the_end(work)
    assert await work.counts() == {"rollback_success": 2}


async def retry_against_the_next_failure(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 4)
    await world.settle(session, *work.take(["t0"]), end=End.FAILED, policy=ONCE)
    await _react(work.store)

    async def fail() -> None:
        await world.settle(session, *work.take(["t1"]), end=End.FAILED, policy=ONCE, store=other)
        await _react(other)

    assert await _at_once(lambda: work.store.batches.commands.retry_batch(work.id), fail) == ["done", "done"]
    await _to_the_end(work)
    counts = await work.counts()
    assert counts in ({"success": 4}, {"success": 3, "fail": 1})


async def two_dispatchers(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 9, concurrency=4, canary=2)
    await world.finish(session, *work.take(["t0"]))
    await world.settle(session, *work.take(["t1"]), end=End.SUCCEEDED, effect=Effect.NONE)
    await _at_once(lambda: _react(work.store), lambda: _react(other), other.aggregation.aggregate)
    assert len(await _to_the_end(work)) == 7
    assert await work.counts() == {"success": 9}


async def too_many_errors_against_cancel(world: World, other: Store, session: int) -> None:
    work = await _begun(world, session, 6, max_errors=0, on_error="rollback")

    async def fail() -> None:
        await world.settle(session, *work.take(["t0"]), end=End.FAILED, policy=ONCE, store=other)
        await _react(other)

    assert await _at_once(lambda: work.store.batches.commands.cancel_batch(work.id, "enough"), fail) == [
        "done",
        "done",
    ]
    assert await _to_the_end(work) == [], "whoever cancels does not want it undone either"
    assert await work.counts() == {"fail": 1, "success": 1, "cancel": 4}


class Crowd:
    """A worker of several batches over the same targets, which sees whether two change one at a time."""

    def __init__(self, world: World, session: int, works: Sequence[Batchwork], other: Store) -> None:
        self.world, self.session, self.works, self.other = world, session, works, other
        self.held: dict[str, Claimed] = {}

    async def claim(self) -> int:
        claimed = await self.world.claim(self.session)
        for run in claimed:
            target = decode(run.payload)["target_id"]
            assert target not in self.held, f"batches {run.owner_id} and {self.held[target].owner_id} at once"
            self.held[target] = run
        return len(claimed)

    async def finish_some(self, store: Store) -> None:
        names = random.sample(sorted(self.held), min(3, len(self.held)))
        for name in names:
            claimed = self.held[name]
            if random.random() < 0.3:
                await self.world.settle(self.session, claimed, end=End.FAILED, policy=ONCE, store=store)
            else:
                await self.world.finish(self.session, claimed, store=store)
            self.held.pop(name, None)
        await _react(store)

    async def to_the_end(self) -> None:
        """Both dispatchers and the worker at once, until nothing is left."""
        idle = 0
        while idle < 3:
            before = await self.claim()
            await asyncio.gather(_react(self.works[0].store), _react(self.other))
            await self.finish_some(random.choice((self.works[0].store, self.other)))
            idle = 0 if before or self.held else idle + 1
        for work in self.works:
            assert (await work.look()).phase is BatchPhase.DONE, "nobody waits for ever"
            assert await work.recounted()


async def batches_over_the_same_targets(world: World, other: Store, session: int) -> None:
    works = [
        await Batchwork.plan(world, count, session=session, concurrency=3, canary=canary)
        for count, canary in ((6, 0), (8, 2), (5, 0))
    ]
    first, second, third = works
    await _at_once(
        lambda: first.store.batches.commands.apply_batch(first.id),
        lambda: other.batches.commands.apply_batch(second.id),
        lambda: first.store.batches.commands.apply_batch(third.id),
    )
    await Crowd(world, session, works, other).to_the_end()


async def rollback_against_another_batch(world: World, other: Store, session: int) -> None:
    first = await _begun(world, session, 4, applied=2)
    await world.finish(session, *first.take(["t2", "t3"]))
    await _react(first.store)
    second = await Batchwork.plan(world, 4, session=session, concurrency=2)
    answers = await _at_once(
        lambda: first.store.batches.commands.roll_back_batch(first.id),
        lambda: other.batches.commands.apply_batch(second.id),
    )
    assert answers == ["done", "done"]
    await Crowd(world, session, [first, second], other).to_the_end()


async def two_that_do_not_want_to_wait(world: World, other: Store, session: int) -> None:
    works = [await Batchwork.plan(world, 3, session=session, on_conflict="refuse") for _ in range(2)]
    first, second = works
    answers = await _at_once(
        lambda: first.store.batches.commands.apply_batch(first.id),
        lambda: other.batches.commands.apply_batch(second.id),
    )
    assert sorted(answer == "done" for answer in answers) == [False, True]
    started = works[answers.index("done")]
    await Crowd(world, session, [started], other).to_the_end()


PAIRS = [
    cancel_against_finish,
    cancel_against_another_try,
    cancel_against_apply,
    cancel_against_claim,
    rollback_against_running_targets,
    two_rollbacks,
    two_rollbacks_of_chosen_targets,
    applied_twice,
    retry_against_rollback,
    retry_against_the_next_failure,
    two_dispatchers,
    too_many_errors_against_cancel,
    batches_over_the_same_targets,
    rollback_against_another_batch,
    two_that_do_not_want_to_wait,
]


async def _many_times(world: World, pair: Callable[..., Awaitable[None]], times: int) -> None:
    other = await world.another()
    session = await world.session(ttl=10 * 366 * 86400.0)
    for _ in range(times):
        await pair(world, other, session)
    kinds = {row.kind for row in await world.rows(runs)}
    assert kinds <= {"batch"}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
async def test_at_the_same_moment(world: World, pair: Callable[..., Awaitable[None]]) -> None:
    await _many_times(world, pair, TIMES)


@pytest.mark.chaos
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
async def test_at_the_same_moment_a_thousand_times(
    world: World, pair: Callable[..., Awaitable[None]]
) -> None:
    await _many_times(world, pair, 1000)
