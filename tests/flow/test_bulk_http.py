"""Businesses that are reached over HTTP: what goes over the wire, what each answer means, who starts what."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from fusee.bulk.business import HttpBusiness
from fusee.bulk.model.job import HTTP_HANDLER
from tests.chaos.inside import until
from tests.flow.test_api_bulk import JOBS, WORKER, become

BUSINESSES = "/api/v1/businesses"
OPEN = {"http": {"allow_private": ["127.0.0.0/8"]}}


class Service:
    """The other side: remembers what it was sent, and answers what it was told to."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answers: dict[str, Callable[[dict[str, Any]], web.Response]] = {}

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((request.path, body, dict(request.headers)))
        answer = self.answers.get(request.path)
        return web.json_response({}) if answer is None else answer(body)

    def about(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body, _ in self.asked if asked == path]


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", service.serve)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


@pytest_asyncio.fixture
async def platform(serving: Any) -> AsyncIterator[Any]:
    async with serving(worker=WORKER, executors=OPEN) as served:
        served.app.bulk_server.beat = 0.05
        async with served.app.running():
            yield served


async def registered(served: Any, **fields: Any) -> dict[str, Any]:
    status, answer, headers = await served.ask("POST", BUSINESSES, json={"name": "crm", **fields})
    assert (status, headers.get("ETag")) == (201, '"1"'), answer
    made: dict[str, Any] = answer
    return made


async def begun(served: Any, source: Any, **fields: Any) -> int:
    body = {"name": "letters", "business": "crm", "source": source, "item_backoff": 0.001, "start": True}
    status, job, _ = await served.ask("POST", JOBS, json={**body, **fields})
    assert status == 201, job
    return int(job["id"])


async def quarantine(served: Any, job_id: int) -> list[tuple[int, int, str]]:
    _, page, _ = await served.ask("GET", f"{JOBS}/{job_id}/quarantine")
    return [(one["index"], one["attempts"], one["error"]) for one in page["items"]]


def refuse(status: int, **headers: str) -> web.Response:
    return web.json_response({"detail": "not that one"}, status=status, headers=headers)


# --- items ------------------------------------------------------------------------------------------


async def test_each_item_is_posted_with_a_key_that_stays_the_same(platform: Any, service: Service) -> None:
    tries = Counter[int]()

    def once_more(body: dict[str, Any]) -> web.Response:
        tries[body["index"]] += 1
        return refuse(503) if tries[body["index"]] == 1 else web.json_response({})

    service.answers["/mail"] = once_more
    await registered(platform, item=f"{service.url}/mail", headers={"Authorization": "Bearer s3cret"})
    job_id = await begun(platform, ["ada", {"email": "bob@b"}], data={"subject": "hi"})
    job = await become(platform, job_id, "finished")
    assert (job["done"], job["retried"], job["quarantined"]) == (2, 2, 0)
    assert tries == Counter({0: 2, 1: 2})
    for path, body, headers in service.asked:
        index = body["index"]
        assert path == "/mail"
        assert body == {
            "job_id": job_id,
            "business": "crm",
            "undo": False,
            "index": index,
            "item": ["ada", {"email": "bob@b"}][index],
            "key": f"fusee-bulk-{job_id}-{index}",
        }
        assert headers["Idempotency-Key"] == body["key"]
        assert headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("status", "attempts", "words"),
    [
        (404, 1, "Abandon: HTTP 404"),
        (302, 1, "redirects are not followed"),
        (429, 3, "HTTP 429"),
        (500, 3, "HTTP 500"),
    ],
)
async def test_what_an_answer_to_an_item_means(
    platform: Any, service: Service, status: int, attempts: int, words: str
) -> None:
    def answer(body: dict[str, Any]) -> web.Response:
        if body["item"] != "bad":
            return web.json_response({})
        return web.Response(status=status, headers={"Location": "http://127.0.0.1/"})

    service.answers["/mail"] = answer
    await registered(platform, item=f"{service.url}/mail")
    job_id = await begun(platform, ["good", "bad", "fine"])
    job = await become(platform, job_id, "finished")
    ((index, tried, error),) = await quarantine(platform, job_id)
    assert (job["done"], index, tried) == (2, 1, attempts)
    assert words in error and service.url in error


async def test_a_service_that_asks_for_time_gets_it(platform: Any, service: Service) -> None:
    times: list[float] = []

    def busy(body: dict[str, Any]) -> web.Response:
        times.append(asyncio.get_running_loop().time())
        return refuse(429, **{"Retry-After": "1"}) if len(times) == 1 else web.json_response({})

    service.answers["/mail"] = busy
    await registered(platform, item=f"{service.url}/mail")
    await become(platform, await begun(platform, ["ada"]), "finished")
    assert times[1] - times[0] >= 1.0, "its backoff alone would have been a millisecond"


