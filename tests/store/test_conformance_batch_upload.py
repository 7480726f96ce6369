"""A batch comes in bit by bit, and exists when the last target has come, or never."""

from __future__ import annotations

import pytest

from fusee.batches.model.batch import BatchPhase, BatchStatus
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.batches.store.tables import batch_tasks, batches
from fusee.errors import Conflict, Invalid, NotFound
from fusee.stores import Store
from tests.store.batchwork import Batchwork, batch_spec, targets
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = 3600.0


async def _upload(store: Store, count: int = 3, *, key: str | None = None, name: str = "b") -> int:
    batch_id, new = await store.batches.intake.open_batch(batch_spec(batch_name=name), key)
    assert new
    await store.batches.intake.add_targets(batch_id, 0, targets(count))
    return batch_id


async def test_nobody_sees_a_batch_before_it_is_sealed(world: World, store: Store) -> None:
    batch_id = await _upload(store)
    for ask in (
        store.batches.queries.batch(batch_id),
        store.batches.queries.batch_tasks(batch_id, TargetFilter()),
        store.batches.queries.recount_batch(batch_id),
        store.batches.commands.apply_batch(batch_id),
        store.batches.commands.cancel_batch(batch_id, "?"),
        store.batches.commands.retry_batch(batch_id),
        store.batches.commands.roll_back_batch(batch_id),
    ):
        with pytest.raises(NotFound, match=f"no batch {batch_id} in namespace 'default'"):
            await ask
    assert await store.batches.queries.batches(BatchFilter()) == []
    await store.batches.intake.seal_batch(batch_id, 3)
    assert (await store.batches.queries.batch(batch_id)).phase is BatchPhase.PLANNED


async def test_a_sealed_batch_is_planned_and_nothing_of_it_runs(world: World, store: Store) -> None:
    work = await Batchwork.plan(world, 5, creator="ada", env="live", extra_info={"ticket": 7})
    batch = await work.look()
    assert (batch.phase, batch.status, batch.total) == (BatchPhase.PLANNED, BatchStatus.PENDING, 5)
    assert await work.counts() == {"pending": 5}
    assert (batch.spec.creator, batch.spec.env, batch.spec.extra_info) == ("ada", "live", {"ticket": 7})
    assert (batch.started_at, batch.finished_at, batch.version) == (None, None, 1)
    assert await work.claim() == []
    assert [(t.position, t.target_id, t.after) for t in await work.targets()][:2] == [
        (0, "t0", {"to": 0}),
        (1, "t1", {"to": 1}),
    ]


async def test_targets_in_any_number_of_portions_keep_their_order(world: World, store: Store) -> None:
    batch_id, _ = await store.batches.intake.open_batch(batch_spec())
    for first, count in ((0, 1), (1, 700), (701, 1300)):
        await store.batches.intake.add_targets(batch_id, first, targets(count, first))
    await store.batches.intake.seal_batch(batch_id, 2001)
    listed = await store.batches.queries.batch_tasks(batch_id, TargetFilter(limit=5000))
    assert [target.target_id for target in listed] == [f"t{nr}" for nr in range(2001)]


async def test_an_upload_that_fails_leaves_nothing(world: World, store: Store) -> None:
    batch_id = await _upload(store, 700)
    await store.batches.intake.discard_batch(batch_id)
    assert await world.rows(batches) == []
    assert await world.rows(batch_tasks) == []
    with pytest.raises(Conflict, match=f"batch {batch_id} takes no more targets"):
        await store.batches.intake.add_targets(batch_id, 700, targets(1, 700))
    with pytest.raises(Conflict, match="it is complete, or another request"):
        await store.batches.intake.seal_batch(batch_id, 700)


