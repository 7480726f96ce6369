"""Calls that a service accepts now and answers later, with a real service, a real API and a real worker."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fusee import Fusee
from fusee.access.service import digest
from fusee.engine.dispatcher import Expire
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Run
from fusee.events import RunAttemptEnded, RunRefused
from fusee.testing import TestKit
from tests.flow.conftest import Served, serve

TOKEN, URL = "X-Fusee-Callback-Token", "X-Fusee-Callback-Url"
METHOD = "X-Fusee-Callback-Method"
TWICE = RetryPolicy(max_attempts=2, base=0)
LOCAL = {"http": {"allow_private": ["127.0.0.0/8"]}}


@dataclass
class Call:
    """What the service was sent, and so all it knows."""

    url: str
    token: str
    attempt: int
    body: Any


@dataclass
class Service:
    """Takes every call with 202 and does nothing, or what the test says."""

    url: str = ""
    calls: asyncio.Queue[Call] = field(default_factory=asyncio.Queue)
    before_answering: Callable[[Call], Any] | None = None
    status: int = 202
    told: dict[str, str] = field(default_factory=dict)
    """The headers of the last call."""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.told = dict(request.headers)
        attempt = int(request.headers["X-Fusee-Attempt"])
        call = Call(request.headers[URL], request.headers[TOKEN], attempt, json.loads(body or b"null"))
        if self.before_answering is not None:
            await self.before_answering(call)
        self.calls.put_nowait(call)
        return web.Response(status=self.status, text=f"accepted, thank you for {call.token}")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    this = Service()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", this.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    this.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield this
    await runner.cleanup()


def reached_at(app: Fusee, url: str) -> None:
    """The port is known only now."""
    api = app.config.api.model_copy(update={"public_url": url})
    app.config = app.config.model_copy(update={"api": api})


@asynccontextmanager
async def platform(**sections: Any) -> AsyncIterator[Served]:
    """An API, a worker and a dispatcher that looks often; services on this machine may be called."""
    often = {"dispatcher": {"schedule_interval_seconds": 0.05}}
    async with serve(executors=LOCAL, **often, **sections) as served:
        reached_at(served.app, served.url)
        async with served.app.running():
            yield served


@pytest.fixture
async def up() -> AsyncIterator[Served]:
    async with platform() as served:
        yield served


async def enqueue(
    served: Served, service: Service, *, retry: RetryPolicy | None = None, **fields: Any
) -> int:
    payload = {"url": service.url, "mode": "async", "body": {"back": "{{callback_url}}"}, **fields}
    return (await served.app.enqueue("http", payload, executor="http", retry=retry)).id


async def until(served: Served, run_id: int, status: str) -> Run:
    async with asyncio.timeout(20):
        while True:
            run = await served.app.runs.peek(run_id)
            if run.status == status:
                return run
            await asyncio.sleep(0.005)


async def answer(
    call: Call, body: Any = None, *, data: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    """What the service sends back."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(call.url, json=body, data=data, headers={TOKEN: call.token, **headers}) as said,
    ):
        return said.status, await said.json(content_type=None)


# --- the way it goes ------------------------------------------------------------------------------------


async def test_a_call_is_accepted_now_and_answered_later(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service, callback_timeout=600)
    call = await service.calls.get()
    assert call.url == f"{up.url}/api/v1/callbacks/{run_id}"
    assert call.body == {"back": call.url}
    run = await until(up, run_id, "waiting")
    assert run.callback_deadline is not None and run.started_at is not None
    assert 599 < (run.callback_deadline - run.started_at) / 1e6 < 620

    _, shown, _ = await up.ask("GET", f"/api/v1/runs/{run_id}")
    assert (shown["status"], shown["effect"], shown["result"]) == ("waiting", "unknown", None)
    assert shown["callback_deadline"].endswith("Z")
    assert shown["output"] == "accepted, thank you for ***"
    assert call.token not in json.dumps(shown), "whoever may look at a run may not thereby end it"
    _, listed, _ = await up.ask("GET", "/api/v1/runs?status=waiting")
    assert [one["id"] for one in listed["items"]] == [run_id]

    assert await answer(call, {"result": {"rows": 3}}) == (200, {"id": run_id, "status": "succeeded"})
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.result, run.effect) == ("succeeded", {"rows": 3}, "applied")
    assert run.callback_deadline is None
    _, text, _ = await up.ask("GET", "/metrics")
    assert 'fusee_runs_finished_total{handler="http",status="succeeded"} 1.0' in text