async def test_a_service_that_does_not_answer_in_time(platform: Any, service: Service) -> None:
    await registered(platform, item="http://127.0.0.1:9/mail", timeout="200ms")
    job_id = await begun(platform, ["ada"], item_attempts=2)
    await become(platform, job_id, "finished")
    ((_, attempts, error),) = await quarantine(platform, job_id)
    assert attempts == 2 and "no response (POST http://127.0.0.1:9)" in error


# --- chunks -----------------------------------------------------------------------------------------


async def test_a_chunk_tells_which_of_its_items_failed(platform: Any, service: Service) -> None:
    def answer(body: dict[str, Any]) -> web.Response:
        bad = [
            {"index": one["index"], "error": "no such user", "retry": False}
            if one["item"] == "never"
            else {"index": one["index"], "error": "mailbox is full"}
            for one in body["items"]
            if one["item"] in ("never", "full")
        ]
        return web.json_response({"failed": bad})

    service.answers["/mail"] = answer
    await registered(platform, chunk=f"{service.url}/mail", chunk_size=4)
    source = ["a", "never", "b", "full", "c", "d"]
    job_id = await begun(platform, source, concurrency=1)
    job = await become(platform, job_id, "finished")
    assert job["done"] == 4
    assert await quarantine(platform, job_id) == [
        (1, 1, "Abandon: no such user"),
        (3, 3, "mailbox is full"),
    ]
    sent = [[one["index"] for one in body["items"]] for body in service.about("/mail")]
    assert sorted(sent) == [[0, 1, 2, 3], [3], [3], [4, 5]], "only what failed is sent again"
    whole = next(body for body in service.about("/mail") if len(body["items"]) == 4)
    assert whole["items"][2] == {"index": 2, "item": "b", "key": f"fusee-bulk-{job_id}-2"}
    keys = {headers["Idempotency-Key"] for _, _, headers in service.asked}
    assert keys == {f"fusee-bulk-{job_id}-{first}-{last}" for first, last in ((0, 3), (3, 3), (4, 5))}


async def test_a_refused_chunk_is_sent_item_by_item_before_any_is_given_up(
    platform: Any, service: Service
) -> None:
    def answer(body: dict[str, Any]) -> web.Response:
        return refuse(422) if any(one["item"] == "bad" for one in body["items"]) else web.json_response({})

    service.answers["/mail"] = answer
    await registered(platform, chunk=f"{service.url}/mail", chunk_size=3)
    job_id = await begun(platform, ["a", "bad", "b"])
    job = await become(platform, job_id, "finished")
    assert job["done"] == 2
    ((index, _, error),) = await quarantine(platform, job_id)
    assert index == 1 and "not that one" in error


async def test_an_answer_that_names_items_of_another_chunk_is_not_believed(
    platform: Any, service: Service
) -> None:
    service.answers["/mail"] = lambda body: web.json_response({"failed": [{"index": 99}]})
    await registered(platform, chunk=f"{service.url}/mail", chunk_size=3)
    job_id = await begun(platform, ["a", "b"], item_attempts=1)
    await become(platform, job_id, "finished")
    assert [index for index, _, _ in await quarantine(platform, job_id)] == [0, 1]


# --- callbacks --------------------------------------------------------------------------------------


async def test_the_callbacks_in_turn_and_a_business_that_starts_the_job_itself(
    platform: Any, service: Service
) -> None:
    def refuse_without_data(body: dict[str, Any]) -> web.Response:
        return web.json_response({}) if body["data"] else refuse(400)

    service.answers["/create"] = refuse_without_data
    service.answers["/before"] = lambda body: web.json_response({"self_start": True})
    addresses = {
        name: f"{service.url}/{path}"
        for name, path in (
            ("item", "item"),
            ("on_create", "create"),
            ("before_run", "before"),
            ("on_finish", "finish"),
            ("undo", "undo"),
        )
    }
    await registered(platform, with_data=True, defaults={"concurrency": 1}, **addresses)
    body = {"name": "m", "business": "crm", "source": 2}
    status, problem, _ = await platform.ask("POST", JOBS, json=body)
    assert status == 422 and "refuses the job: HTTP 400" in problem["detail"]
    job_id = await begun(platform, 3, data={"v": 1})
    job = await become(platform, job_id, "waiting_business")
    assert job["concurrency"] == 1, "as its business says"
    (told,) = service.about("/before")
    assert (told["event"], told["job_id"], told["data"]) == ("before_run", job_id, {"v": 1})
    status, problem, _ = await platform.ask("POST", f"{JOBS}/{job_id}/start", json={})
    assert status == 409 and "waits for its business" in problem["detail"]
    await platform.ask("PUT", f"{JOBS}/{job_id}/data", json={"data": {"v": 2}})  # as the business would
    status, _, _ = await platform.ask("POST", f"{JOBS}/{job_id}/start", json={"by_business": True})
    assert status == 200
    await become(platform, job_id, "finished")
    assert [(one["item"], one["data"]) for one in service.about("/item")] == [(n, {"v": 2}) for n in range(3)]

    async def finished() -> list[dict[str, Any]]:
        return service.about("/finish")

    (told,) = await until(finished, 10, "the business to be told of the end")
    assert (told["event"], told["status"], told["ended"], told["total"]) == ("finish", "finished", 3, 3)
    status, undo, _ = await platform.ask("POST", f"{JOBS}/{job_id}/undo", json={})
    assert status == 201
    service.answers["/before"] = lambda body: web.json_response({})
    await platform.ask("POST", f"{JOBS}/{undo['id']}/start")
    await become(platform, undo["id"], "finished")
    assert [(one["index"], one["undo"]) for one in service.about("/undo")] == [(n, True) for n in (2, 1, 0)]


