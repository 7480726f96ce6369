"""The CDC pack over the reference control plane, a process of its own whose journal is the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.batches.model.batch import Batch, BatchStatus, BatchTask
from fusee.batches.store.queries import TargetFilter
from fusee.contrib import cdc
from fusee.contrib.cdc.control_plane import Plane, audit, plane_running
from fusee.engine.model.outcome import Effect
from fusee.errors import Invalid
from fusee.testing import TestKit

S = BatchStatus


@dataclass
class Stage:
    """A platform on a manual clock, and the control plane that it drives."""

    app: Fusee
    kit: TestKit
    plane: Plane

    async def create(self, operation: str, *jobs: str, after: Any = None, **fields: Any) -> Batch:
        kind = "panama" if jobs[0].startswith("panama") else "cdc"
        batch, _ = await self.app.batches.create(
            {"batch_name": operation, "batch_type": operation, "target_type": kind, **fields},
            [{"target_id": job, "after": after or {}} for job in jobs],
            apply=True,
        )
        await self.settle()
        return batch

    async def settle(self) -> None:
        """Everything that is due, also what is tried again later."""
        while await self.kit.run_until_idle():
            self.kit.clock.tick(minutes=1)

    async def tasks(self, batch: Batch) -> list[BatchTask]:
        return [*await self.app.batches.tasks(batch.id, TargetFilter(limit=1000))]

    async def task(self, batch: Batch) -> BatchTask:
        (task,) = await self.tasks(batch)
        return task

    async def roll_back(self, batch: Batch, **how: Any) -> None:
        await self.app.batches.roll_back(batch.id, **how)
        await self.settle()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with plane_running(tmp_path / "journal", "--jobs", "30", "--panama-jobs", "3") as plane:
        app = Fusee("sqlite://")
        cdc.register(app, cdc.ControlPlaneDriver(plane.url))
        async with TestKit(app) as kit:
            yield Stage(app, kit, plane)


async def test_each_operation_is_done_found_done_and_undone(stage: Stage) -> None:
    operations: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "cdc_job_stop": ("job-1", {}, {"status": "stopped"}),
        "cdc_switch_az": ("job-2", {"az": "sg-2"}, {"az": "sg-2"}),
        "cdc_reset_gtid": ("job-3", {"gtid": "0-1-99"}, {"gtid": "0-1-99", "status": "running"}),
        "cdc_change_config": ("job-4", {"cpu": 4000, "replicas": 3}, {"cpu": 4000, "replicas": 3}),
        "cdc_switch_run_system": ("job-5", {"run_system": "k8s"}, {"run_system": "k8s"}),
        "panama_migrate_to_cdc": (
            "panama-1",
            {"az": "sg-2"},
            {"cdc_job": "cdc-panama-1", "status": "stopped"},
        ),
    }
    for operation, (job, after, shows) in operations.items():
        before = await stage.plane.job(job)
        first = await stage.create(operation, job, after=after)
        assert shows.items() <= (await stage.plane.job(job)).items(), operation
        assert (await stage.task(first)).effect is Effect.APPLIED

        again = await stage.create(operation, job, after=after)
        done = await stage.task(again)
        assert (done.status, done.effect) == (S.SUCCESS, Effect.NONE), f"{operation}: nothing was to be done"

        await stage.roll_back(first)
        assert (await stage.task(first)).status is S.ROLLBACK_SUCCESS
        assert await stage.plane.job(job) == before, operation


async def test_start_and_its_way_back_to_paused(stage: Stage) -> None:
    await stage.plane.change("job-1", "pause")
    batch = await stage.create("cdc_job_start", "job-1")
    assert (await stage.plane.job("job-1"))["status"] == "running"
    await stage.roll_back(batch)
    assert (await stage.plane.job("job-1"))["status"] == "paused"


async def test_a_panama_job_takes_the_operations_of_cdc_jobs_too(stage: Stage) -> None:
    await stage.create("cdc_job_stop", "panama-2")
    assert (await stage.plane.job("panama-2"))["status"] == "stopped"


async def test_one_that_hangs_after_it_was_done_is_asked_again_and_undone(stage: Stage) -> None:
    await stage.plane.misbehave({"fault": "apply_then_hang", "jobs": ["job-2"], "times": 1})
    batch = await stage.create(
        "cdc_switch_az", *(f"job-{n}" for n in range(1, 31)), after={"az": "sg-2"}, timeout=3
    )
    tasks = await stage.tasks(batch)
    assert {task.status for task in tasks} == {S.SUCCESS}
    assert Counter(task.effect for task in tasks) == {Effect.APPLIED: 29, Effect.UNKNOWN: 1}
    assert audit(stage.plane.entries(), tasks).found["applied"] == 30
    await stage.roll_back(batch)
    verdict = audit(stage.plane.entries(), await stage.tasks(batch), rolled_back=True)
    assert not verdict.problems
    assert (verdict.found["restored"], verdict.found["changes"]) == (30, 60), (
        "each was changed once, and back"
    )


async def test_what_was_refused_or_failed_by_what_may_have_been_done(stage: Stage) -> None:
    await stage.plane.misbehave(
        {"fault": "refuse", "jobs": ["job-1"], "times": 1},
        {"fault": "fail", "jobs": ["job-2"], "times": 1},
        {"fault": "apply_then_fail", "jobs": ["job-3"], "times": 1},
    )
    batch = await stage.create("cdc_job_stop", "job-1", "job-2", "job-3", "nobody")
    effects = {task.target_id: (task.status, task.effect) for task in await stage.tasks(batch)}
    assert effects == {
        "job-1": (S.FAIL, Effect.NONE),
        "job-2": (S.FAIL, Effect.UNKNOWN),
        "job-3": (S.FAIL, Effect.UNKNOWN),
        "nobody": (S.FAIL, Effect.NONE),
    }
    infos = {task.target_id: (task.info or "").splitlines()[0] for task in await stage.tasks(batch)}
    assert infos["job-1"] == "POST /jobs/job-1/stop was answered 423: job 'job-1' is locked"
    assert infos["nobody"] == "GET /jobs/nobody was answered 404: there is no job 'nobody'"

    # A retry finds job-3 stopped: that it may have been this batch is not forgotten.
    await stage.app.batches.retry(batch.id)
    await stage.settle()
    effects = {task.target_id: (task.status, task.effect) for task in await stage.tasks(batch)}
    assert effects["job-3"] == (S.SUCCESS, Effect.UNKNOWN)
    await stage.roll_back(batch)
    verdict = audit(
        stage.plane.entries(), await stage.tasks(batch), lambda _: {"status": "stopped"}, rolled_back=True
    )
    assert not verdict.problems
    assert (verdict.found["restored"], verdict.found["untouched"]) == (3, 1)


async def test_a_job_that_someone_changed_since_is_reported_and_left_alone(stage: Stage) -> None:
    batch = await stage.create("cdc_switch_az", "job-1", after={"az": "sg-2"})
    await stage.plane.change("job-1", "move_az", az="sg-3")
    await stage.roll_back(batch)
    task = await stage.task(batch)
    assert task.status is S.ROLLBACK_FAIL
    assert (task.info or "").startswith("drift: ")
    assert (await stage.plane.job("job-1"))["az"] == "sg-3"
    await stage.roll_back(batch, force=True)
    assert (await stage.task(batch)).status is S.ROLLBACK_SUCCESS
    assert (await stage.plane.job("job-1"))["az"] == "sg-1"


async def test_a_request_that_comes_after_its_rollback_changes_nothing(stage: Stage) -> None:
    # Every attempt is given up before the control plane comes to it.
    await stage.plane.misbehave({"fault": "slow", "seconds": 2.0})
    batch = await stage.create("cdc_switch_az", "job-1", after={"az": "sg-2"}, timeout=0.2)
    task = await stage.task(batch)
    assert (task.status, task.effect) == (S.FAIL, Effect.UNKNOWN)
    await stage.plane.misbehave()
    await stage.roll_back(batch)
    assert (await stage.task(batch)).status is S.ROLLBACK_SUCCESS
    await stage.plane.quiet()
    assert (await stage.plane.job("job-1"))["az"] == "sg-1"


async def test_a_control_plane_that_cannot_be_reached_was_not_touched(stage: Stage) -> None:
    nowhere = Fusee("sqlite://")
    cdc.register(nowhere, cdc.ControlPlaneDriver("http://127.0.0.1:9"))
    async with TestKit(nowhere) as kit:
        batch = await Stage(nowhere, kit, stage.plane).create("cdc_job_stop", "job-1")
        (task,) = await nowhere.batches.tasks(batch.id, TargetFilter())
        assert (task.status, task.effect) == (S.FAIL, Effect.NONE)
        assert "http://127.0.0.1:9 cannot be reached" in (task.info or "")


async def test_a_wrong_parameter_is_told_before_anything_exists(stage: Stage) -> None:
    with pytest.raises(Invalid, match=r"target 1: after\.az: Field required"):
        await stage.create("cdc_switch_az", "job-1", after={})
    with pytest.raises(Invalid, match="known are: cdc/cdc_change_config, cdc/cdc_job_start"):
        await stage.create("cdc_dance", "job-1")


async def test_a_restarted_control_plane_goes_on_with_its_journal(tmp_path: Path) -> None:
    async with plane_running(tmp_path / "journal", "--jobs", "2") as plane:
        await plane.change("job-2", "stop")
    async with plane_running(tmp_path / "journal", "--jobs", "3") as plane:
        statuses = [(await plane.job(f"job-{n}"))["status"] for n in (1, 2, 3)]
        assert statuses == ["running", "stopped", "running"]
        assert [entry.seq for entry in plane.entries()] == [1, 2, 3, 4]


async def test_a_plan_shows_what_jobs_are_and_what_they_would_be(tmp_path: Path) -> None:
    async with plane_running(tmp_path / "journal", "--jobs", "3", "--panama-jobs", "1") as plane:
        app = Fusee("sqlite://")
        cdc.register(app, cdc.ControlPlaneDriver(plane.url))

        async def plan(operation: str, *jobs: str, **after: Any) -> dict[str, Any]:
            kind = "panama" if jobs[0].startswith("panama") else "cdc"
            fields = {"batch_name": operation, "batch_type": operation, "target_type": kind}
            batch, _ = await app.batches.create(fields, [{"target_id": job, "after": after} for job in jobs])
            found = await app.batches.plan(batch.id, TargetFilter())
            return {one.task.target_id: (str(one.action), dict(one.changes)) for one in found}

        async with app:
            await plane.change("job-1", "stop")
            before = [await plane.job(job) for job in ("job-1", "job-2", "panama-1")]
            assert await plan("cdc_job_start", "job-1", "job-2", "job-99") == {
                "job-1": ("change", {"status": ("stopped", "running")}),
                "job-2": ("none", {}),
                "job-99": ("unreachable", {}),
            }
            assert await plan("cdc_job_stop", "job-1", "job-2") == {
                "job-1": ("none", {}),
                "job-2": ("change", {"status": ("running", "stopped")}),
            }
            assert await plan("panama_migrate_to_cdc", "panama-1") == {
                "panama-1": ("create", {"cdc_job": (None, "cdc-panama-1")}),
            }
            was = before[1]["az"]
            assert await plan("cdc_switch_az", "job-2", az="sg-9") == {
                "job-2": ("change", {"az": (was, "sg-9")})
            }
            assert [await plane.job(job) for job in ("job-1", "job-2", "panama-1")] == before


async def test_parameters_as_the_older_design_nests_them_are_taken(stage: Stage) -> None:
    target = {
        "TargetId": 2,
        "TargetName": "job-2",
        "TargetParam": {
            "BeforeUpdate": {"SwitchAZ": {"AZ": "sg-1"}, "ResetGtid": {"GTID": ""}},
            "AfterUpdate": {"SwitchAZ": {"AZ": "sg-2"}, "ChangeConfig": {"Cpu": None, "Memory": None}},
        },
    }
    fields = {"batch_name": "az", "batch_type": "cdc_switch_az", "target_type": "cdc"}
    batch, _ = await stage.app.batches.create(fields, [target])
    task = await stage.task(batch)
    assert (task.target_id, task.before, task.after) == ("2", {"az": "sg-1"}, {"az": "sg-2"})
