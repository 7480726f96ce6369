"""Retrying runs that have an owner, over REST and the command line; and runs that pretend to have one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from fusee.batches.operation import Target
from fusee.engine.model.run import RunSpec
from tests.chaos.inside import until
from tests.flow.conftest import Cli

RUNS = "/api/v1/runs"
BATCHES = "/api/v1/batches"


@pytest_asyncio.fixture
async def lamps(serving: Any) -> AsyncIterator[tuple[Any, list[str]]]:
    """A platform with an operation that keeps no image; what it did is in the list."""
    done: list[str] = []
    async with serving() as served:

        class Light:
            async def finished(self, target: Target) -> bool:
                return done[-1:] == [f"apply {target.id}"]

            async def apply(self, target: Target) -> None:
                done.append(f"apply {target.id}")

            async def undo(self, target: Target) -> None:
                done.append(f"undo {target.id}")

        class Paint(Light):
            async def capture(self, target: Target) -> dict[str, str]:
                return {"colour": "white"}

        served.app.operation("lamp", "light")(Light)
        served.app.operation("lamp", "paint")(Paint)
        async with served.app.running():
            yield served, done


async def batch(served: Any, operation: str) -> Any:
    given = {"batch_name": "b", "batch_type": operation, "target_type": "lamp", "targets": [{"id": "1"}]}
    _, made, _ = await served.ask("POST", BATCHES, json=given)
    await served.ask("POST", f"{BATCHES}/{made['batch_id']}/apply")
    return await rested(served, made["batch_id"], "success")


async def rested(served: Any, batch_id: int, status: str) -> Any:
    async def there() -> Any:
        _, body, _ = await served.ask("GET", f"{BATCHES}/{batch_id}")
        return body if (body["phase"], body["status"]) == ("done", status) else None

    return await until(there, 20, f"batch {batch_id} to be {status}")


async def test_a_target_is_not_applied_behind_the_back_of_its_batch(lamps: tuple[Any, list[str]]) -> None:
    served, done = lamps
    for operation in ("light", "paint"):
        done.clear()
        made = await batch(served, operation)
        _, targets, _ = await served.ask("GET", f"{BATCHES}/{made['batch_id']}/targets")
        run_id = targets["items"][0]["run_id"]
        await served.ask("POST", f"{BATCHES}/{made['batch_id']}/rollback")
        await rested(served, made["batch_id"], "rollback_success")
        before = await served.count()
        status, problem, _ = await served.ask("POST", f"{RUNS}/{run_id}/retry")
        assert status == 409, problem
        assert f"target 1 of batch {made['batch_id']}, which was rolled back" in problem["detail"]
        assert await served.count() == before
        assert done == ["apply 1", "undo 1"]


async def test_an_operation_runs_as_part_of_a_batch_only(lamps: tuple[Any, list[str]]) -> None:
    served, done = lamps
    for operation in ("light", "paint"):
        payload = {"batch_id": 1, "position": 0, "target_id": "1"}
        given = {"handler": f"batch.lamp.{operation}", "payload": payload}
        status, problem, _ = await served.ask("POST", RUNS, json=given)
        assert status == 422 and "only the platform starts: create a batch" in problem["detail"], problem
        # And were it in the store all the same, its worker would not touch the target.
        (accepted,) = await served.app.store.run_writer.enqueue([RunSpec(**given)])
        _, run, _ = await served.ask("GET", f"{RUNS}/{accepted.id}/wait")
        assert (run["status"], run["effect"]) == ("failed", "none"), run
        assert "create a batch with this target" in run["error"]
    assert done == []


async def test_a_run_of_a_task_is_retried_under_its_policies(served: Any) -> None:
    given = {"name": "t", "handler": "greet", "overlap_action": "SKIP"}
    status, body, _ = await served.ask("POST", "/api/v1/tasks", json=given)
    assert status == 201, body
    _, first, _ = await served.ask("POST", "/api/v1/tasks/t/trigger")
    _, second, _ = await served.ask("POST", "/api/v1/tasks/t/trigger")
    assert second["decision"] == "skip"
    status, problem, _ = await served.ask("POST", f"{RUNS}/{second['run_ids'][0]}/retry")
    assert status == 409
    assert f"overlap_action SKIP: run {first['run_ids'][0]} has not ended" in problem["detail"]
    await served.ask("POST", f"{RUNS}/{first['run_ids'][0]}/cancel")
    status, again, headers = await served.ask("POST", f"{RUNS}/{second['run_ids'][0]}/retry")
    assert (status, headers["Location"]) == (201, f"{RUNS}/{again['id']}")
    assert (again["status"], again["created"]) == ("pending", True)
    assert again["rule"] == f"run {second['run_ids'][0]} done again by hand, and nothing in its way"
    _, run, _ = await served.ask("GET", f"{RUNS}/{again['id']}")
    assert (run["task"], run["origin_id"]) == ("t", second["run_ids"][0])


def test_the_command_line_tells_what_the_policies_decided(cli: Cli) -> None:
    words = ("--handler", "greet", "--allow-unknown", "--overlap", "skip")
    cli.json("task", "create", "t", *words)
    (first,) = cli.json("task", "trigger", "t")["run_ids"]
    (skipped,) = cli.json("task", "trigger", "t")["run_ids"]
    said = cli.refused("run", "retry", str(skipped))
    assert f"overlap_action SKIP: run {first} has not ended" in said
    cli.json("run", "cancel", str(first))
    (again,) = cli.json("run", "retry", str(skipped))["items"]
    assert (again["origin_id"], again["status"]) == (skipped, "pending")
    assert "done again by hand" in again["rule"]
