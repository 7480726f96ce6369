"""One request to create a batch, carried out by two dispatchers: a slow one, whose message was repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.batches.model.batch import Batch, BatchPhase
from fusee.batches.operation import OperationRegistry
from fusee.batches.service.batches import BatchOperations
from fusee.batches.store.queries import BatchFilter
from fusee.broker.store_rpc import StoreRpc
from fusee.engine.store.parents import ParentRun
from fusee.errors import Conflict
from fusee.stores import Store
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIELDS = {"batch_name": "b", "batch_type": "turn", "target_type": "dial"}


class Dispatcher:
    """One that carries out the request, and stops before each portion until it may go on."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.at_portion, self.may_go_on = asyncio.Event(), asyncio.Event()
        inner = store.batches.intake.add_targets

        async def add_targets(*args: Any) -> None:
            self.at_portion.set()
            await self.may_go_on.wait()
            await inner(*args)

        monkeypatch.setattr(store.batches.intake, "add_targets", add_targets)

    def ask(self, key: str | None, parent: ParentRun | None = None) -> asyncio.Task[tuple[Batch, bool]]:
        async def known() -> frozenset[str]:
            return frozenset({"batch.dial.turn"})

        unused: Any = None
        batches = BatchOperations(self.store.batches, OperationRegistry(), known)
        rpc = StoreRpc(self.store, unused, batches, unused, unused, unused)
        task = asyncio.create_task(rpc.create_batch(dict(FIELDS), ["t0", "t1"], True, key, parent))
        task.add_done_callback(lambda _: self.at_portion.set())  # a request that fails is not waited for
        return task


async def _two(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Dispatcher, Dispatcher]:
    return Dispatcher(world.store, monkeypatch), Dispatcher(await world.another(), monkeypatch)


def _refused(first: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the first has found that its upload was taken over, and looks at the other."""
    looked = asyncio.Event()
    inner = first.store.batches.intake.upload_of

    async def upload_of(*args: Any) -> Any:
        found = await inner(*args)
        looked.set()
        return found

    monkeypatch.setattr(first.store.batches.intake, "upload_of", upload_of)
    return looked


@pytest.mark.parametrize("by", ["key", "parent"])
async def test_both_return_the_batch_that_one_of_them_created(
    world: World, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    first, second = await _two(world, monkeypatch)
    key, parent = "k" if by == "key" else None, None
    if by == "parent":
        run = await world.enqueue_and_claim(await world.session(ttl=1e6))
        parent = ParentRun(run.id, run.attempt)
    looked = _refused(first, monkeypatch)
    one = first.ask(key, parent)
    await first.at_portion.wait()
    other = second.ask(key, parent)
    await second.at_portion.wait()  # it has taken over
    first.may_go_on.set()
    waits = asyncio.create_task(looked.wait())
    await asyncio.wait([one, waits], return_when=asyncio.FIRST_COMPLETED)
    assert not one.done(), f"it waits for the other: {one.exception() if one.done() else None}"
    second.may_go_on.set()
    (made, new), (same, again) = await other, await one
    assert (new, again) == (True, False)
    assert made.id == same.id
    assert [batch.id for batch in await world.store.batches.queries.batches(BatchFilter())] == [made.id]
    assert (made.phase, made.total) == (BatchPhase.APPLYING, 2)


async def test_when_the_other_gives_up_the_first_creates_the_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await _two(world, monkeypatch)
    looked = _refused(first, monkeypatch)
    one = first.ask("k")
    await first.at_portion.wait()
    other = second.ask("k")
    await second.at_portion.wait()
    first.may_go_on.set()
    await looked.wait()
    other.cancel()
    await asyncio.wait([other])
    batch, new = await one
    assert new and (batch.phase, batch.total) == (BatchPhase.APPLYING, 2)


async def test_one_that_sends_nothing_any_more_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.batches.service.batches.UPLOAD_PATIENCE", 0.2)
    first, second = await _two(world, monkeypatch)
    one = first.ask("k")
    await first.at_portion.wait()
    other = second.ask("k")
    await second.at_portion.wait()  # and there it stays, as one whose process was killed
    first.may_go_on.set()
    batch, new = await one
    assert new and (batch.phase, batch.total) == (BatchPhase.APPLYING, 2)
    second.may_go_on.set()
    assert (await other)[0].id == batch.id


async def test_without_a_key_nobody_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Dispatcher(world.store, monkeypatch)
    one = first.ask(None)
    await first.at_portion.wait()
    await world.sql("UPDATE fusee_batches SET phase = 'discarded'")  # as the sweep does after an hour
    first.may_go_on.set()
    with pytest.raises(Conflict, match="takes no more targets"):
        await one
