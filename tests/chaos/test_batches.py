"""Batches under fire: workers are killed while they apply and while they undo, and the control plane lies.

The judge is the control plane's own journal.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from fusee.contrib.cdc.control_plane import Plane, audit, plane_running
from fusee.model import Effect
from fusee.model.batch import Batch, BatchPhase, BatchStatus, BatchTask
from fusee.operations import TargetFilter
from tests.chaos.harness import Fleet, fleet

pytestmark = pytest.mark.chaos

TARGETS = int(os.environ.get("FUSEE_CHAOS_TARGETS", "5000"))
KILLS = 10
TIMEOUT = 4.0
LONGEST = 600.0
WORKER = {"max_concurrent_tasks": 24, "lease_ttl": 4.0, "heartbeat_interval_seconds": 1.0}
LIES = (
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


async def _all_tasks(crew: Fleet, batch_id: int) -> list[BatchTask]:
    found: list[BatchTask] = []
    while True:
        last = found[-1].position if found else None
        page = await crew.app.batches.tasks(batch_id, TargetFilter(after=last, limit=1000))
        if not page:
            return found
        found += page


async def _done_under_fire(crew: Fleet, plane: Plane, batch_id: int, kills: int) -> Batch:
    """Wait for the batch's end, and kill a worker whenever a part of it has been done."""
    deadline = time.monotonic() + LONGEST
    lines = _lines(plane)
    while (batch := await crew.app.batches.get(batch_id)).phase is not BatchPhase.DONE:
        assert not crew.crashed(), f"seed {crew.seed}: {crew.crashed()[0]}"
        assert time.monotonic() < deadline, f"seed {crew.seed}: not done in time: {batch}"
        if kills and _lines(plane) > lines + crew.chance.randrange(TARGETS // KILLS):
            crew.kill(crew.chance.choice(crew.of("worker")))
            crew.start("worker")
            kills, lines = kills - 1, _lines(plane)
        await asyncio.sleep(0.05)
    await plane.quiet()
    return batch


def _lines(plane: Plane) -> int:
    return plane.journal.read_bytes().count(b"\n")


async def _judge(crew: Fleet, plane: Plane, batch_id: int, *, rolled_back: bool) -> Counter[str]:
    """Every target is as the batch says, rollback reached those it must and no others, counters are right."""
    tasks = await _all_tasks(crew, batch_id)
    verdict = audit(plane.entries(), tasks, rolled_back=rolled_back)
    assert not verdict.problems, f"seed {crew.seed}: {len(verdict.problems)}, such as {verdict.problems[:5]}"
    kept, counted = await crew.app.batches.recount(batch_id)
    assert kept == counted, f"seed {crew.seed}"
    listed = Counter(task.status for task in tasks)
    assert listed == {status: count for status, count in kept.items() if count}, f"seed {crew.seed}"
    assert len({task.target_id for task in tasks}) == TARGETS
    return verdict.found


async def test_5000_targets_are_applied_and_rolled_back_while_workers_die(
    server_url: str, tmp_path: Path
) -> None:
    async with (
        plane_running(tmp_path / "plane.jsonl", "--jobs", str(TARGETS)) as plane,
        fleet(server_url, tmp_path, cdc=plane.url, worker=WORKER) as crew,
    ):
        await plane.misbehave(*LIES)
        batch, _ = await crew.app.batches.create(
            {
                "batch_name": "switch all",
                "batch_type": "cdc_switch_az",
                "target_type": "cdc",
                "concurrency": 64,
                "canary": 20,
                "timeout": TIMEOUT,
            },
            ({"target_id": f"job-{n + 1}", "after": {"az": "sg-2"}} for n in range(TARGETS)),
            apply=True,
        )
        done = await _done_under_fire(crew, plane, batch.id, KILLS)
        applied = await _judge(crew, plane, batch.id, rolled_back=False)
        print(f"{done.status}: {applied}")
        assert applied["applied"] > TARGETS * 0.9 and applied["unsure"] and applied["untouched"]

        await crew.app.batches.roll_back(batch.id)
        done = await _done_under_fire(crew, plane, batch.id, KILLS)
        print(f"{done.status}: {await _judge(crew, plane, batch.id, rolled_back=True)}")
        # What the control plane did not let us undo is undone when it behaves.
        await plane.misbehave()
        while done.counts[BatchStatus.ROLLBACK_FAIL]:
            await crew.app.batches.roll_back(batch.id)
            done = await _done_under_fire(crew, plane, batch.id, 0)
        found = await _judge(crew, plane, batch.id, rolled_back=True)
        print(f"{done.status}: {found}")
        tasks = await _all_tasks(crew, batch.id)
        assert {task.status for task in tasks if task.effect is not Effect.NONE} == {
            BatchStatus.ROLLBACK_SUCCESS
        }
        shown = {entry.job: entry.after["az"] for entry in plane.entries()}
        assert set(shown.values()) == {"sg-1"}, "every job is back where it was"
