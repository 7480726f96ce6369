"""Batches under fire: workers are killed while they apply and while they undo, and the control plane lies.

The judge is the control plane's own journal.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fusee.batches.model.batch import Batch, BatchPhase, BatchStatus, BatchTask
from fusee.batches.store.queries import TargetFilter
from fusee.contrib.cdc.control_plane import Plane, audit, plane_running
from fusee.engine.model.outcome import Effect
from tests.chaos.harness import Fleet, fleet

pytestmark = pytest.mark.chaos

TARGETS = int(os.environ.get("FUSEE_CHAOS_TARGETS", "5000"))
KILLS = 10
TIMEOUT = 4.0
LONGEST = 600.0
WORKER = {"max_concurrent_tasks": 24, "lease_ttl": 4.0, "heartbeat_interval_seconds": 1.0}
LIES: tuple[dict[str, Any], ...] = (
    {"fault": "apply_then_hang", "probability": 0.01, "times": 2},
    {"fault": "apply_then_fail", "probability": 0.01},
    {"fault": "fail", "probability": 0.01},
    {"fault": "refuse", "probability": 0.01},
    {"fault": "hang", "probability": 0.005, "times": 1},
    # Longer than an attempt may take: it is done after the attempt was given up.
    {"fault": "slow", "probability": 0.02, "seconds": 1.5 * TIMEOUT},
)


@pytest.fixture(params=["postgres", "mysql"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


async def _start(crew: Fleet, targets: int, **fields: Any) -> Batch:
    batch, _ = await crew.app.batches.create(
        {
            "batch_name": "switch all",
            "batch_type": "cdc_switch_az",
            "target_type": "cdc",
            "concurrency": 64,
            "canary": 20,
            "timeout": TIMEOUT,
            **fields,
        },
        ({"target_id": f"job-{n + 1}", "after": {"az": "sg-2"}} for n in range(targets)),
        apply=True,
    )
    return batch


async def _all_tasks(crew: Fleet, batch_id: int) -> list[BatchTask]:
    found: list[BatchTask] = []
    while True:
        last = found[-1].position if found else None
        page = await crew.app.batches.tasks(batch_id, TargetFilter(after=last, limit=1000))
        if not page:
            return found
        found += page


async def _done_under_fire(
    crew: Fleet, plane: Plane, batch: Batch, kills: int, roles: tuple[str, ...] = ("worker",)
) -> Batch:
    """Wait for the batch's end, and kill someone whenever a random part of it has been done."""
    deadline = time.monotonic() + LONGEST
    killed, lines = 0, _lines(plane)
    step = batch.total // (kills + 2) if kills else 0
    wanted = lines + crew.chance.randrange(step) if step else 0
    while (batch := await crew.app.batches.get(batch.id)).phase is not BatchPhase.DONE:
        assert not crew.crashed(), f"seed {crew.seed}: {crew.crashed()[0]}"
        assert time.monotonic() < deadline, f"seed {crew.seed}: not done in time: {batch}"
        if killed < kills and _lines(plane) > wanted:
            role = crew.chance.choice(roles)
            crew.kill(crew.chance.choice(crew.of(role)))
            crew.start(role)
            killed += 1
            wanted = lines + killed * step + crew.chance.randrange(step)
        await asyncio.sleep(0.05)
    assert killed >= kills // 2, f"seed {crew.seed}: {killed} kills: the test was too kind"
    await plane.quiet()
    return batch


def _lines(plane: Plane) -> int:
    return plane.journal.read_bytes().count(b"\n")


async def _judge(crew: Fleet, plane: Plane, batch: Batch, *, rolled_back: bool) -> Counter[str]:
    """Every target is as the batch says, rollback reached those it must and no others, counters are right."""
    tasks = await _all_tasks(crew, batch.id)
    verdict = audit(plane.entries(), tasks, rolled_back=rolled_back)
    assert not verdict.problems, f"seed {crew.seed}: {len(verdict.problems)}, such as {verdict.problems[:5]}"
    kept, counted = await crew.app.batches.recount(batch.id)
    assert kept == counted, f"seed {crew.seed}"
    listed = Counter(task.status for task in tasks)
    assert listed == {status: count for status, count in kept.items() if count}, f"seed {crew.seed}"
    assert len({task.target_id for task in tasks}) == batch.total
    return verdict.found


async def _until_all_is_undone(crew: Fleet, plane: Plane, batch: Batch) -> None:
    """What the control plane did not let us undo is undone when it behaves."""
    await plane.misbehave()
    while batch.counts[BatchStatus.ROLLBACK_FAIL]:
        await crew.app.batches.roll_back(batch.id)
        batch = await _done_under_fire(crew, plane, batch, 0)
    print(f"{batch.status}: {await _judge(crew, plane, batch, rolled_back=True)}")
    tasks = await _all_tasks(crew, batch.id)
    touched = {task.status for task in tasks if task.effect in (Effect.APPLIED, Effect.UNKNOWN)}
    assert touched == {BatchStatus.ROLLBACK_SUCCESS}
    shown = {entry.job: entry.after["az"] for entry in plane.entries()}
    assert set(shown.values()) == {"sg-1"}, "every job is back where it was"


async def test_5000_targets_are_applied_and_rolled_back_while_workers_die(
    server_url: str, tmp_path: Path
) -> None:
    async with (
        plane_running(tmp_path / "plane.jsonl", "--jobs", str(TARGETS)) as plane,
        fleet(server_url, tmp_path, cdc=plane.url, worker=WORKER) as crew,
    ):
        await plane.misbehave(*LIES)
        batch = await _start(crew, TARGETS)
        done = await _done_under_fire(crew, plane, batch, KILLS)
        applied = await _judge(crew, plane, done, rolled_back=False)
        print(f"{done.status}: {applied}")
        assert applied["applied"] > TARGETS * 0.9 and applied["unsure"] and applied["untouched"]

        await crew.app.batches.roll_back(batch.id)
        done = await _done_under_fire(crew, plane, batch, KILLS)
        print(f"{done.status}: {await _judge(crew, plane, done, rolled_back=True)}")
        await _until_all_is_undone(crew, plane, done)


async def test_too_many_errors_roll_a_batch_back_while_workers_and_dispatchers_die(
    server_url: str, tmp_path: Path
) -> None:
    targets = TARGETS // 5
    async with (
        plane_running(tmp_path / "plane.jsonl", "--jobs", str(targets)) as plane,
        fleet(server_url, tmp_path, cdc=plane.url, worker=WORKER) as crew,
    ):
        await plane.misbehave(*LIES, {"fault": "apply_then_fail", "verbs": ["move_az"], "probability": 0.03})
        batch = await _start(crew, targets, max_errors=0.03, on_error="rollback")
        done = await _done_under_fire(crew, plane, batch, 6, ("worker", "worker", "dispatcher"))
        found = await _judge(crew, plane, done, rolled_back=True)
        print(f"{done.status} ({done.reason}): {found}")
        assert done.counts[BatchStatus.CANCEL], "some targets never started"
        assert found["restored"], "and some were undone"
        await _until_all_is_undone(crew, plane, done)