async def test_each_call_of_a_callback_has_a_key_of_its_own(platform: Any, service: Service) -> None:
    """A service that remembers keys would take the second creation, or the second start, for a repetition."""
    service.answers["/before"] = lambda body: web.json_response({"self_start": True})
    calls = {
        name: f"{service.url}/{path}"
        for name, path in (("on_create", "create"), ("before_run", "before"), ("on_stop", "stop"))
    }
    await registered(platform, item=f"{service.url}/item", **calls)
    for _ in range(2):
        job_id = await begun(platform, 3)
        for _ in range(2):
            await become(platform, job_id, "waiting_business")
            await platform.ask("POST", f"{JOBS}/{job_id}/stop")
            await platform.ask("POST", f"{JOBS}/{job_id}/start")

    def keys(path: str) -> list[str]:
        return [headers["Idempotency-Key"] for asked, _, headers in service.asked if asked == path]

    async def told() -> bool:
        return len(keys("/before")) == 6 and len(keys("/stop")) == 4

    await until(told, 20, "the business to hear of every stop and start")
    for path, calls_made in (("/create", 2), ("/before", 6), ("/stop", 4)):
        assert len(set(keys(path))) == len(keys(path)) == calls_made


async def test_a_job_whose_business_cannot_prepare_stops_and_says_why(
    platform: Any, service: Service
) -> None:
    service.answers["/before"] = lambda body: refuse(409)
    await registered(platform, item=f"{service.url}/item", before_run=f"{service.url}/before")
    job = await become(platform, await begun(platform, 3), "stopped")
    assert "not that one" in job["reason"] and service.about("/item") == []


# --- who serves it ----------------------------------------------------------------------------------


async def test_only_workers_that_may_call_serve_it(serving: Any, service: Service) -> None:
    async with serving(executors={"http": {"enabled": False}}) as served:
        status, problem, _ = await served.ask(
            "POST", BUSINESSES, json={"name": "crm", "item": f"{service.url}/x"}
        )
        assert status == 422 and "executors.http.enabled" in problem["detail"]
        assert HTTP_HANDLER not in served.app.worker().info.handlers
        assert HTTP_HANDLER not in served.app.handlers.names(), "it is built in: nobody's own"


@pytest.mark.parametrize("address", ["http://127.0.0.1/x", "http://169.254.169.254/latest", "http://[::1]/"])
async def test_a_private_address_is_refused_when_it_is_registered(serving: Any, address: str) -> None:
    async with serving() as served:
        for field in ("item", "on_create"):
            body = {"name": "crm", "item": "https://crm.example/x", field: address}
            status, problem, _ = await served.ask("POST", BUSINESSES, json=body)
            assert status == 422 and "executors.http.allow_private" in problem["detail"], problem


async def test_a_name_that_leads_inside_stops_the_job_before_its_first_item(
    serving: Any, service: Service
) -> None:
    """It is refused when it is registered; a name that leads elsewhere by then is found when it is called."""
    async with serving(worker=WORKER) as served, served.app.running():
        address = f"http://localhost:{service.url.rpartition(':')[2]}/mail"
        status, problem, _ = await served.ask("POST", BUSINESSES, json={"name": "crm", "item": address})
        assert status == 422 and "is not a public address" in problem["detail"]
        await served.app.store.bulk.businesses.register_business(HttpBusiness(name="crm", item=address))
        job = await become(served, await begun(served, 1000), "stopped")
    assert "is not a public address" in job["reason"]
    assert (job["quarantined"], service.asked) == (0, [])


