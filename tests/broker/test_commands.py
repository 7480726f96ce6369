"""The calls that a handler may make on a worker without a database: all that start something.

Each starter and each call of the SDK is made by a real handler, fed by real messages; with the broker
`database` the same code runs beside the store.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.batches.operation import Target
from fusee.broker.messages import RpcReply, RpcRequest
from fusee.bulk.business import BulkContext
from fusee.engine.model.run import Run, RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.runs import RunFilter
from fusee.errors import Invalid, NoDatabase
from tests.broker.cluster import Cluster
from tests.chaos.inside import until


def registered(done: list[Any]) -> Any:
    """Operations and businesses that record what they did."""

    def register(app: Fusee) -> None:
        @app.operation("thing", "touch")
        class Touch:
            async def finished(self, target: Target) -> bool:
                return target.id in done

            async def apply(self, target: Target) -> None:
                done.append(target.id)

            async def undo(self, target: Target) -> None:
                done.remove(target.id)

        @app.bulk("count", concurrency=4)
        async def count(item: Any) -> None:
            done.append(item)

    return register


BATCH = {"batch_name": "b", "target_type": "thing", "batch_type": "touch"}
JOB = {"name": "j", "business": "count", "source": 5}


async def ended(cluster: Cluster, handle: Any) -> Run:
    (run,) = await cluster.ended(handle)
    return run


@pytest.mark.parametrize(
    ("handler", "payload", "items"),
    [
        (
            "fusee.batch",
            {"batch": {**BATCH, "targets": [{"target_id": "a"}, {"target_id": "b"}]}},
            ["a", "b"],
        ),
        ("fusee.bulk", {"job": JOB}, [0, 1, 2, 3, 4]),
        ("fusee.workflow", {"workflow": "w"}, []),
    ],
)
async def test_each_starter_starts_what_it_names_and_ends_with_it(
    cluster: Cluster, handler: str, payload: dict[str, Any], items: list[Any]
) -> None:
    done: list[Any] = []
    registered(done)(cluster.app)
    async with cluster.start_worker(prepare=registered(done)):
        await cluster.app.workflows.create({"name": "w", "nodes": [{"name": "a", "handler": "work"}]})
        # As a fire or a node does; callers themselves may only name `fusee.bulk`.
        (accepted,) = await cluster.app.store.run_writer.enqueue([RunSpec(handler=handler, payload=payload)])
        run = await ended(cluster, accepted)
    assert run.status is RunStatus.SUCCEEDED, run.error
    assert sorted(done) == items


async def test_a_bulk_job_that_a_run_asks_for_reads_only_what_is_allowed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A permission to create runs is no permission to read any file of the machine."""
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    done: list[Any] = []
    registered(done)(cluster.app)
    source = {"kind": "file", "path": str(secret)}
    async with cluster.start_worker(prepare=registered(done)):
        handle = await cluster.app.enqueue("fusee.bulk", {"job": {**JOB, "source": source}})
        run = await ended(cluster, handle)
    assert run.status is RunStatus.FAILED
    assert "executors.bulk.folders" in (run.error or "")
    assert not done


async def test_every_call_of_the_sdk_that_starts_something_works_inside_a_handler(cluster: Cluster) -> None:
    done: list[Any] = []
    said: dict[str, Any] = {}

    def prepare(app: Fusee) -> None:
        registered(done)(app)

        @app.handler("parent")
        async def parent() -> None:
            said["one"] = (await app.enqueue("work", {"value": 1})).id
            many = await app.enqueue_each("work", [{"value": 2}, {"value": 3}])
            said["each"] = [handle.id for handle in many]
            keyed = [await app.enqueue("work", {"value": 4}, idempotency_key="k") for _ in range(2)]
            said["keyed"] = [(handle.id, handle.created) for handle in keyed]
            batch, new = await app.batches.create(BATCH, [{"target_id": "t"}], apply=True)
            said["batch"] = (batch.id, new)
            job, new = await app.bulk_jobs.create(JOB, start=True)
            said["job"] = (job.id, new)
            said["line"] = await app.bulk_jobs.log(job.id, "seen by the handler")
            said["workflow"] = (await app.workflows.start("w")).id
            said["fire"] = (await app.tasks.trigger("t", payload={"value": 9})).run_ids

    prepare(cluster.app)
    async with cluster.start_worker(prepare=prepare):
        app = cluster.app
        await app.workflows.create({"name": "w", "nodes": [{"name": "a", "handler": "work"}]})
        await app.tasks.create({"name": "t", "handler": "work"})
        run = await ended(cluster, await app.enqueue("parent"))
        assert run.status is RunStatus.SUCCEEDED, run.error
        (first, created), (second, again) = said["keyed"]
        assert first == second and (created, again) == (True, False)
        runs = [said["one"], *said["each"], first, *said["fire"]]
        ends = [await app.runs.wait(number, 30) for number in runs]
        assert [one.result for one in ends] == [1, 2, 3, 4, 9]
        await app.workflows.wait(said["workflow"], timeout=30)

        async def over() -> bool:
            batch = await app.batches.get(said["batch"][0])
            job = await app.bulk_jobs.get(said["job"][0])
            return (str(batch.status), str(job.status)) == ("success", "finished")

        await until(over, 30, "the batch's and the job's end")
        assert said["batch"][1] is True and said["job"][1] is True
        texts = [line.text for line in await app.bulk_jobs.logs(said["job"][0], kind="data")]
    assert texts == ["seen by the handler"]
    assert sorted(done, key=str) == [0, 1, 2, 3, 4, "t"]


