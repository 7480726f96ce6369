"""Tasks in the store, on each engine: made, changed, steered, and what all of that does to their times."""

from __future__ import annotations

import asyncio

import pytest

from fusee.engine.store.tables import gates
from fusee.errors import Conflict, NotFound
from fusee.tasks.model.policy import Overlap
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.tables import backfills, tasks, waits
from fusee.tasks.store.tasks import TaskFilter
from tests.store.clockwork import Clockwork, at, minutes, spec

pytestmark = pytest.mark.asyncio(loop_scope="session")


# --- made, looked at -----------------------------------------------------------------------------------


async def test_a_new_task_fires_by_its_schedule_from_now_on(works: Clockwork) -> None:
    await works.go_to(0.5)
    cron, every = await works.make("cron"), await works.make("every", every=90)
    once, manual = await works.make("once", at=at(7)), await works.make("manual", manual=True)
    assert [task.next_fire_at for task in (cron, every, once, manual)] == [at(1), at(2), at(7), None]
    assert (cron.status, cron.version, cron.anchor) == (TaskStatus.ENABLED, 1, at(0.5))


async def test_a_task_is_found_by_name_and_by_number_in_its_namespace_only(works: Clockwork) -> None:
    task = await works.make("t", labels={"team": "red"}, shards=3)
    assert (
        await works.store.tasks.definitions.task("t")
        == await works.store.tasks.definitions.task(task.id)
        == task
    )
    other = works.store.for_namespace("other")
    for ref in ("t", task.id):
        with pytest.raises(NotFound):
            await other.tasks.definitions.task(ref)
        with pytest.raises(NotFound):
            await other.tasks.steering.steer_task(ref, "pause")
        with pytest.raises(NotFound):
            await other.tasks.triggers.trigger(ref)
    assert (await other.tasks.definitions.create_task(spec("t"))).namespace == "other"


async def test_two_tasks_of_one_name_are_refused(works: Clockwork) -> None:
    await works.make("t")
    with pytest.raises(Conflict, match="there is a task 't' already: change that one"):
        await works.make("t")


async def test_of_two_that_make_the_same_task_at_once_one_does(works: Clockwork) -> None:
    other = await works.world.another()
    made = await asyncio.gather(
        works.make("t"), other.tasks.definitions.create_task(spec("t")), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in made) == ["Conflict", "Task"]


async def test_lists_go_by_name_in_pages(works: Clockwork) -> None:
    for name in ("b", "a.2", "a.1", "c", "a_1"):
        await works.make(name)
    await works.store.tasks.steering.steer_task("c", "pause")

    async def names(**wanted: object) -> list[str]:
        return [task.name for task in await works.store.tasks.definitions.tasks(TaskFilter(**wanted))]  # type: ignore[arg-type]

    assert sorted(await names()) == ["a.1", "a.2", "a_1", "b", "c"]
    assert await names(prefix="a.") == ["a.1", "a.2"]
    assert await names(prefix="a_") == ["a_1"], "an underscore is no wildcard"
    assert await names(status=[TaskStatus.PAUSED]) == ["c"]
    assert await names(limit=2, after=(await names())[1]) == (await names())[2:4]


# --- changed -------------------------------------------------------------------------------------------


async def test_an_edit_of_an_older_version_is_refused(works: Clockwork) -> None:
    task = await works.make("t")
    await works.store.tasks.steering.update_task("t", spec("t", shards=2), task.version)
    with pytest.raises(Conflict, match="is at version 2, not 1: look at it again"):
        await works.store.tasks.steering.update_task("t", spec("t", shards=3), task.version)
    with pytest.raises(Conflict, match="is at version 2, not 1"):
        await works.store.tasks.steering.steer_task("t", "pause", version=1)
    assert (await works.task()).spec.shards == 2


async def test_of_two_edits_of_one_version_at_once_one_wins(works: Clockwork) -> None:
    task, other = await works.make("t"), await works.world.another()
    edits = await asyncio.gather(
        works.store.tasks.steering.update_task("t", spec("t", shards=2), task.version),
        other.tasks.steering.update_task("t", spec("t", shards=3), task.version),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in edits) == ["Conflict", "Task"]


