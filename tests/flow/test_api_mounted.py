"""The API as a part of another program: mounted anywhere, it works as it does on its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import warnings
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from fusee import Fusee
from fusee.config import load

CRON = {"name": "nightly", "handler": "greet", "cron": "0 3 * * *"}


def at_a_path(api: FastAPI) -> Any:
    web = FastAPI()
    web.mount("/jobs", api)
    return web


def at_the_root(api: FastAPI) -> Any:
    return Starlette(routes=[Mount("/", app=api)])


def below_a_path_like_ours(api: FastAPI) -> Any:
    return Starlette(routes=[Mount("/api", app=api)])


def below_two_mounts(api: FastAPI) -> Any:
    return Starlette(routes=[Mount("/a b", routes=[Mount("/{tenant}", app=api)])])


def behind_a_proxy_that_removes_its_prefix(api: FastAPI) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FastAPI would rather have it from the server
        web = FastAPI(root_path="/gw")
    web.mount("/jobs", api)
    return web


PLACES = {
    # place: (what the client puts before a path, what links begin with, uvicorn's own root path)
    at_a_path: ("/jobs", "/jobs", ""),
    at_the_root: ("", "", ""),
    below_a_path_like_ours: ("/api", "/api", ""),
    below_two_mounts: ("/a%20b/acme", "/a b/acme", ""),
    behind_a_proxy_that_removes_its_prefix: ("/jobs", "/gw/jobs", ""),
    (lambda api: api): ("", "/gw", "/gw"),
}


@contextlib.asynccontextmanager
async def web(place: Any, root_path: str = "") -> AsyncIterator[tuple[Fusee, str]]:
    app = Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}}))

    @app.handler("greet")
    async def greet() -> str:
        return "hello"

    api = app.api()  # before anything is open, as a program does that mounts it when it is imported
    async with app, app.running():
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(place(api), lifespan="off", log_config=None, root_path=root_path)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(server.serve([listening]))
        try:
            yield app, f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
            listening.close()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_it_works_wherever_it_is_mounted(place):
    before, root, root_path = PLACES[place]
    async with web(place, root_path) as (_, url), aiohttp.ClientSession() as client:

        async def ask(method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
            async with client.request(method, url + before + path, **options) as answer:
                text = await answer.text()
                is_json = "json" in answer.headers["Content-Type"]
                return answer.status, json.loads(text) if is_json else text, answer.headers

        for path in ("/healthz", "/readyz", "/metrics", "/docs"):
            assert (path, (await ask("GET", path))[0]) == (path, 200)
        _, document, _ = await ask("GET", "/openapi.json")
        assert document.get("servers", [{"url": ""}])[0]["url"] == root

        status, run, headers = await ask("POST", "/api/v1/runs", json={"handler": "greet"})
        assert status == 201, run
        assert headers["Location"].endswith(f"/api/v1/runs/{run['id']}")
        if root_path or not root.startswith("/gw"):  # else it is the proxy that would find it
            async with client.get(url + headers["Location"].removeprefix(root_path)) as answer:
                assert (answer.status, (await answer.json())["id"]) == (200, run["id"])
        _, events, headers = await ask("GET", f"/api/v1/runs/{run['id']}/events")
        assert headers["Content-Type"].startswith("text/event-stream") and "event: end" in events

        lines = b'{"handler": "greet"}\n' * 3
        ndjson = {"Content-Type": "application/x-ndjson"}
        status, taken, _ = await ask("POST", "/api/v1/runs", data=lines, headers=ndjson)
        assert (status, taken["accepted"]) == (201, 3)
        assert (await ask("POST", "/api/v1/tasks", json={**CRON, "name": "a/runs"}))[0] == 201
        status, task, _ = await ask("GET", "/api/v1/tasks/a%2Fruns")
        assert (status, task["name"]) == (200, "a/runs")
        template = {"name": "a/b", "task": {"handler": "greet"}}
        _, _, headers = await ask("POST", "/api/v1/task-templates", json=template)
        assert headers["Location"] == f"{root}/api/v1/task-templates/a%2Fb"

        status, problem, _ = await ask("GET", "/api/v1/nothing")
        assert status == 404 and f"{root}/docs" in problem["detail"]
        assert (await ask("DELETE", "/api/v1/runs"))[2]["Allow"] == "GET, POST"

        # The gate stands there as well.
        assert (await ask("GET", "/api/v1/runs", headers={"Host": "evil.example"}))[0] == 403
        _, made, _ = await ask("POST", "/api/v1/keys", json={"name": "ada", "role": "admin"})
        assert (await ask("GET", "/api/v1/runs"))[0] == 401
        key = {"Authorization": f"Bearer {made['key']}"}
        assert (await ask("GET", "/api/v1/runs", headers=key))[0] == 200
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert (path, (await ask("GET", path))[0]) == (path, 200)


async def test_who_is_on_another_machine_needs_a_key():
    """The program that mounts us may listen on any address; `Host` is what the client says it is."""
    async with Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}})) as app:
        api = app.api()
        told: list[Any] = []

        async def send(message: Any) -> None:
            told.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        for client, status in (
            (("127.0.0.1", 1), 200),
            (("::1", 1), 200),
            (("10.0.0.7", 1), 403),
            (None, 403),
        ):
            for path in ("/api/v1/runs", "/metrics"):
                scope = {
                    "type": "http",
                    "method": "GET",
                    "path": path,
                    "query_string": b"",
                    "headers": [(b"host", b"localhost")],
                    "client": client,
                    "server": ("10.0.0.1", 80),
                }
                await api(scope, receive, send)
                began = [message for message in told if message["type"] == "http.response.start"]
                assert (client, path, began[-1]["status"]) == (client, path, status)
