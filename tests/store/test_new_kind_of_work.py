"""A kind of work that the engine has never heard of: one owner, and the engine does not change.

A countdown runs its steps one after the other: the success of a step inserts the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Row

from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.owners import Judged, Owner, Reaction
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.rows import NewRun
from fusee.errors import Conflict
from fusee.stores import Store
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


class CountdownOwner(Owner):
    kind = "countdown"

    def __init__(self, engine: EngineStore) -> None:
        self.engine = engine
        self.steps_left: dict[int, int] = {}
        self.failed = 0
        self.asked_about_retries = 0

    @property
    def end_topic(self) -> str:
        return "countdown_ko"

    def reactions(self) -> Mapping[str, Reaction]:
        return {"countdown": self._step_done, "countdown_ko": self._step_failed}

    def start(self, connection: Connection, number: int, steps: int) -> None:
        self.steps_left[number] = steps
        self._insert_step(connection, number, self.engine.context.now(connection))

    def _insert_step(self, connection: Connection, number: int, now: int) -> None:
        lane = self.engine.lanes.lane_id(connection, Lane("default", "default", "python", "tick"))
        self.engine.run_writer.insert_runs(
            connection, [NewRun(lane_id=lane, kind=self.kind, owner_id=number)], now, "default"
        )

    def _step_done(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        for row in rows:
            self.steps_left[row.run_id] -= row.many
            if self.steps_left[row.run_id]:
                self._insert_step(connection, row.run_id, now)
        return ()

    def _step_failed(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        self.failed += len(rows)
        return ()

    def before_retry(self, connection: Connection, retried: Sequence[Judged]) -> Sequence[Judged]:
        self.asked_about_retries += len(retried)
        return retried

    def needed(self, connection: Connection, run_ids: Sequence[int]) -> Collection[int]:
        return run_ids if any(self.steps_left.values()) else ()


def registered(store: Store) -> CountdownOwner:
    """Registered the way tasks, workflows, batches and bulk jobs are."""
    owner = CountdownOwner(store)
    store.owners.register(owner)
    return owner


async def test_each_success_is_heard_and_starts_the_next_step(world: World) -> None:
    owner = registered(world.store)
    session = await world.session()
    await world.store.database.write(lambda connection: owner.start(connection, 7, 3))
    for left in (2, 1, 0):
        await world.finish(session, await world.claim_one(session))
        assert (await world.store.aggregation.aggregate()).counts == {"countdown": 1}
        assert owner.steps_left == {7: left}
    assert not await world.store.aggregation.aggregate()
    assert await world.tally() == {"succeeded": 3}


async def test_another_end_comes_under_its_own_topic_and_a_retry_asks_first(world: World) -> None:
    owner = registered(world.store)
    session = await world.session()
    await world.store.database.write(lambda connection: owner.start(connection, 7, 3))
    again = RetryPolicy(max_attempts=2, base=0.001)
    await world.settle(session, await world.claim_one(session), end=End.FAILED, policy=again)
    assert owner.asked_about_retries == 1
    await world.clock.tick(60)
    await world.store.ready_queue.promote()
    await world.settle(session, await world.claim_one(session), end=End.ABANDONED)
    assert (await world.store.aggregation.aggregate()).counts == {"countdown_ko": 1}
    assert (owner.steps_left, owner.failed) == ({7: 3}, 1)


async def test_what_it_still_needs_is_not_deleted(world: World) -> None:
    owner = registered(world.store)
    session = await world.session()
    await world.store.database.write(lambda connection: owner.start(connection, 7, 2))
    first = await world.claim_one(session)
    await world.finish(session, first)
    await world.store.aggregation.aggregate()
    await world.clock.tick(100)
    await world.store.retention.prune(50, 0, 100)
    assert (await world.run(first.id)).status is RunStatus.SUCCEEDED
    await world.finish(session, await world.claim_one(session))
    await world.store.aggregation.aggregate()
    await world.clock.tick(100)
    assert (await world.store.retention.prune(50, 0, 100)).count == 2


async def test_a_single_run_of_it_is_not_retried_unless_it_says_how(world: World) -> None:
    owner = registered(world.store)
    session = await world.session()
    await world.store.database.write(lambda connection: owner.start(connection, 7, 1))
    step = await world.claim_one(session)
    await world.finish(session, step)
    found = world.store.owners.of("countdown")
    assert found is owner
    with pytest.raises(Conflict, match="belongs to a countdown"):
        await found.retry(await world.run(step.id), None)