async def test_no_body_is_success_and_the_token_may_come_as_a_bearer(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service)
    call = await service.calls.get()
    await until(up, run_id, "waiting")
    headers = {"Authorization": f"Bearer {call.token}"}
    status, said, _ = await up.ask("POST", f"/api/v1/callbacks/{run_id}", headers=headers)
    assert (status, said["status"]) == (200, "succeeded")
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.result) == ("succeeded", None)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_service_is_told_with_which_method_to_call_back(
    up: Served, service: Service, method: str
) -> None:
    run_id = await enqueue(up, service, callback_method=method, body={"with": "{{callback_method}}"})
    call = await service.calls.get()
    assert (call.body, service.told[METHOD]) == ({"with": method}, method)
    await until(up, run_id, "waiting")
    path = f"/api/v1/callbacks/{run_id}"
    assert (await up.ask("GET", path, headers={TOKEN: call.token}))[0] == 405
    status, said, _ = await up.ask(method, path, headers={TOKEN: call.token}, json={"result": 1})
    assert (status, said["status"]) == (200, "succeeded")


async def test_a_service_may_be_faster_than_its_own_answer(up: Served, service: Service) -> None:
    said: list[tuple[int, Any]] = []

    async def at_once(call: Call) -> None:
        said.append(await answer(call, {"result": "done before you knew"}))

    service.before_answering = at_once
    run = await up.app.runs.wait(run_id := await enqueue(up, service), 20)
    assert said == [(202, {"id": run_id, "status": "running"})]
    assert (run.status, run.result, run.attempt) == ("succeeded", "done before you knew", 1)


async def test_what_a_service_answered_counts_though_its_call_failed(up: Served, service: Service) -> None:
    async def at_once(call: Call) -> None:
        await answer(call, {"result": "done"})

    service.before_answering, service.status = at_once, 500
    run = await up.app.runs.wait(await enqueue(up, service), 20)
    assert (run.status, run.result, run.attempt) == ("succeeded", "done", 1)


async def test_a_failure_is_tried_again_and_gets_a_new_token(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service, retry=TWICE)
    first = await service.calls.get()
    await until(up, run_id, "waiting")
    said = await answer(first, {"status": "failed", "error": "disk full", "retry_after": 0.01})
    assert said == (200, {"id": run_id, "status": "delayed"})
    second = await service.calls.get()
    await until(up, run_id, "waiting")
    assert (first.attempt, second.attempt) == (1, 2) and first.token != second.token

    status, problem = await answer(first)
    assert (status, problem["type"]) == (409, "urn:fusee:problem:conflict")
    assert (await answer(second, {"status": "failed", "error": "still full"}))[0] == 200
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.error, run.spent) == ("failed", "still full", 2)
    (attempt,) = (await up.app.runs.get(run_id)).attempts
    assert (attempt.attempt, attempt.end, attempt.error) == (1, "failed", "disk full")


async def test_a_service_may_say_that_trying_again_is_of_no_use(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service)
    call = await service.calls.get()
    await until(up, run_id, "waiting")
    await answer(
        call, {"status": "failed", "error": "no such account", "abandon": True, "result": {"code": 7}}
    )
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.error, run.result, run.attempt) == ("failed", "no such account", {"code": 7}, 1)


async def test_a_call_that_is_not_accepted_is_tried_again(up: Served, service: Service) -> None:
    service.status = 503
    run_id = await enqueue(up, service, retry=TWICE)
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.attempt) == ("failed", 2)
    calls = [service.calls.get_nowait() for _ in range(2)]
    assert [(await answer(call))[0] for call in calls] == [409, 409]


# --- who may answer -------------------------------------------------------------------------------------


async def test_the_token_is_all_that_an_answer_needs(service: Service) -> None:
    async with platform(api={"keys": [digest("k" * 40)]}) as up:
        run_id = await enqueue(up, service)
        call = await service.calls.get()
        await until(up, run_id, "waiting")
        path = f"/api/v1/callbacks/{run_id}"
        for method, other in (
            ("GET", path),
            ("DELETE", path),
            ("POST", f"{path}/"),
            ("POST", f"{path}/x"),
            ("POST", "/api/v1/callbacks/"),
            ("POST", f"/api/v1/runs/{run_id}/cancel"),
        ):
            status, _, _ = await up.ask(method, other, headers={TOKEN: call.token})
            assert status == 401, f"{method} {other} is let in without a key"
        assert (await answer(call))[0] == 200


