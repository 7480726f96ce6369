"""Batches, bulk jobs and workflows on workers without a database."""

from __future__ import annotations

from typing import Any

import pytest

from fusee import Fusee
from fusee.batches.operation import Target
from fusee.batches.store.queries import TargetFilter
from fusee.errors import Invalid
from tests.broker.cluster import Cluster
from tests.chaos.inside import until


async def test_a_batch_keeps_images_and_rolls_back(cluster: Cluster) -> None:
    world = {f"t{n}": "old" for n in range(20)}

    def operations(app: Fusee) -> None:
        @app.operation("thing", "set")
        class Set:
            async def finished(self, target: Target) -> bool:
                return world[target.id] == target.after["to"]

            async def capture(self, target: Target) -> Any:
                return {"was": world[target.id]}

            async def apply(self, target: Target) -> None:
                world[target.id] = target.after["to"]

            async def undo(self, target: Target) -> None:
                world[target.id] = target.image["was"]

    operations(cluster.app)
    async with cluster.start_worker(prepare=operations):
        fields = {"batch_name": "b", "target_type": "thing", "batch_type": "set", "concurrency": 5}
        targets = [{"target_id": name, "after": {"to": "new"}} for name in world]
        batch, _ = await cluster.app.batches.create(fields, targets, apply=True)

        async def stands(status: str) -> bool:
            return str((await cluster.app.batches.get(batch.id)).status) == status

        await until(lambda: stands("success"), 30, "the batch's success")
        assert set(world.values()) == {"new"}
        await cluster.app.batches.roll_back(batch.id)
        await until(lambda: stands("rollback_success"), 30, "its rollback")
    assert set(world.values()) == {"old"}


async def test_a_worker_without_a_database_plans_and_checks_for_a_server_without_app(
    cluster: Cluster,
) -> None:
    def operations(app: Fusee) -> None:
        @app.operation("thing", "set", params=dict[str, int])
        class Set:
            async def finished(self, target: Target) -> bool:
                return target.id == "right"

            async def capture(self, target: Target) -> Any:
                return {"to": 1}

            async def apply(self, target: Target) -> None: ...

            async def undo(self, target: Target) -> None: ...

    async with cluster.start_worker(prepare=operations):
        await until(cluster.app.store.sessions.sessions, 30, "the worker to register")
        fields = {"batch_name": "b", "target_type": "thing", "batch_type": "set"}
        with pytest.raises(Invalid, match=r"target 1: after\.to: Input should be a valid integer"):
            await cluster.app.batches.create(fields, [{"target_id": "low", "after": {"to": "up"}}])
        targets = [{"target_id": name, "after": {"to": 2}} for name in ("low", "right")]
        batch, _ = await cluster.app.batches.create(fields, targets)
        found = await cluster.app.batches.plan(batch.id, TargetFilter(), timeout=30)
        assert [(str(one.action), dict(one.changes)) for one in found] == [
            ("change", {"to": (1, 2)}),
            ("none", {}),
        ]


async def test_a_bulk_job_checkpoints_by_message(cluster: Cluster) -> None:
    seen: list[int] = []

    def businesses(app: Fusee) -> None:
        @app.bulk("count", concurrency=8)
        async def count(item: int) -> None:
            seen.append(item)

    businesses(cluster.app)
    async with cluster.start_worker(prepare=businesses):
        job, _ = await cluster.app.bulk_jobs.create(
            {"name": "c", "business": "count", "source": {"kind": "range", "start": 0, "stop": 500}},
            start=True,
        )

        async def finished() -> bool:
            return str((await cluster.app.bulk_jobs.get(job.id)).status) == "finished"

        await until(finished, 30, "the job's end")
    assert sorted(seen) == list(range(500))


async def test_a_workflow_runs_through(cluster: Cluster) -> None:
    async with cluster.start_worker():
        steps = [{"name": "a", "handler": "work"}, {"name": "b", "handler": "work", "after": "a"}]
        await cluster.app.workflows.create({"name": "w", "nodes": steps})
        started = await cluster.app.workflows.start("w")

        async def ended() -> bool:
            return str((await cluster.app.workflows.run(started.id)).status) == "succeeded"

        await until(ended, 30, "the workflow's end")
    assert len(cluster.journal.starts()) == 2