async def test_a_large_upload_that_fails_is_deleted_bit_by_bit(world: World, store: Store) -> None:
    batch_id, _ = await store.batches.intake.open_batch(batch_spec())
    for first in range(0, 12_000, 4000):
        await store.batches.intake.add_targets(batch_id, first, targets(4000, first))
    await store.batches.intake.discard_batch(batch_id)
    with pytest.raises(NotFound):
        await store.batches.queries.batch(batch_id)
    left = [len(await world.rows(batch_tasks))]
    while await store.batches.retention.sweep_batches():
        left.append(len(await world.rows(batch_tasks)))
    assert left == [7000, 2000, 0]
    assert await world.rows(batches) == []


async def test_a_batch_without_targets_is_refused(world: World, store: Store) -> None:
    batch_id, _ = await store.batches.intake.open_batch(batch_spec())
    with pytest.raises(Invalid, match="a batch has at least one target"):
        await store.batches.intake.seal_batch(batch_id, 0)


async def test_a_batch_some_of_whose_targets_are_missing_is_refused(world: World, store: Store) -> None:
    batch_id = await _upload(store, 3)
    with pytest.raises(Invalid, match="targets were lost: upload again"):
        await store.batches.intake.seal_batch(batch_id, 4)


async def test_a_sealed_batch_takes_no_more(world: World, store: Store) -> None:
    work = await Batchwork.plan(world, 2)
    with pytest.raises(Conflict, match="takes no more targets"):
        await store.batches.intake.add_targets(work.id, 2, targets(1, 2))
    with pytest.raises(Conflict, match="it is complete, or another request"):
        await store.batches.intake.seal_batch(work.id, 2)
    await store.batches.intake.discard_batch(work.id)
    assert (await work.look()).total == 2


async def test_a_target_that_comes_twice_is_refused_with_both_places(world: World, store: Store) -> None:
    batch_id = await _upload(store, 10)
    twice = [*targets(3, 10), *targets(1, 4)]
    with pytest.raises(Invalid, match=r"^target 14: 't4' came before, as 5$") as refused:
        await store.batches.intake.add_targets(batch_id, 10, twice)
    assert refused.value.field == "target_id"
    assert len(await world.rows(batch_tasks)) == 10, "a portion is taken whole or not at all"
    with pytest.raises(Invalid, match=r"^target 13: 't11' came before, as 12$"):
        await store.batches.intake.add_targets(batch_id, 10, [*targets(2, 10), *targets(1, 11)])


async def test_the_same_target_may_be_in_many_batches(world: World, store: Store) -> None:
    first, second = await Batchwork.plan(world, 3), await Batchwork.plan(world, 3)
    assert await first.statuses() == await second.statuses()


# --- idempotency


async def test_a_key_used_again_answers_the_same_batch(world: World, store: Store) -> None:
    batch_id = await _upload(store, key="k1")
    await store.batches.intake.seal_batch(batch_id, 3)
    assert await store.batches.intake.open_batch(batch_spec(), "k1") == (batch_id, False)
    await store.batches.commands.apply_batch(batch_id)
    assert await store.batches.intake.open_batch(batch_spec(), "k1") == (batch_id, False)
    await store.batches.commands.cancel_batch(batch_id, "enough")
    await store.aggregation.aggregate()


async def test_a_key_that_was_used_for_something_else_is_refused(world: World, store: Store) -> None:
    batch_id = await _upload(store, key="k1")
    await store.batches.intake.seal_batch(batch_id, 3, "batch:1")
    assert await store.batches.intake.open_batch(batch_spec(batch_name="another"), "k1") == (batch_id, False)
    await store.batches.intake.check_batch_request(batch_id, "k1", "batch:1")
    with pytest.raises(Conflict, match=rf"another request \(batch {batch_id}\): use a new key"):
        await store.batches.intake.check_batch_request(batch_id, "k1", "batch:2")


async def test_a_key_is_a_tenants_own(world: World, store: Store) -> None:
    await store.batches.intake.seal_batch(await _upload(store, key="k1"), 3)
    other = store.for_namespace("other")
    _, new = await other.batches.intake.open_batch(batch_spec(batch_name="another"), "k1")
    assert new