# --- the registry -----------------------------------------------------------------------------------


async def test_a_business_is_listed_changed_and_deleted(platform: Any, service: Service) -> None:
    @platform.app.bulk("ours")
    async def ours(item: int) -> None: ...

    made = await registered(
        platform, item=f"{service.url}/a", headers={"X-Key": "k1"}, on_stop=f"{service.url}/stop"
    )
    assert (made["version"], made["headers"]) == (1, {"X-Key": "***"})
    _, page, _ = await platform.ask("GET", BUSINESSES)
    assert [(one["name"], one["kind"]) for one in page["items"]] == [("crm", "http"), ("ours", "python")]
    _, page, _ = await platform.ask("GET", f"{BUSINESSES}?limit=1")
    _, page, _ = await platform.ask("GET", f"{BUSINESSES}?limit=1&cursor={page['next_cursor']}")
    assert ([one["name"] for one in page["items"]], page["next_cursor"]) == (["ours"], None)

    path = f"{BUSINESSES}/crm"
    change = {"item": f"{service.url}/b", "on_stop": None, "headers": {"X-Key": "***", "X-More": "m"}}
    status, changed, headers = await platform.ask("PATCH", path, json={**change, "version": 1})
    assert (status, changed["version"], headers["ETag"]) == (200, 2, '"2"')
    assert (changed["item"], changed["on_stop"]) == (f"{service.url}/b", None)
    status, problem, _ = await platform.ask("PATCH", path, json={"timeout": 5}, headers={"If-Match": '"1"'})
    assert status == 409 and "at version 2" in problem["detail"]
    job_id = await begun(platform, 1)
    await become(platform, job_id, "finished")
    ((asked, _, sent),) = service.asked
    assert (asked, sent["X-Key"], sent["X-More"]) == ("/b", "k1", "m"), "a value that is not shown stays"

    waiting = await begun(platform, 1, start=False)
    status, problem, _ = await platform.ask("DELETE", path)
    assert status == 409 and f"bulk job {waiting} is created" in problem["detail"]
    await platform.ask("POST", f"{JOBS}/{waiting}/start")
    await become(platform, waiting, "finished")
    assert (await platform.ask("DELETE", path))[0] == 204
    status, problem, _ = await platform.ask("GET", path)
    assert status == 404 and "known are: ours" in problem["detail"]
    status, problem, _ = await platform.ask("POST", f"{JOBS}/{waiting}/undo")
    assert status in (409, 422) and "crm" in problem["detail"]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"name": "ours", "item": "https://crm.example/x"}, 409, "in Python"),
        ({"name": "there", "item": "https://crm.example/x"}, 409, "already"),
        ({}, 422, "give one of the two"),
        ({"item": "https://a.example", "chunk": "https://a.example"}, 422, "give one of the two"),
        ({"item": "ftp://crm.example"}, 422, "item must be an http"),
        ({"item": "https://me:pw@crm.example"}, 422, "without a user"),
        ({"item": "https://crm.example/{{secret}}"}, 422, "secret"),
        ({"item": "https://crm.example", "headers": {"Host\n": "x"}}, 422, "not the name of a header"),
        ({"item": "https://crm.example", "headers": {"Idempotency-Key": "x"}}, 422, "made for each call"),
        ({"item": "https://crm.example", "defaults": {"source": 1}}, 422, "defaults has 'source'"),
        ({"item": "https://crm.example", "defaults": {"concurrency": 0}}, 422, "concurrency"),
        ({"item": "https://crm.example", "before_run_timeout": "1h"}, 422, "before_run_timeout"),
        ({"item": "https://crm.example", "itm": 1}, 422, "itm"),
    ],
)  # fmt: skip
async def test_what_cannot_be_registered(
    served: Any, fields: dict[str, Any], status: int, words: str
) -> None:
    @served.app.bulk("ours")
    async def ours(item: int) -> None: ...

    await served.app.business_registry.register({"name": "there", "item": "https://crm.example/x"})
    got, problem, _ = await served.ask("POST", BUSINESSES, json={"name": "crm", **fields})
    assert got == status and words in problem["detail"], problem


async def test_a_business_in_python_is_neither_changed_nor_deleted_here(served: Any) -> None:
    @served.app.bulk("ours")
    async def ours(item: int) -> None: ...

    _, shown, _ = await served.ask("GET", f"{BUSINESSES}/ours")
    assert (shown["kind"], shown["version"]) == ("python", None)
    for method, body in (("PATCH", {"timeout": 1}), ("DELETE", None)):
        status, problem, _ = await served.ask(method, f"{BUSINESSES}/ours", json=body)
        assert status == 409 and "in Python" in problem["detail"]
