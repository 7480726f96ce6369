"""Short ways to say what happens to a batch, for the tests of the store; the invariants hold after each.

A target is named by its id: `t0`, `t1` …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fusee.batches.model.batch import Batch, BatchTask
from fusee.batches.model.spec import BatchSpec, TargetSpec
from fusee.batches.store.queries import TargetFilter
from fusee.engine.model.outcome import Effect, End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.rows import decode
from fusee.stores import Store
from tests.store.harness import World, broken_invariants

__all__ = ["ONCE", "Batchwork", "batch_spec", "targets"]

ONCE = RetryPolicy(max_attempts=1)


def batch_spec(**fields: Any) -> BatchSpec:
    """A batch that turns dials, eight at a time unless it says otherwise."""
    given = {"batch_name": "b", "batch_type": "turn", "target_type": "dial", "concurrency": 8, "retry": ONCE}
    return BatchSpec(**{**given, **fields})


def targets(count: int, first: int = 0) -> list[TargetSpec]:
    return [TargetSpec(target_id=f"t{nr}", after={"to": nr}) for nr in range(first, first + count)]


class Batchwork:
    """One batch in a world; a dispatcher that moves it on, and a worker that works, when they are told to."""

    def __init__(self, world: World, session: int, store: Store, batch_id: int) -> None:
        self.world = world
        self.store = store
        self.session = session
        self.id = batch_id
        self.held: dict[str, Claimed] = {}
        """Target → the run that the worker has in hand."""

    @classmethod
    async def plan(
        cls,
        world: World,
        count: int,
        *,
        store: Store | None = None,
        session: int | None = None,
        **fields: Any,
    ) -> Batchwork:
        """A batch of so many targets that has not started."""
        store = store or world.store
        if session is None:
            session = await world.session(ttl=10 * 366 * 86400.0, store=store)
        batch_id, new = await store.batches.intake.open_batch(batch_spec(**fields))
        assert new
        for first in range(0, count, 1000):
            await store.batches.intake.add_targets(batch_id, first, targets(min(1000, count - first), first))
        await store.batches.intake.seal_batch(batch_id, count)
        return cls(world, session, store, batch_id)

    @classmethod
    async def start(cls, world: World, count: int, **fields: Any) -> Batchwork:
        work = await cls.plan(world, count, **fields)
        await work.store.batches.commands.apply_batch(work.id)
        await work.check()
        return work

    async def check(self) -> None:
        """The invariants, and that the store counts as it says it does."""
        wrong = await self.store.database.read(broken_invariants)
        assert not wrong, "; ".join(wrong)

    # -- what people ask

    async def cancel(self, reason: str = "no more of this") -> Batch:
        batch = await self.store.batches.commands.cancel_batch(self.id, reason)
        await self.check()
        await self.react()
        return batch

    async def retry(self, *, canceled: bool = False) -> int:
        _, count = await self.store.batches.commands.retry_batch(self.id, canceled=canceled)
        await self.check()
        return count

    async def roll_back(self, *chosen: str, force: bool = False) -> Batch:
        batch = await self.store.batches.commands.roll_back_batch(
            self.id, targets=chosen or None, force=force
        )
        await self.check()
        await self.react()
        return batch

    # -- what the platform does

    async def react(self, *, store: Store | None = None) -> None:
        """All that follows from what has ended."""
        while await (store or self.store).aggregation.aggregate():
            await self.check()

    async def claim(self, want: int = 1000) -> list[str]:
        """The worker takes what may start; answers which targets that were, in their order."""
        await self.store.ready_queue.promote()
        claimed = await self.world.claim(self.session, want, store=self.store)
        names = [decode(run.payload)["target_id"] for run in claimed]
        self.held |= dict(zip(names, claimed, strict=True))
        await self.check()
        return names

    async def finish(self, *names: str) -> None:
        """They succeed in the plain way: applied, or undone."""
        assert not await self.world.finish(self.session, *self.take(names), store=self.store)
        await self.check()
        await self.react()

    async def end(
        self, *names: str, end: End = End.FAILED, effect: Effect = Effect.UNKNOWN, policy: RetryPolicy = ONCE
    ) -> None:
        """They end in another way."""
        await self.world.settle(
            self.session,
            *self.take(names),
            end=end,
            effect=effect,
            policy=policy,
            error="broken",
            store=self.store,
        )
        await self.check()
        await self.react()

    async def already(self, *names: str) -> None:
        """They were as wanted before: done, and nothing was touched."""
        await self.end(*names, end=End.SUCCEEDED, effect=Effect.NONE)

    async def work_through(self, *, failing: Iterable[str] = (), most: int = 10_000) -> list[str]:
        """Claim and end until nothing is left; answers the targets in the order in which they began."""
        begun: list[str] = []
        bad = set(failing)
        while names := await self.claim():
            begun += names
            assert len(begun) <= most, "does it ever end?"
            if fail := [name for name in names if name in bad]:
                await self.end(*fail)
            if good := [name for name in names if name not in bad]:
                await self.finish(*good)
        return begun

    def take(self, names: Iterable[str]) -> list[Claimed]:
        return [self.held.pop(name) for name in names]

    # -- what there is to see

    async def look(self) -> Batch:
        return await self.store.batches.queries.batch(self.id)

    async def counts(self) -> dict[str, int]:
        """Status → how many, as they are kept, without those that are none: a target that has a run counts as
        running until the end of that run is counted."""
        kept, _ = await self.store.batches.queries.recount_batch(self.id)
        return {str(status): count for status, count in kept.items() if count}

    async def shown(self) -> dict[str, int]:
        """Status → how many, as people see them."""
        batch = await self.look()
        return {str(status): count for status, count in batch.counts.items() if count}

    async def targets(self) -> Sequence[BatchTask]:
        return await self.store.batches.queries.batch_tasks(self.id, TargetFilter(limit=100_000))

    async def statuses(self) -> dict[str, str]:
        """Target → where it stands."""
        return {target.target_id: str(target.status) for target in await self.targets()}

    async def effects(self) -> dict[str, str | None]:
        return {t.target_id: t.effect and str(t.effect) for t in await self.targets()}

    async def recounted(self) -> bool:
        kept, counted = await self.store.batches.queries.recount_batch(self.id)
        return kept == counted
