"""Batches under whatever may happen to them, in any order: all invariants hold after every step, and in the
end each target that was touched can be undone, and no other is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Conflict
from tests.store.batchwork import Batchwork
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEPS = 60
POLICY = RetryPolicy(max_attempts=3, base=1, jitter=0)
TOUCHED = ("applied", "unknown")


class Chance:
    """Does something to a batch, again and again; what it does follows from the seed alone."""

    def __init__(self, seed: int, world: World, work: Batchwork) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.work = work
        self.lives = 0

    def some(self) -> list[str]:
        held = sorted(self.work.held)
        return self.random.sample(held, self.random.randint(1, len(held))) if held else []

    async def claim(self) -> None:
        await self.work.claim(self.random.randint(1, 6))

    async def finish(self) -> None:
        if names := self.some():
            assert not await self.world.finish(self.work.session, *self.work.take(names))

    async def end(self) -> None:
        ends = [
            (End.FAILED, Effect.UNKNOWN),
            (End.FAILED, Effect.NONE),
            (End.TIMED_OUT, Effect.UNKNOWN),
            (End.SUCCEEDED, Effect.NONE),
            (End.ABANDONED, Effect.UNKNOWN),
            (End.RETURNED, Effect.NONE),
            (End.SKIPPED, Effect.NONE),
            (End.CANCELED, Effect.UNKNOWN),
        ]
        if names := self.some():
            end, effect = self.random.choice(ends)
            claimed = self.work.take(names)
            await self.world.settle(
                self.work.session, *claimed, end=end, effect=effect, policy=POLICY, error="broken"
            )

    async def die(self) -> None:
        """The worker is lost, and another takes its place."""
        await self.world.clock.tick(31)
        self.work.held.clear()
        while await self.work.store.recovery.recover():
            pass
        self.lives += 1
        self.work.session = await self.world.session(f"life-{self.lives}", ttl=30)

    async def hear(self) -> None:
        await self.work.store.aggregation.aggregate(self.random.choice((1, 3, 500)))

    async def wait(self) -> None:
        await self.world.clock.tick(self.random.choice((0.5, 3)))
        await self.work.store.sessions.renew(self.work.session, 30, 0)

    async def apply(self) -> None:
        await self.work.store.batches.commands.apply_batch(self.work.id)

    async def cancel(self) -> None:
        await self.work.store.batches.commands.cancel_batch(self.work.id, "enough")

    async def retry(self) -> None:
        await self.work.store.batches.commands.retry_batch(self.work.id, canceled=self.random.random() < 0.5)

    async def roll_back(self) -> None:
        chosen = None
        if self.random.random() < 0.5:
            chosen = self.random.sample([t.target_id for t in await self.work.targets()], 3)
        await self.work.store.batches.commands.roll_back_batch(self.work.id, targets=chosen)

    async def cancel_one(self) -> None:
        target = self.random.choice(await self.work.targets())
        if target.run_id is not None:
            await self.work.store.runs.cancel(target.run_id, "not this one")

    async def wake(self) -> None:
        await self.work.store.batches.commands.wake_batch(self.work.id)

    async def step(self) -> None:
        often: list[Callable[[], Awaitable[None]]] = [self.claim, self.finish, self.end, self.hear] * 4
        deed = self.random.choice(
            [
                *often,
                self.die,
                self.wait,
                self.apply,
                self.cancel,
                self.retry,
                self.retry,
                self.roll_back,
                self.cancel_one,
                self.wake,
            ]
        )
        try:
            await deed()
        except Conflict:
            pass  # an answer like any other
        await self.work.check()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_counts_are_those_of_the_targets(world: World, seed: int) -> None:
    choice = random.Random(seed)
    session = await world.session("life-0", ttl=30)
    work = await Batchwork.plan(
        world,
        choice.choice((5, 12)),
        session=session,
        concurrency=choice.choice((0, 1, 3, 5)),
        canary=choice.choice((0, 0, 2)),
        max_errors=choice.choice((None, 0, 2, 0.3)),
        on_error=choice.choice(("stop", "rollback")),
        retry=POLICY,
    )
    chance = Chance(seed, world, work)
    if seed % 4:
        await chance.apply()
    for _ in range(STEPS):
        await chance.step()
    await _to_the_end(chance)
    touched = {t.target_id for t in await work.targets() if t.effect in TOUCHED and not _undone(t.status)}
    if touched:
        await work.store.batches.commands.roll_back_batch(work.id)
        await _to_the_end(chance)
    for target in await work.targets():
        assert (target.effect in TOUCHED) == (target.status is BatchStatus.ROLLBACK_SUCCESS), target
    assert await work.recounted()


def _undone(status: BatchStatus) -> bool:
    return status is BatchStatus.ROLLBACK_SUCCESS


async def _to_the_end(chance: Chance) -> None:
    work = chance.work
    await chance.die()
    await work.react()
    await work.work_through()
    for _ in range(20):
        if (await work.look()).phase in (BatchPhase.DONE, BatchPhase.PLANNED):
            return
        await chance.wait()
        await work.react()
        await work.work_through()
    raise AssertionError(f"never done: {await work.look()}")
