"""A task can start a batch: its run waits for the end of it, and ends as it did."""

from __future__ import annotations

from typing import Any

import pytest

from fusee import Fusee
from fusee.batches.model.batch import BatchPhase
from fusee.batches.operation import Target
from fusee.batches.store.queries import BatchFilter
from fusee.config import load
from fusee.engine.store.runs import RunFilter
from fusee.testing import TestKit


class Dials:
    """Numbers by name; `stuck` ones cannot be turned."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}
        self.stuck: set[str] = set()

    async def finished(self, target: Target) -> bool:
        return self.at.get(target.id) == target.after["to"]

    async def apply(self, target: Target) -> Any:
        if target.id in self.stuck:
            raise RuntimeError(f"{target.id} is stuck")
        self.at[target.id] = target.after["to"]

    async def undo(self, target: Target) -> Any:
        self.at[target.id] = target.before["to"]


BATCH = {
    "batch_type": "turn",
    "target_type": "dial",
    "concurrency": 2,
    "targets": [{"target_id": name, "after": {"to": 7}} for name in "abc"],
}


@pytest.fixture
def dials() -> Dials:
    return Dials()


@pytest.fixture
def app(dials: Dials) -> Fusee:
    app = Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}}))
    app.operation("dial", "turn")(dials)
    return app


async def _only_batch(app: Fusee) -> Any:
    (batch,) = await app.batches.list(BatchFilter())
    return batch


async def test_a_task_that_fires_starts_a_batch_and_ends_with_it(app: Fusee, dials: Dials) -> None:
    async with TestKit(app) as kit:
        await app.tasks.create({"name": "nightly", "every": 60, "batch": BATCH})
        kit.clock.tick(seconds=60)
        await kit.run_until_idle()
        batch = await _only_batch(app)
        assert (batch.spec.batch_name, batch.status, batch.total) == ("nightly", "success", 3)
        assert dials.at == {"a": 7, "b": 7, "c": 7}
        (run,) = await app.runs.list(RunFilter(handler="fusee.batch"))
        whole = await kit.run(run.id)
        assert (whole.status, whole.task) == ("succeeded", "nightly")
        assert whole.result == {"batch_id": batch.id, "status": "success"}


async def test_each_fire_is_a_batch_of_its_own(app: Fusee, dials: Dials) -> None:
    async with TestKit(app) as kit:
        await app.tasks.create({"name": "nightly", "every": 60, "batch": BATCH})
        for _ in range(3):
            kit.clock.tick(seconds=60)
            await kit.run_until_idle()
        assert [batch.status for batch in await app.batches.list(BatchFilter())] == ["success"] * 3


async def test_a_batch_that_fails_fails_the_run(app: Fusee, dials: Dials) -> None:
    dials.stuck = {"b"}
    async with TestKit(app) as kit:
        await app.tasks.create({"name": "turn", "batch": BATCH})
        fired = await app.tasks.trigger("turn")
        await kit.run_until_idle()
        run = await kit.run(fired.run_ids[0])
        assert (run.status, run.result["status"]) == ("failed", "partial_fail")


async def test_who_triggers_it_may_bring_other_targets(app: Fusee, dials: Dials) -> None:
    async with TestKit(app) as kit:
        await app.tasks.create({"name": "turn", "batch": BATCH})
        over = {"targets": [{"target_id": "z", "after": {"to": 1}}], "batch_name": "just z"}
        fired = await app.tasks.trigger("turn", payload=over)
        await kit.run_until_idle()
        assert dials.at == {"z": 1}
        assert (await _only_batch(app)).spec.batch_name == "just z"
        assert await kit.statuses(fired.run_ids[0]) == ["succeeded"]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"targets": []}, "a batch has at least one target"),
        ({"targets": "all"}, "targets must be a list"),
        ({"targets": [{"target_id": "a"}, {"target_id": "a"}]}, "target 2: 'a' came before, as 1"),
        ({"batch_type": "smash"}, "no worker knows operation 'smash'"),
    ],
)
async def test_a_batch_that_cannot_be_made_fails_the_run_at_once(
    app: Fusee, over: dict[str, Any], says: str
) -> None:
    async with TestKit(app) as kit:
        await app.tasks.create({"name": "turn", "batch": BATCH})
        fired = await app.tasks.trigger("turn", payload=over)
        await kit.run_until_idle()
        run = await kit.run(fired.run_ids[0])
        assert (run.status, run.attempt) == ("failed", 1)
        assert says in str(run.error)
        assert await app.batches.list(BatchFilter()) == []


async def test_canceling_the_run_cancels_the_batch(app: Fusee, dials: Dials) -> None:
    async with TestKit(app) as kit:
        await app.queues.pause("slow", True)
        slow = {**BATCH, "queue": "slow"}
        await app.tasks.create({"name": "turn", "batch": slow})
        fired = await app.tasks.trigger("turn")
        await kit.run_until_idle()
        assert await kit.statuses(fired.run_ids[0]) == ["waiting"]
        await app.runs.cancel(fired.run_ids[0])
        await app.queues.pause("slow", False)
        await kit.run_until_idle()
        batch = await _only_batch(app)
        assert (batch.phase, batch.status) == (BatchPhase.DONE, "cancel")
        assert dials.at == {}


async def test_a_task_after_it_waits_for_the_batch(app: Fusee, dials: Dials) -> None:
    seen: list[dict[str, int]] = []

    @app.handler("report")
    async def report() -> None:
        seen.append(dict(dials.at))

    async with TestKit(app) as kit:
        await app.tasks.create({"name": "turn", "batch": BATCH})
        await app.tasks.create({"name": "report", "after": ["turn"], "handler": "report"})
        await app.tasks.trigger("turn")
        await kit.run_until_idle()
        assert seen == [{"a": 7, "b": 7, "c": 7}]