async def test_a_repeat_takes_the_place_of_an_upload_that_is_not_complete(world: World, store: Store) -> None:
    """Its caller may have gone away, or may never have heard that it began: nobody has to wait for that."""
    batch_id = await _upload(store, key="k1")
    again, new = await store.batches.intake.open_batch(batch_spec(), "k1")
    assert new
    assert again != batch_id
    with pytest.raises(Conflict, match=r"takes no more targets: .* took its place"):
        await store.batches.intake.add_targets(batch_id, 3, targets(1, 3))
    with pytest.raises(Conflict, match="took its place"):
        await store.batches.intake.seal_batch(batch_id, 3)
    await store.batches.intake.add_targets(again, 0, targets(2))
    await store.batches.intake.seal_batch(again, 2)
    assert [row.batch_id for row in await world.rows(batch_tasks)] == [again, again]


async def test_a_key_is_free_again_when_its_upload_failed(world: World, store: Store) -> None:
    await store.batches.intake.discard_batch(await _upload(store, key="k1"))
    _, new = await store.batches.intake.open_batch(batch_spec(batch_name="another"), "k1")
    assert new


# --- uploads that nobody goes on with


async def test_an_upload_that_nobody_goes_on_with_is_swept_away(world: World, store: Store) -> None:
    old = await _upload(store, key="k1")
    await world.clock.tick(HOUR - 1)
    fresh = await _upload(store, name="fresh")
    assert await store.batches.retention.sweep_batches() == 0
    await world.clock.tick(2)
    assert await store.batches.retention.sweep_batches() > 0
    assert await store.batches.retention.sweep_batches() == 0
    assert [row.id for row in await world.rows(batches)] == [fresh]
    assert {row.batch_id for row in await world.rows(batch_tasks)} == {fresh}
    with pytest.raises(Conflict, match="cannot be completed"):
        await store.batches.intake.seal_batch(old, 3)


async def test_each_portion_keeps_an_upload_alive(world: World, store: Store) -> None:
    batch_id = await _upload(store, 1)
    for nr in range(1, 4):
        await world.clock.tick(HOUR - 1)
        await store.batches.intake.add_targets(batch_id, nr, targets(1, nr))
        assert await store.batches.retention.sweep_batches() == 0
    await store.batches.intake.seal_batch(batch_id, 4)
    await world.clock.tick(10 * HOUR)
    assert await store.batches.retention.sweep_batches() == 0
    assert (await store.batches.queries.batch(batch_id)).total == 4


async def test_batches_are_listed_newest_first_and_found_by_what_they_are(world: World, store: Store) -> None:
    for name, fields in {
        "one": {"creator": "ada", "env": "live"},
        "two": {"creator": "bob", "env": "live", "region": "sg", "az": "z1"},
        "three": {"creator": "ada", "batch_type": "stop"},
    }.items():
        await Batchwork.plan(world, 1, session=1, batch_name=name, **fields)

    async def names(**wanted: object) -> list[str]:
        return [batch.spec.batch_name for batch in await store.batches.queries.batches(BatchFilter(**wanted))]  # type: ignore[arg-type]

    assert await names() == ["three", "two", "one"]
    assert await names(creator="ada") == ["three", "one"]
    assert await names(env="live", region="sg") == ["two"]
    assert await names(batch_type="stop", target_type="dial") == ["three"]
    assert await names(az="z2") == []
    assert await names(limit=1) == ["three"]
    (newest,) = await store.batches.queries.batches(BatchFilter(limit=1))
    assert await names(before=newest.id) == ["two", "one"]
    await store.batches.commands.cancel_batch(newest.id, "no")
    assert await names(status=[BatchStatus.CANCEL]) == ["three"]
    assert await store.for_namespace("other").batches.queries.batches(BatchFilter()) == []