async def test_a_wrong_token_tells_nothing(up: Served, service: Service) -> None:
    ids = [await enqueue(up, service) for _ in range(2)]
    calls = {call.url: call for call in (await service.calls.get(), await service.calls.get())}
    for run_id in ids:
        await until(up, run_id, "waiting")
    mine, other = (calls[f"{up.url}/api/v1/callbacks/{run_id}"] for run_id in ids)
    nowhere = f"{up.url}/api/v1/callbacks/{10**9}"
    tries = [
        Call(mine.url, "wrong", 1, None),
        Call(mine.url, other.token, 1, None),
        Call(nowhere, "wrong", 1, None),
        Call(nowhere, mine.token, 1, None),
    ]
    said = [await answer(one, {"nonsense": 1}) for one in tries]
    for _, problem in said:
        del problem["request_id"]
    assert [status for status, _ in said] == [404] * 4
    assert all(problem == said[0][1] for _, problem in said), "a run that exists looks like one that does not"

    status, problem, _ = await up.ask("POST", f"/api/v1/callbacks/{ids[0]}")
    assert (status, problem["type"]) == (401, "urn:fusee:problem:no-key")
    assert (await answer(Call(mine.url, "x" * 201, 1, None)))[0] == 401
    assert [(await up.app.runs.peek(run_id)).status for run_id in ids] == ["waiting", "waiting"]


async def test_a_signed_answer(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service, callback_hmac=True)
    call = await service.calls.get()
    await until(up, run_id, "waiting")
    body = b'{"result":  "signed"}'
    kind = {"Content-Type": "application/json"}
    right = "sha256=" + hmac.new(call.token.encode(), body, hashlib.sha256).hexdigest()
    for wrong in (
        {},
        {"X-Fusee-Signature": right[:-1] + ("0" if right[-1] != "0" else "1")},
        {"X-Fusee-Signature": right.removeprefix("sha256=")},
        {"X-Fusee-Signature": "sha256=ä"},
    ):
        status, problem = await answer(call, data=body, **kind, **wrong)
        assert status == 403 and "HMAC-SHA256" in problem["detail"]
    other = await answer(call, data=b'{"result": "forged"}', **kind, **{"X-Fusee-Signature": right})
    assert other[0] == 403
    assert (await answer(call, data=body, **kind, **{"X-Fusee-Signature": right}))[0] == 200
    assert (await up.app.runs.wait(run_id, 20)).result == "signed"


async def test_a_wrong_body_costs_nothing(service: Service) -> None:
    async with platform(api={"max_body": "2KiB"}) as up:
        run_id = await enqueue(up, service)
        call = await service.calls.get()
        await until(up, run_id, "waiting")
        for body, code, text in (
            ({"status": "done"}, 422, 'status must be "succeeded" or "failed"'),
            ({"stauts": "failed"}, 422, "did you mean 'status'"),
            ({"error": "why"}, 422, 'error goes with "status": "failed"'),
            ({"abandon": True}, 422, 'abandon goes with "status": "failed"'),
            ({"status": "failed", "retry_after": 3e6}, 422, "retry_after must be seconds from 0 to 2592000"),
            ({"status": "failed", "retry_after": 5, "abandon": True}, 422, "contradict each other"),
            ([], 422, "must be a JSON object"),
            ({"result": "x" * 3000}, 413, "over 2048 bytes"),
        ):
            status, problem = await answer(call, body)
            assert (status, text in problem["detail"]) == (code, True), problem
        assert (await answer(call, data=b"{", **{"Content-Type": "application/json"}))[0] == 400
        assert (await answer(call, data=b"done"))[0] == 415
        assert (await up.app.runs.peek(run_id)).status == "waiting"
        assert (await answer(call, {"status": "failed", "error": "nul\x00 is left out", "abandon": True}))[
            0
        ] == 200
        assert (await up.app.runs.wait(run_id, 20)).error == "nul is left out"


# --- how it ends otherwise ------------------------------------------------------------------------------