async def test_a_business_on_a_worker_without_a_database_is_asked_before_a_job_is_accepted(
    cluster: Cluster,
) -> None:
    asked: list[int] = []

    def prepare(app: Fusee) -> None:
        async def check(job: BulkContext) -> None:
            asked.append(job.job_id)
            if job.data != "good":
                raise ValueError("not that one")

        @app.bulk("picky", on_create=check)
        async def picky(item: int) -> None: ...

    async with cluster.start_worker(prepare=prepare):
        fields = {"name": "j", "business": "picky", "source": 3}
        with pytest.raises(Invalid, match="refuses the job: not that one"):
            await cluster.app.bulk_jobs.create(fields)
        job, _ = await cluster.app.bulk_jobs.create(fields, data="good")
    assert asked[-1] == job.id and len(asked) == 2


async def test_a_request_that_is_delivered_twice_makes_one_of_each(rabbit: Cluster) -> None:
    """As if the first reply was lost and another dispatcher served the repeat."""
    done: list[Any] = []
    registered(done)(rabbit.app)
    async with rabbit.start_worker(prepare=registered(done)) as node:
        rpc: Any = node.app.rpc
        send, sent = rpc.send, list[str]()

        async def twice(request: RpcRequest, timeout: float | None) -> RpcReply:
            sent.append(request.call)
            await send(request, timeout)
            return await send(request, timeout)

        rpc.send = twice
        await rabbit.app.workflows.create({"name": "w", "nodes": [{"name": "a", "handler": "work"}]})
        await rabbit.app.tasks.create({"name": "t", "handler": "work"})
        inside = node.app
        run = await inside.enqueue("work", {"value": 1})
        assert run.created, "the first answer was lost, not given to someone else"
        batch, _ = await inside.batches.create(BATCH, [{"target_id": "t"}])
        job, _ = await inside.bulk_jobs.create(JOB)
        started = await inside.workflows.start("w")
        fired = await inside.tasks.trigger("t")
        assert (run.id > 0, batch.id, job.id, started.id, len(fired.run_ids)) == (True, 1, 1, 1, 1)
        assert set(sent) >= {"submit", "create_batch", "create_bulk_job", "trigger_task"}


def strays(folder: Path) -> list[Path]:
    """Files that were created by accident, such as a database."""
    return list(folder.iterdir())


CALLS = {
    "a list of runs": lambda app: app.runs.list(RunFilter()),
    "a run's end": lambda app: app.runs.wait(1),
    "a cancel": lambda app: app.runs.cancel(1),
    "a new task": lambda app: app.tasks.create({"name": "x", "handler": "work"}),
    "a rollback": lambda app: app.batches.roll_back(1),
    "a stop": lambda app: app.bulk_jobs.stop(1),
    "a new workflow": lambda app: app.workflows.get("w"),
    "a limit": lambda app: app.queues.list(),
    "its own transaction": lambda app: app.store.run_writer.enqueue([]),
}


@pytest.mark.parametrize("call", CALLS)
async def test_everything_else_is_refused_by_name(
    rabbit: Cluster, call: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("working")
    monkeypatch.chdir(folder)
    async with rabbit.start_worker() as node:
        with pytest.raises(NoDatabase, match=r"has no database, so .* is not possible here"):
            await CALLS[call](node.app)
    assert not strays(folder)


async def test_a_handler_in_a_thread_reaches_the_platform(rabbit: Cluster) -> None:
    def prepare(app: Fusee) -> None:
        @app.handler("sync")
        def sync() -> int:
            return asyncio.run(_enqueue(app))

    prepare(rabbit.app)
    async with rabbit.start_worker(prepare=prepare):
        run = await ended(rabbit, await rabbit.app.enqueue("sync"))
        assert run.status is RunStatus.SUCCEEDED, run.error
        child = await rabbit.app.runs.wait(int(run.result), 30)
    assert child.result == "from a thread"


async def _enqueue(app: Fusee) -> int:
    return (await app.enqueue("work", {"value": "from a thread"})).id
