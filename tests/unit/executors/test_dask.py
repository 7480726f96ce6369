"""Runs on a Dask cluster, the real one: answers, stopping, a lost worker, and being found again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.executors.dask.executor import DaskExecutor
from fusee.executors.dask.payload import check_dask
from tests.unit.executors import dask_functions

HERE = "tests.unit.executors.dask_functions"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    dask_functions.GO_ON.clear()
    dask_functions.STARTED.clear()
    async with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, asynchronous=True,
        protocol="tcp://", host="127.0.0.1",
    ) as cluster:  # fmt: skip
        yield cluster
        dask_functions.GO_ON.set()


@pytest.fixture
async def dask(cluster: LocalCluster) -> AsyncIterator[DaskExecutor]:
    executor = executor_for(cluster)
    yield executor
    await executor.close()


def executor_for(cluster: LocalCluster) -> DaskExecutor:
    return DaskExecutor(cluster.scheduler_address, allow=[f"{HERE}:*"])


def attempt(function: str, number: int = 1, grace: float = 5.0, **kwargs: Any) -> Job:
    payload = {"function": f"{HERE}:{function}", "kwargs": kwargs}
    return Job(7, number, "dask", "default", payload, timeout=None, grace=grace)


async def begun() -> None:
    assert await asyncio.to_thread(dask_functions.STARTED.wait, 10)


async def told(task: asyncio.Task[Ended], job: Job, why: End) -> None:
    job.stop_reason = why
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def published(cluster: LocalCluster) -> list[str]:
    """Names on the scheduler; those of owners with the attempt."""
    async with Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:
        names = [str(name) for name in await client.list_datasets()]
        owners = {name: await client.get_dataset(name) for name in names if name.endswith("-owner")}
        return [f"{name}: {owners[name]['attempt']}" if name in owners else name for name in names]


async def until(cluster: LocalCluster, true: Callable[[list[str]], bool]) -> None:
    """Asks again and again: the scheduler has no event for it."""
    async with asyncio.timeout(10):
        while not true(await published(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- answers


async def test_a_function_answers_for_the_run(cluster: LocalCluster, dask: DaskExecutor) -> None:
    ended = await dask.execute(attempt("add", a=2, b=3))
    assert (ended.end, ended.effect) == (End.SUCCEEDED, Effect.APPLIED)
    assert (json.loads(ended.result or ""), ended.output) == ({"sum": 5}, "adding\n")
    assert await published(cluster) == [], "nothing is left on the cluster"


async def test_a_coroutine_is_awaited(dask: DaskExecutor) -> None:
    assert (await dask.execute(attempt("later", text="x"))).result == '"x"'


async def test_what_it_raises_is_the_end(dask: DaskExecutor) -> None:
    failed = await dask.execute(attempt("wrong"))
    assert failed.end is End.FAILED and (failed.error or "").startswith("RuntimeError: no luck")
    assert (await dask.execute(attempt("refuse", 2))).end is End.ABANDONED


@pytest.mark.parametrize(
    ("function", "kwargs", "why"), [("nothing", {}, "cannot be imported"), ("add", {"a": 1}, "do not fit")]
)
async def test_what_can_never_be_called_is_not_tried_again(
    dask: DaskExecutor, function: str, kwargs: dict[str, int], why: str
) -> None:
    ended = await dask.execute(attempt(function, **kwargs))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE) and why in (ended.error or "")


async def test_only_listed_functions_are_called(cluster: LocalCluster) -> None:
    executor = DaskExecutor(cluster.scheduler_address)
    ended = await executor.execute(attempt("add", a=1, b=2))
    assert ended.end is End.ABANDONED and "not allowed" in (ended.error or "")


@pytest.mark.parametrize("function", ["os.system", "Path.home", "add.__globals__.clear", "threading.Event"])
async def test_a_pattern_reaches_no_attribute(dask: DaskExecutor, function: str) -> None:
    """The pattern is `module:*`; walking attributes would reach all that the module imports."""
    ended = await dask.execute(attempt(function))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
    assert "no dot after the colon" in (ended.error or "")


async def test_a_pattern_reaches_only_what_the_module_defines(
    cluster: LocalCluster, dask: DaskExecutor
) -> None:
    ended = await dask.execute(attempt("getpid"))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
    assert "is not defined in that module but in posix" in (ended.error or "")
    listed = DaskExecutor(cluster.scheduler_address, allow=[f"{HERE}:getpid"])
    ended = await listed.execute(attempt("getpid"))
    await listed.close()
    assert ended.end is End.SUCCEEDED


async def test_without_a_scheduler_nothing_was_done() -> None:
    executor = DaskExecutor("tcp://127.0.0.1:1", allow=["*:*"], connect_timeout=0.2)
    ended = await executor.execute(attempt("add", a=1, b=2))
    await executor.close()
    assert (ended.end, ended.effect) == (End.FAILED, Effect.NONE)


# -- stopping


async def test_a_call_that_listens_stops_within_its_grace(
    cluster: LocalCluster, dask: DaskExecutor, tmp_path: Path
) -> None:
    job = attempt("hold", journal=str(tmp_path / "journal"))
    running = asyncio.create_task(dask.execute(job))
    await begun()
    await told(running, job, End.CANCELED)
    assert job.output == "stopping\n"
    assert await published(cluster) == []


async def test_a_call_that_does_not_listen_is_struck(dask: DaskExecutor, tmp_path: Path) -> None:
    job = attempt("hang", grace=0.1, journal=str(tmp_path / "journal"))
    running = asyncio.create_task(dask.execute(job))
    await begun()
    await told(running, job, End.TIMED_OUT)
    assert job.effect is Effect.UNKNOWN


async def test_a_call_that_has_not_begun_never_will(
    cluster: LocalCluster, dask: DaskExecutor, tmp_path: Path
) -> None:
    job = attempt("hold", journal=str(tmp_path / "journal"))
    job.payload["resources"] = {"GPU": 1}  # which no worker has
    running = asyncio.create_task(dask.execute(job))
    await until(cluster, lambda names: any(name.endswith("-7-1") for name in names))
    await told(running, job, End.CANCELED)
    assert job.effect is Effect.NONE and not (tmp_path / "journal").exists()


# -- found again


@pytest.mark.parametrize("why", [End.RETURNED, End.LOST])
async def test_the_next_worker_waits_for_the_call_that_goes_on(
    cluster: LocalCluster, tmp_path: Path, why: End
) -> None:
    journal = tmp_path / "journal"
    first, leaving = executor_for(cluster), attempt("hold", 1, journal=str(journal))
    running = asyncio.create_task(first.execute(leaving))
    await begun()
    await told(running, leaving, why)
    await first.close()
    second = executor_for(cluster)
    again = asyncio.create_task(second.execute(attempt("hold", 2, journal=str(journal))))
    dask_functions.GO_ON.set()
    ended = await again
    await second.close()
    assert (ended.end, ended.result, journal.read_text()) == (End.SUCCEEDED, '"held"', "started\n")


async def test_a_call_that_ended_while_nobody_waited_is_not_made_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    first, leaving = executor_for(cluster), attempt("hold", 1, journal=str(journal))
    running = asyncio.create_task(first.execute(leaving))
    await begun()
    await told(running, leaving, End.LOST)
    await first.close()
    dask_functions.GO_ON.set()
    second = executor_for(cluster)
    ended = await second.execute(attempt("hold", 2, journal=str(journal)))
    await second.close()
    assert (ended.result, journal.read_text()) == ('"held"', "started\n")


async def test_a_zombie_stops_nothing_that_another_has(cluster: LocalCluster, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    first, old = executor_for(cluster), attempt("hold", 1, journal=str(journal))
    zombie = asyncio.create_task(first.execute(old))
    await begun()
    second = executor_for(cluster)
    heir = asyncio.create_task(second.execute(attempt("hold", 2, journal=str(journal))))
    await until(cluster, lambda names: any(name.endswith("-owner: 2") for name in names))
    await told(zombie, old, End.TIMED_OUT)
    dask_functions.GO_ON.set()
    assert (await heir).result == '"held"'
    await first.close()
    await second.close()


# -- a lost worker


async def test_a_call_whose_worker_died_is_lost_and_not_started_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, asynchronous=True,
        silence_logs=50,
    ) as cluster:  # fmt: skip
        executor = executor_for(cluster)
        ended = await executor.execute(attempt("crash", journal=str(journal)))
        await executor.close()
    assert (ended.end, ended.effect) == (End.LOST, Effect.UNKNOWN)
    assert journal.read_text() == "started\n"


# -- payloads


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "function"),
        ({"function": "jobs.report"}, "module:name"),
        ({"function": "jobs:report; import os"}, "module:name"),
        ({"function": "a:b", "args": [1]}, "no 'args'"),
        ({"function": "a:b", "kwargs": [1]}, "kwargs must be an object"),
        ({"function": "a:b", "resources": {"GPU": "one"}}, "resources must be amounts"),
    ],
)
def test_a_payload_that_no_cluster_could_run_is_refused(payload: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_dask(payload)
