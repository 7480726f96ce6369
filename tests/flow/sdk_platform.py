"""Stories of batches, bulk jobs, businesses, callbacks, dead letters, the fleet, and the app itself."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import create_engine
from sqlalchemy.orm import Session as SyncSession

from fusee import Fusee, RunFailed, RunSpec
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.engine.model.queue import QueueLimits
from fusee.errors import Conflict, Denied, NotFound
from fusee.executors.python.executor import PythonExecutor
from fusee.runs.service.callbacks import callback_end
from fusee.surfaces.rest.serving import ApiServer
from fusee.tasks.store.tasks import TaskFilter
from tests.flow.sdk import Stage, story, until

__all__: list[str] = []


@story("batches")
async def _(stage: Stage, batches: Any) -> None:
    def lights(*names: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
        header = {"batch_name": "light", "batch_type": "set_level", "target_type": "lamp"}
        return header, [{"target_id": name, "before": {"level": 0}, "after": {"level": 5}} for name in names]

    async def become(batch_id: int, status: str) -> None:
        async def look() -> str:
            return str((await batches.get(batch_id)).status)

        await until(look, status)

    stage.lamps |= {"a": 1, "b": 5, "c": 2}
    batch, new = await batches.create(*lights("a", "b", "c"), idempotency_key="k")
    assert new and (await batches.create(*lights("a", "b", "c"), idempotency_key="k"))[0].id == batch.id
    planned = await batches.plan(batch.id, TargetFilter())
    assert [(one.action, dict(one.changes)) for one in planned] == [
        ("change", {"level": (1, 5)}),
        ("none", {}),
        ("change", {"level": (2, 5)}),
    ]
    recorded = await batches.recorded_plan(batch.id, TargetFilter())
    assert [dict(changes) for _, changes in recorded] == [{"level": (0, 5)}] * 3
    assert stage.lamps == {"a": 1, "b": 5, "c": 2}, "a plan does nothing"

    await batches.apply(batch.id)
    await batches.wake(batch.id)
    await become(batch.id, "success")
    assert stage.lamps == {"a": 5, "b": 5, "c": 5}
    assert [task.status for task in await batches.tasks(batch.id, TargetFilter())] == ["success"] * 3
    kept, counted = await batches.recount(batch.id)
    assert dict(kept) == dict(counted) and {status for status in kept if kept[status]} == {"success"}
    await batches.roll_back(batch.id, targets=["a"])
    await become(batch.id, "partial_rollback")
    assert stage.lamps == {"a": 1, "b": 5, "c": 5}

    stage.broken |= {"d"}
    failed, _ = await batches.create(*lights("d"), apply=True)
    await become(failed.id, "fail")
    with pytest.raises(Conflict):
        await batches.cancel(failed.id)
    stage.broken.clear()
    assert (await batches.retry(failed.id))[1] == 1
    await become(failed.id, "success")
    assert stage.lamps["d"] == 5

    header, targets = lights("e")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go_on.wait()
        for target in targets:
            yield target

    upload = asyncio.create_task(batches.create(header, slowly(), idempotency_key="slow"))
    await begun.wait()
    ended = asyncio.create_task(batches.upload_ended("slow", None))
    assert not (await asyncio.wait([ended], timeout=0.2))[0], "it is still being uploaded"
    go_on.set()
    await asyncio.wait_for(ended, 30)
    unwanted, _ = await upload
    await batches.cancel(unwanted.id, reason="not today")
    await become(unwanted.id, "cancel")
    assert "e" not in stage.lamps
    assert {one.id for one in await batches.list(BatchFilter())} == {batch.id, failed.id, unwanted.id}


@story("bulk_jobs")
async def _(stage: Stage, jobs: Any) -> None:
    async def become(job_id: int, status: str) -> Any:
        async def look() -> str:
            return str((await jobs.get(job_id)).status)

        await until(look, status)
        return await jobs.get(job_id)

    stage.broken |= {"1"}
    news = {"name": "news", "business": "mail", "source": 3}
    job, new = await jobs.create(news, idempotency_key="k")
    assert new and (await jobs.create(news, idempotency_key="k")) == (job, False)
    await jobs.set_data(job.id, {"template": 4})
    await jobs.adjust(job.id, concurrency=2)
    made = await jobs.get(job.id)
    assert (made.status, made.data, made.concurrency) == ("created", {"template": 4}, 2)
    await jobs.start(job.id)
    done = await become(job.id, "finished")
    assert (done.ended, done.quarantined, sorted(stage.mailed)) == (3, 1, [0, 2])
    assert [(segment.first, segment.stop, segment.state) for segment in await jobs.segments(job.id)] == [
        (0, 3, "done")
    ]
    assert [item.index for item in await jobs.quarantine(job.id)] == [1]
    assert [item.index async for item in jobs.quarantined(job.id)] == [1]
    line = await jobs.log(job.id, "all is well", who="ada")
    assert [(one.id, one.who, one.text) for one in await jobs.logs(job.id, kind="data")] == [
        (line, "ada", "all is well")
    ]

    stage.broken.clear()
    rerun = await jobs.rerun_quarantine(job.id, start=True)
    await become(rerun.id, "finished")
    assert sorted(stage.mailed) == [0, 1, 2]
    undo = await jobs.undo(job.id, start=True)
    assert (await become(undo.id, "finished")).undo_of == job.id
    assert sorted(stage.unmailed) == [0, 2], "what was quarantined was not done, and is not undone"

    users = Path(stage.database).with_name("users.txt")
    users.write_text("10\n")
    grows, _ = await jobs.create({**news, "source": {"kind": "file", "path": str(users)}}, start=True)
    await become(grows.id, "finished")
    users.write_text("10\n11\n")
    assert (await jobs.extend(grows.id, start=True)).total == 2
    await become(grows.id, "finished")
    assert stage.mailed[3:] == ["10", "11"]
    stage.mailed.clear()

    slow, _ = await jobs.create({**news, "name": "slow", "source": 1000, "rate": 1}, start=True)
    assert [(load.business, load.status, load.jobs) for load in await jobs.loads()] == [
        ("mail", "running", 1)
    ]
    await jobs.stop(slow.id)
    stopped = await become(slow.id, "stopped")
    assert stopped.ended < 1000
    changed = await jobs.adjust(slow.id, rate="unlimited", alerts={"webhook": "https://ops.example"})
    assert changed.spec.alerts is not None and changed.spec.alerts.on_stalled
    await jobs.resume(slow.id)
    assert (await become(slow.id, "finished")).ended == 1000
    assert sorted(stage.mailed) == list(range(1000)), "each item once"
    await jobs.delete(grows.id)
    with pytest.raises(NotFound):
        await jobs.get(grows.id)
    assert {one.id for one in await jobs.list()} == {job.id, rerun.id, undo.id, slow.id}


@story("business_registry")
async def _(stage: Stage, registry: Any) -> None:
    async def mail(*users: str) -> list[tuple[str, list[str]]]:
        """The requests that a job of the business makes: (who sends, the items)."""
        fields = {"name": "news", "business": "crm", "source": list(users), "concurrency": 1}
        job, _ = await stage.app.bulk_jobs.create(fields, start=True)

        async def look() -> tuple[str, int]:
            seen = await stage.app.bulk_jobs.get(job.id)
            return str(seen.status), seen.quarantined

        await until(look, ("finished", 0))
        sent = [stage.asked.get_nowait() for _ in range(stage.asked.qsize())]
        return [(head["X-From"], [one["item"] for one in body["items"]]) for head, body in sent]

    crm = {"name": "crm", "chunk": f"{stage.service}/mail", "chunk_size": 2, "headers": {"X-From": "ada"}}
    await registry.register(crm)
    assert (await registry.get("crm")).registered.spec.chunk_size == 2
    assert await mail("a", "b", "c") == [("ada", ["a", "b"]), ("ada", ["c"])]
    await registry.update("crm", {"chunk_size": 3, "headers": {"X-From": "bob"}})
    assert await mail("a", "b", "c") == [("bob", ["a", "b", "c"])]
    other = {**crm, "name": "other"}
    assert [(await registry.register_once("k", other))[1] for _ in range(2)] == [True, False]
    assert [(one.name, one.kind) for one in await registry.list()] == [
        ("crm", "http"),
        ("mail", "python"),
        ("other", "http"),
    ]
    await registry.delete("other")
    with pytest.raises(NotFound):
        await registry.get("other")
    assert [one.name for one in await registry.list()] == ["crm", "mail"]


@story("callbacks")
async def _(stage: Stage, callbacks: Any) -> None:
    call = {
        "url": f"{stage.service}/later",
        "mode": "async",
        "method": "POST",
        "body": {},
        "callback_hmac": True,
    }
    run = await stage.app.enqueue("http", call, executor="http")
    headers, _ = await asyncio.wait_for(stage.asked.get(), 30)
    token = headers["X-Fusee-Callback-Token"]

    async def status() -> str:
        return str((await stage.app.runs.peek(run.id)).status)

    await until(status, "waiting")
    with pytest.raises(NotFound):
        await callbacks.known(run.id, "no such token")
    known = await callbacks.known(run.id, token)
    assert (known.run_id, known.attempt) == (run.id, 1)
    body = b'{"result": 42}'
    with pytest.raises(Denied):
        callbacks.verify(known, token, body, "sha256=0000")
    callbacks.verify(
        known, token, body, "sha256=" + hmac.new(token.encode(), body, hashlib.sha256).hexdigest()
    )
    assert (await callbacks.answer(known, callback_end(result=42))).status == "succeeded"
    assert await run.result(30) == 42
    with pytest.raises(Conflict, match="the first counts"):
        await callbacks.answer(known, callback_end("failed"))


@story("dead_letters")
async def _(stage: Stage, letters: Any) -> None:
    store = stage.app.store
    # Runs that no worker here takes, handed to a message broker that gives their messages up.
    runs = [await stage.app.enqueue("elsewhere", allow_unknown=True) for _ in range(2)]
    lanes = [lane for lane, about in (await store.lanes.all_lanes()).items() if about.handler == "elsewhere"]
    sent = await store.dispatches.dispatch(dict.fromkeys(lanes, 10))
    assert [one.id for one in sent] == [run.id for run in runs]
    for one in sent:
        await store.dead_letters.keep("q", "rejected", b"{}", [(one.id, one.attempt)], str(one.id))
    first, second = await letters.list()
    assert (first.run_ids, (await letters.get(second.id)).run_ids) == ((runs[0].id,), (runs[1].id,))
    assert await store.dispatches.republish(lanes[0], sent[0].level, 0, 10) == [], "both are held"
    assert await letters.requeue(first.id) == 1
    assert [one.id for one in await store.dispatches.republish(lanes[0], sent[0].level, 0, 10)] == [
        runs[0].id
    ]
    assert await letters.drop(second.id) == 1
    assert [str((await stage.app.runs.peek(run.id)).status) for run in runs] == ["dispatched", "canceled"]
    assert await letters.list() == []
    with pytest.raises(NotFound):
        await letters.get(first.id)


@story("queues")
async def _(stage: Stage, queues: Any) -> None:
    assert (await queues.pause("mail", True)).limits.paused
    run = await stage.app.enqueue("greet", queue="mail")
    beside = await stage.app.enqueue("greet")
    await beside.result(30)
    seen = await queues.get("mail")
    assert (seen.pending, seen.limits.paused) == (1, True)
    await queues.pause("mail", False)
    assert await run.result(30) == "hello you"

    await queues.limit("mail", QueueLimits(concurrency=1, rate=1000.0))
    hangs = await stage.app.enqueue("hang", queue="mail")
    await asyncio.wait_for(stage.hanging.wait(), 30)
    waits = await stage.app.enqueue("greet", queue="mail")
    assert ((await queues.get("mail")).running, (await queues.get("mail")).pending) == (1, 1)
    changed = await queues.change("mail", {"concurrency": None})
    assert (changed.limits.concurrency, changed.limits.rate) == (None, 1000.0)
    assert await waits.result(30) == "hello you"
    await hangs.cancel()
    assert (await queues.place("mail", "least_loaded")).limits.strategy == "least_loaded"
    assert await (await stage.app.enqueue("greet", queue="mail")).result(30) == "hello you"
    assert "mail" in [one.name for one in await queues.list()]


@story("workers")
async def _(stage: Stage, workers: Any) -> None:
    async def names() -> list[str]:
        return [one.info.name for one in await workers.list()]

    await (await stage.app.enqueue("greet")).result(30)
    [name] = await names()
    assert (await workers.get(name)).state == "alive"
    told = await workers.drain(name)
    assert [one.info.name for one in told] == [name]
    assert await workers.wait_until_down(told, 30) == []
    assert (await names(), (await workers.get(name)).state) == ([], "ended")
    left = await stage.app.enqueue("greet")
    assert (await stage.app.runs.peek(left.id)).status == "pending", "nobody is there to run it"


@story("keys")
async def _(stage: Stage, keys: Any) -> None:
    assert not await keys.any()
    number, key = await keys.create("ada", "viewer")
    assert await keys.any()
    assert await keys.any_ever()
    principal, known_as = await keys.principal(key)
    assert (principal.name, principal.grants, known_as) == ("ada", {"default": "viewer"}, number)
    assert await keys.principal("fusee_of-somebody-else") is None
    await keys.was_used(number)
    assert (await keys.list())[0].last_used_at is not None
    assert [(one.id, one.name) for one in await keys.list()] == [(number, "ada")]
    async with serving(ApiServer(stage.app.api())) as url, aiohttp.ClientSession(url) as client:
        bearer = {"Authorization": f"Bearer {key}"}
        assert (await client.get("/api/v1/runs", headers=bearer)).status == 200
        new, _ = await keys.rotate(number, overlap=60)
        await keys.revoke(number)
        assert await keys.principal(key) is None
        assert {one.id: one.revoked_at is not None for one in await keys.list()} == {
            number: True,
            new.id: False,
        }


@story("handles")
async def _(stage: Stage, of: Any) -> None:
    assert await of(await stage.app.enqueue("greet")).result(30) == "hello you"
    failed = of(await stage.app.enqueue("fail"))
    with pytest.raises(RunFailed, match="no luck"):
        await failed.result(30)
    assert (await failed.wait(30)).status == "failed"
    delayed = of(await stage.app.enqueue("greet", delay=3600))
    assert (await delayed.cancel("not today")).canceled
    assert (await delayed.wait(30)).status == "canceled"


@story("app")
async def _(stage: Stage, of: Any) -> None:
    app = of(stage.app)

    # Every way to enqueue.
    @app.handler("double")
    async def double(number: int) -> int:
        return 2 * number

    assert PythonExecutor in map(type, app.executors().values())
    assert await (await app.enqueue("greet", {"name": "Ada"})).result(30) == "hello Ada"
    url = f"sqlite:///{stage.database}"
    engine = create_engine(url)
    handles = [
        *await app.enqueue_many([RunSpec(handler="greet")] * 2),
        *await app.enqueue_each("greet", [{}, None]),
    ]
    with engine.begin() as connection:
        handles.append(await app.enqueue("greet", within=connection))
    with SyncSession(engine) as session, session.begin():
        handles.append(await app.enqueue("greet", within=session))
    engine.dispose()
    assert [await handle.result(30) for handle in handles] == ["hello you"] * 6

    # A second worker, which knows the new handler, and what was declared.
    @app.bulk("count")
    async def count(item: int) -> None: ...

    @app.operation("lamp", "look")
    class Look:
        async def finished(self, target: Any) -> bool:
            return True

        async def apply(self, target: Any) -> None: ...

        async def undo(self, target: Any) -> None: ...

    @app.task(every="1h")
    async def tidy() -> str:
        return "tidy"

    assert [(change.name, change.action) for change in await app.apply_tasks()] == [("tidy", "create")]
    assert [task.name for task in await stage.app.tasks.list(TaskFilter())] == ["tidy"]
    async with parts(app.worker(), app.dispatcher()):
        assert await (await app.enqueue(double, {"number": 21})).result(30) == 42
        job, _ = await stage.app.bulk_jobs.create({"name": "c", "business": "count", "source": 3}, start=True)
        header = {"batch_name": "l", "batch_type": "look", "target_type": "lamp"}
        batch, _ = await stage.app.batches.create(header, ["1"], apply=True)

        async def look() -> tuple[str, str]:
            return str((await stage.app.bulk_jobs.get(job.id)).status), str(
                (await stage.app.batches.get(batch.id)).status
            )

        await until(look, ("finished", "success"))
        [fired] = (await stage.app.tasks.trigger("tidy")).run_ids
        assert (await stage.ended(fired))[0].result == "tidy"

    # Servers.
    async with serving(ApiServer(app.api())) as api, aiohttp.ClientSession(api) as client:
        answer = await client.get(f"/api/v1/runs/{fired}")
        assert (answer.status, (await answer.json())["result"]) == (200, "tidy")
    async with serving(ApiServer(app.status())) as status, aiohttp.ClientSession(status) as client:
        assert [(await client.get(path)).status for path in ("/readyz", "/api/v1/runs")] == [200, 404]
    rpc = app.grpc()
    async with parts(rpc), grpc.aio.insecure_channel(rpc.address) as channel:
        told = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert told.status == health_pb2.HealthCheckResponse.SERVING

    # Another app on the same database.
    second, closed = of(Fusee(config=stage.app.config)), list[bool]()

    async def closer() -> None:
        closed.append(True)

    second.on_close(closer)
    await second.open()
    assert (await second.runs.peek(fired)).result == "tidy" and not closed
    await second.close()
    assert closed
    async with second.running(worker=False):
        assert await (await second.enqueue("greet")).result(30) == "hello you", "by the first one's worker"


@asynccontextmanager
async def parts(*services: Any) -> AsyncIterator[None]:
    """Each of them runs, and is stopped at the end."""
    tasks = [asyncio.create_task(service.run()) for service in services]
    for service in services:
        if hasattr(service, "started"):
            await asyncio.wait_for(service.started.wait(), 30)
    try:
        yield
    finally:
        for service in services:
            service.stop()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[str]:
    async with parts(server):
        yield server.url