async def test_the_first_answer_counts(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service)
    call = await service.calls.get()
    await until(up, run_id, "waiting")
    said = await asyncio.gather(*(answer(call, {"result": n}) for n in range(5)))
    assert sorted(status for status, _ in said) == [200, 409, 409, 409, 409]
    (won,) = [n for n, (status, _) in enumerate(said) if status == 200]
    assert (await up.app.runs.wait(run_id, 20)).result == won
    assert "has been answered: the first counts" in (await answer(call))[1]["detail"]


async def test_a_callback_that_does_not_come_times_out(up: Served, service: Service) -> None:
    refused: asyncio.Queue[RunRefused] = asyncio.Queue()
    up.app.bus.subscribe(RunRefused, refused.put_nowait)
    run_id = await enqueue(up, service, callback_timeout=0.2, retry=TWICE)
    first, second = await service.calls.get(), await service.calls.get()
    run = await up.app.runs.wait(run_id, 20)
    assert (run.status, run.effect, run.attempt) == ("timed_out", "unknown", 2)
    assert run.error == "no callback came within 0.2 s of the call"
    for call in (first, second):
        status, problem = await answer(call)
        assert status == 409 and "is over without this answer (the run is timed_out)" in problem["detail"]
    assert [(refused.get_nowait().attempt) for _ in range(2)] == [1, 2]
    (attempt,) = (await up.app.runs.get(run_id)).attempts
    assert (attempt.end, attempt.late_end) == ("timed_out", "succeeded")


async def test_a_waiting_run_is_canceled_at_once(up: Served, service: Service) -> None:
    run_id = await enqueue(up, service)
    call = await service.calls.get()
    await until(up, run_id, "waiting")
    status, shown, _ = await up.ask("POST", f"/api/v1/runs/{run_id}/cancel", json={"reason": "enough"})
    assert (status, shown["status"], shown["effect"]) == (200, "canceled", "unknown")
    status, problem = await answer(call, {"result": 1})
    assert status == 409 and "the run is canceled" in problem["detail"]
    run = await up.app.runs.peek(run_id)
    assert (run.status, run.reason, run.result) == ("canceled", "enough", None)


async def test_a_wait_outlives_every_process(service: Service, tmp_path: Any) -> None:
    database = {"database": {"url": f"sqlite:///{tmp_path}/fusee.db"}}
    async with platform(**database) as up:
        run_id = await enqueue(up, service)
        call = await service.calls.get()
        await until(up, run_id, "waiting")
    async with platform(**database) as up:
        assert (await up.app.runs.peek(run_id)).status == "waiting"
        call.url = f"{up.url}/api/v1/callbacks/{run_id}"
        assert (await answer(call, {"result": "after the restart"}))[0] == 200
        assert (await up.app.runs.wait(run_id, 20)).result == "after the restart"


async def test_a_worker_that_nobody_can_call_back_calls_nobody(service: Service) -> None:
    async with serve(working=True, executors=LOCAL) as up:  # it listens on any free port
        run = await up.app.runs.wait(await enqueue(up, service), 20)
    assert run.status == "failed" and "set api.public_url" in (run.error or "")
    assert service.calls.empty()


async def test_the_kit_waits_and_times_out_by_its_own_clock(service: Service) -> None:
    async with serve(executors=LOCAL) as idle:
        app = Fusee(config=idle.app.config)
        reached_at(app, "https://fusee.example")
        async with TestKit(app) as kit:
            ended: list[RunAttemptEnded] = []
            app.bus.subscribe(RunAttemptEnded, ended.append)
            payload = {"url": service.url, "mode": "async", "callback_timeout": 60}
            run = await app.enqueue("http", payload, executor="http")
            await kit.run_until_idle()
            assert (await kit.run(run)).status == "waiting"
            assert ended == [], "its attempt has not ended"
            kit.clock.tick(seconds=59)
            assert await Expire(app.store, app.bus).run_once() == []
            kit.clock.tick(seconds=1)
            (one,) = await Expire(app.store, app.bus).run_once()
            assert (one.run_id, one.status) == (run.id, "delayed")
            (event,) = ended
            assert (event.run_id, event.attempt, event.end) == (run.id, 1, "timed_out")
            assert (event.status, event.handler, event.seconds) == ("delayed", "http", 60.0)
            call = await service.calls.get()
            assert call.url == f"https://fusee.example/api/v1/callbacks/{run.id}"