async def test_a_task_keeps_its_name(works: Clockwork) -> None:
    await works.make("t")
    with pytest.raises(Conflict, match="keeps its name"):
        await works.store.tasks.steering.update_task("t", spec("u"), None)


async def test_an_edit_of_the_policy_leaves_the_schedule_where_it_was(works: Clockwork) -> None:
    await works.make("t", every=60)
    await works.go_to(0.5)
    task = await works.change("t", every=60, overlap=Overlap.SKIP)
    assert (task.next_fire_at, task.version) == (at(1), 2)


async def test_a_new_schedule_counts_from_now_on(works: Clockwork) -> None:
    await works.make("t", every=60)
    await works.go_to(0.5)
    assert (await works.change("t", every=120)).next_fire_at == at(2.5)
    assert (await works.change("t", cron="*/5 * * * *")).next_fire_at == at(5)
    assert (await works.change("t", manual=True)).next_fire_at is None


async def test_what_was_due_before_an_edit_of_the_schedule_is_on_record_as_missed(works: Clockwork) -> None:
    await works.make("t")
    await works.go_to(2.5)  # no dispatcher came
    await works.change("t", cron="*/5 * * * *")
    assert await works.record() == ["1 miss missed", "2 miss missed"]
    assert await works.rule("t", 2) == "the task was given another schedule before a dispatcher decided it"
    await works.fire_at(5)
    assert await works.record() == ["1 miss missed", "2 miss missed", "5 run pending"]


# --- steered -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "go", "status"),
    [
        ("pause", "resume", TaskStatus.PAUSED),
        ("disable", "enable", TaskStatus.DISABLED),
        ("pause", "enable", TaskStatus.PAUSED),
    ],
)
async def test_stopped_it_does_not_fire_and_started_again_it_fires_from_then_on(
    works: Clockwork, stop: str, go: str, status: TaskStatus
) -> None:
    await works.make("t")
    await works.fire_at(1)
    stopped = await works.store.tasks.steering.steer_task("t", stop, "too noisy")
    assert (stopped.status, stopped.reason, stopped.next_fire_at) == (status, "too noisy", None)
    assert not await works.fire_at(3)
    started = await works.store.tasks.steering.steer_task("t", go)
    assert (started.status, started.reason, started.next_fire_at) == (TaskStatus.ENABLED, None, at(4))
    await works.fire_at(4)
    assert await works.record() == ["1 run pending", "4 queue blocked (queue)"]


async def test_an_interval_beats_anew_from_when_it_was_resumed(works: Clockwork) -> None:
    await works.make("t", every=60)
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.go_to(10.25)
    assert (await works.store.tasks.steering.steer_task("t", "resume")).next_fire_at == at(11.25)


async def test_asked_twice_nothing_changes(works: Clockwork) -> None:
    await works.make("t")
    first = await works.store.tasks.steering.steer_task("t", "pause", "for a reason")
    assert await works.store.tasks.steering.steer_task("t", "pause", "for another") == first
    resumed = await works.store.tasks.steering.steer_task("t", "resume")
    assert await works.store.tasks.steering.steer_task("t", "resume") == resumed


async def test_a_disabled_task_cannot_be_paused(works: Clockwork) -> None:
    await works.make("t")
    await works.store.tasks.steering.steer_task("t", "disable")
    with pytest.raises(Conflict, match="t is disabled: it cannot pause"):
        await works.store.tasks.steering.steer_task("t", "pause")


@pytest.mark.parametrize("verb", ["pause", "disable"])
async def test_what_was_due_before_it_was_stopped_is_on_record_as_missed(works: Clockwork, verb: str) -> None:
    await works.make("t")
    await works.go_to(2.5)
    await works.store.tasks.steering.steer_task("t", verb)
    assert await works.record() == ["1 miss missed", "2 miss missed"]
    assert await works.rule("t", 1) == f"the task was {verb}d before a dispatcher decided it"


async def test_a_stopped_tasks_runs_go_on(works: Clockwork) -> None:
    await works.make("t", max_concurrency=2)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.fire_at(3)
    await works.store.tasks.steering.steer_task("t", "disable")
    await works.succeed("t", 1)
    assert await works.claim() == ["t 2"], "what has left the queue runs, what has not is left out"
    assert await works.statuses("t", 2, 3) == ["running", "skipped"]


