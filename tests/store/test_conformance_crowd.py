"""Three dispatchers, two workers, people who cancel and trigger, all at once: nobody fails, nothing is wrong.

What is wrong is looked for by the `world` when the test is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.outcome import End
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.tables import runs
from fusee.errors import Conflict
from fusee.stores import Store
from fusee.tasks.model.policy import Concurrency, Overlap
from tests.store.clockwork import ONCE, Clockwork

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUNDS = 6


async def _make(works: Clockwork, dice: random.Random) -> None:
    for n in range(6):
        policies = {"overlap": dice.choice(list(Overlap)), "concurrency": dice.choice(list(Concurrency))}
        await works.make(f"up{n}", shards=1 + n % 2, **policies)
    for n in range(6):
        after = tuple(f"up{k}" for k in dice.sample(range(6), 3))
        schedule = {"cron": "* * * * *"} if n % 2 else {}
        rule = dice.choice(list(TriggerRule))
        await works.make(
            f"down{n}", after=after, trigger_rule=rule, overlap=dice.choice(list(Overlap)), **schedule
        )


async def test_a_crowd_at_work(works: Clockwork) -> None:
    dice, world = random.Random(5), works.world
    stores = [works.store, await world.another(), await world.another()]
    sessions = [works.session, await world.session("worker-2", ttl=1e7)]
    await _make(works, dice)

    async def work(session: int, store: Store) -> None:
        lanes = await world.lane_ids(handler="work", store=store)
        claimed = await world.claim(session, 8, lanes=lanes, store=store)
        good = [run for run in claimed if dice.random() < 0.6]
        await world.finish(session, *good, store=store)
        bad = [run for run in claimed if run not in good]
        await world.settle(session, *bad, end=End.FAILED, policy=ONCE, store=store)

    async def cancel(store: Store) -> None:
        for run in await store.runs.runs(RunFilter(limit=4)):
            try:
                await store.runs.cancel(run.id, "changed my mind")
            except Conflict:
                pass  # it had ended

    for minute in range(1, ROUNDS + 1):
        await works.go_to(minute)
        crowd: list[Awaitable[object]] = [store.tasks.firing.fire_due() for store in stores]
        crowd += [store.aggregation.aggregate(20) for store in stores * 2]
        crowd += [work(session, store) for session, store in zip(sessions, stores, strict=False)]
        crowd += [cancel(stores[2]), stores[1].tasks.triggers.trigger(f"up{minute % 6}")]
        dice.shuffle(crowd)
        await asyncio.gather(*crowd)
    await works.react()
    assert len(await world.rows(runs)) > 6 * ROUNDS