async def test_a_deleted_task_is_gone_its_name_is_free_and_its_runs_are_kept(works: Clockwork) -> None:
    old = await works.make("t")
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)
    await works.store.tasks.steering.steer_task("t", "delete")
    with pytest.raises(NotFound):
        await works.task()
    with pytest.raises(NotFound):
        await works.store.tasks.steering.steer_task(old.id, "resume")
    assert not await works.fire_at(5)
    await works.world.finish(works.session, works.held.pop(run.id))
    await works.react()
    assert (await works.store.runs.run(run.id)).status == "succeeded"
    new = await works.make("t")
    assert new.id != old.id
    await works.fire_at(6)
    assert await works.record() == ["6 run pending"], "the new one has a record of its own"


async def test_a_task_that_others_wait_for_is_not_deleted(works: Clockwork) -> None:
    await works.make("up")
    await works.make("down", after=("up",))
    with pytest.raises(Conflict, match="up is waited for by down: take it out of their `after` first"):
        await works.store.tasks.steering.steer_task("up", "delete")
    await works.store.tasks.steering.steer_task("down", "delete")
    await works.store.tasks.steering.steer_task("up", "delete")


async def test_a_task_that_is_made_disabled_does_not_fire(works: Clockwork) -> None:
    await works.store.tasks.definitions.create_task(spec("t"), status=TaskStatus.DISABLED)
    assert not await works.fire_at(5)
    await works.store.tasks.steering.steer_task("t", "enable")
    assert minutes([(await works.task()).next_fire_at or 0]) == [6]


# --- forgotten -----------------------------------------------------------------------------------------


async def _prune(works: Clockwork) -> None:
    """Everything that ended more than an hour ago."""
    cursor = 0
    while pruned := await works.store.retention.prune(3600.0, cursor, 3):
        cursor = pruned.cursor
        if not cursor:
            return


async def test_fires_are_forgotten_with_their_runs(works: Clockwork) -> None:
    await works.make("up", max_concurrency=0)
    await works.make("t", cron="* * * * *", after=("up",), max_concurrency=0)
    for minute in (1, 2):
        await works.fire_at(minute)
    await works.claim()
    await works.succeed("up", 1)
    await works.claim()
    await works.succeed("t", 1)
    await works.cancel("t", 2)
    await works.go_to(90)
    await _prune(works)
    assert await works.record("t") == []
    assert await works.record("up") == ["2 run running"]
    assert await works.count(gates) == await works.count(waits) == 0


async def test_a_fire_that_goes_on_keeps_its_shards(works: Clockwork) -> None:
    await works.make("t", shards=2)
    await works.fire_at(1)
    await works.claim()
    await works.succeed("t", 1, shard=0)
    await works.go_to(90)
    await _prune(works)
    assert await works.record() == ["1 run succeeded running"]
    await works.fail("t", 1, shard=1)
    assert (await works.task()).last_status == "failed"


async def test_an_end_that_nobody_has_heard_of_is_not_forgotten(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.world.finish(works.session, works.held.pop((await works.run_of("t", 1)).id))
    await works.go_to(90)
    await _prune(works)
    await works.react()
    assert (await works.task()).last_status == "succeeded"
    await _prune(works)
    assert await works.record() == []


async def test_a_backfill_that_takes_longer_than_the_record_is_kept_goes_on(works: Clockwork) -> None:
    await works.make("t")
    await works.store.tasks.steering.steer_task("t", "pause")
    await works.go_to(3)
    await works.store.tasks.backfills.start("t", at(1), at(3))
    for minute in (1, 2, 3):
        await works.go_to(minute * 90)
        await _prune(works)
        assert await works.claim() == [f"t {minute}"]
        await works.succeed("t", minute)
    await works.go_to(1000)
    await _prune(works)
    assert await works.count(backfills) == 0


async def test_a_deleted_task_is_forgotten_when_its_runs_have_ended(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    run = await works.run_of("t", 1)
    await works.store.tasks.steering.steer_task("t", "delete")
    await works.go_to(90)
    await _prune(works)
    assert await works.count(tasks) == 1
    await works.world.finish(works.session, works.held.pop(run.id))
    await works.react()
    await _prune(works)
    assert await works.count(tasks) == 0
