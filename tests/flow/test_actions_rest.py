"""Every route of the REST API, end to end, on a running `fusee up`, at its default log level.

The list of what there is comes from the OpenAPI document: a new route that no step calls fails the test.
Each step has one right status, and what it changed is looked at afterwards.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.flow.programs import Programs, Up
from tests.flow.test_actions import FLOW, JOBS, LAMPS, POLL

V1 = "/api/v1"
NIGHTLY = {"name": "nightly", "cron": "0 3 * * *", "handler": "greet", "payload": {"name": "Ada"}}
LOOSE = {**LAMPS, "targets": [{"target_id": "loose", "after": {"level": 5}}]}


class Service:
    """A service that accepts every call now and answers it later: `calls` has the headers of each."""

    def __init__(self) -> None:
        self.calls: queue.Queue[dict[str, str]] = queue.Queue()
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                calls.put(dict(self.headers))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Service:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class Rest:
    """Calls routes, and records which."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = ""
        document = self.do("GET", "/openapi.json")
        self.uncalled = {
            (method.upper(), path): re.compile(re.sub(r"\\{\w+\\}", "[^/?]+", re.escape(path)))
            for path, methods in document["paths"].items()
            for method in methods
        }

    def do(self, method: str, path: str, status: int = 200, body: Any = None, **headers: str) -> Any:
        """What the route answers, which must be of that status."""
        seen, said = self._ask(method, path, body, headers)
        # Work that is canceled may end before the answer: then it is not accepted (202) but done (200).
        if status == 202 and path.endswith("/cancel"):
            seen = 202 if seen == 200 else seen
        assert seen == status, f"{method} {path}: {seen} instead of {status}: {said[:500]}"
        if path != "/openapi.json":
            for route, pattern in list(self.uncalled.items()):
                if route[0] == method and pattern.fullmatch(path.partition("?")[0]):
                    del self.uncalled[route]
        try:
            return json.loads(said)
        except ValueError:
            return said

    def becomes(self, path: str, seconds: float = 60, **wanted: Any) -> Any:
        """What is at that path, once it has these members."""
        ends = time.monotonic() + seconds
        while True:
            seen = self.do("GET", path)
            if all(seen[name] == value for name, value in wanted.items()):
                return seen
            assert time.monotonic() < ends, f"{path} is not {wanted}: {seen}"
            time.sleep(0.05)

    def names(self, path: str, member: str = "name") -> list[Any]:
        return [one[member] for one in self.do("GET", path)["items"]]

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str]:
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            own["Content-Type"] = "application/json"
        if self.key:
            own["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=own)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(tmp_path_factory.mktemp("programs")) as running:
        yield running


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def up(programs: Programs, tmp_path: Path) -> Iterator[Up]:
    """Default settings, but for what a call to a service on this machine needs."""
    (tmp_path / "jobs.py").write_text(JOBS)
    settings = {
        "FUSEE_EXECUTORS__HTTP__ALLOW_PRIVATE": "127.0.0.0/8",
        "FUSEE_API__PUBLIC_URL": "https://fusee.example",
    }
    with programs.up(tmp_path, "--app", "jobs:app", "--name", "w1", **settings) as running:
        yield running
        failed = [line for line in running.lines() if line["level"] in ("error", "critical")]
        assert not failed, failed


def test_every_route_does_what_it_says(up: Up, service: Service, tmp_path: Path) -> None:
    rest = Rest(up.url)
    runs(rest)
    callbacks(rest, service)
    tasks(rest)
    templates(rest)
    workflows(rest)
    batches(rest)
    bulk_jobs(rest)
    businesses(rest)
    fleet(rest)
    assert set(rest.uncalled) == set(), "routes that no step calls"


def runs(rest: Rest) -> None:
    one = rest.do("POST", f"{V1}/runs", 201, {"handler": "greet", "payload": {"name": "Ada"}})["id"]
    assert rest.do("GET", f"{V1}/runs/{one}/wait?timeout=30")["result"] == "hello Ada"
    assert rest.do("GET", f"{V1}/runs/{one}")["status"] == "succeeded"
    assert "succeeded" in rest.do("GET", f"{V1}/runs/{one}/events")
    again = rest.do("POST", f"{V1}/runs/{one}/retry", 201)["id"]
    rest.becomes(f"{V1}/runs/{again}", status="succeeded", result="hello Ada", origin_id=one)
    later = rest.do("POST", f"{V1}/runs", 201, {"handler": "greet", "delay": 3600})["id"]
    rest.do("POST", f"{V1}/runs/{later}/cancel", 200, {"reason": "not today"})
    rest.becomes(f"{V1}/runs/{later}", status="canceled", reason="not today")
    assert rest.names(f"{V1}/runs", "id") == [later, again, one]


def callbacks(rest: Rest, service: Service) -> None:
    for nr, method in enumerate(("POST", "PUT", "PATCH")):
        call = {"url": service.url, "method": "POST", "mode": "async", "body": {}}
        run = rest.do("POST", f"{V1}/runs", 201, {"executor": "http", "payload": call})["id"]
        token = service.calls.get(timeout=60)["X-Fusee-Callback-Token"]
        rest.becomes(f"{V1}/runs/{run}", status="waiting")
        path = f"{V1}/callbacks/{run}"
        rest.do(method, path, 401, {"result": nr})
        rest.do(method, path, 404, {"result": nr}, X_Fusee_Callback_Token="another")
        assert rest.do(method, path, 200, {"result": nr}, X_Fusee_Callback_Token=token) == {
            "id": run,
            "status": "succeeded",
        }
        rest.becomes(f"{V1}/runs/{run}", status="succeeded", result=nr)
        rest.do(method, path, 409, {"result": 7}, X_Fusee_Callback_Token=token)


def tasks(rest: Rest) -> None:
    task = f"{V1}/tasks/nightly"
    shown = rest.do("POST", f"{V1}/tasks/preview", 200, NIGHTLY)
    rest.do("GET", task, 404)
    rest.do("POST", f"{V1}/tasks", 201, NIGHTLY)
    assert rest.do("GET", f"{task}/next")["next_fires"][0] == shown["next_fires"][0]
    assert "03:00" in rest.do("GET", f"{V1}/cron?expression=0+3+*+*+*")["description_words"]["en"]
    assert rest.names(f"{V1}/tasks") == ["nightly"]
    [fired] = rest.do("POST", f"{task}/trigger", 201, {"payload": {"name": "Eve"}})["run_ids"]
    rest.becomes(f"{V1}/runs/{fired}", status="succeeded", result="hello Eve", task="nightly")
    [again] = rest.do("POST", f"{task}/restart", 201)["run_ids"]
    rest.becomes(f"{V1}/runs/{again}", status="succeeded", result="hello Eve")
    fires = rest.do("GET", f"{task}/runs")["items"]
    assert {fire["run_id"] for fire in fires} == {fired, again}
    [at] = [fire["fire_time"] for fire in fires if fire["run_id"] == fired]
    assert rest.do("GET", f"{task}/explain?at={at}")["verdict"] == "ran"
    for verb, status in (
        ("pause", "paused"),
        ("resume", "enabled"),
        ("disable", "disabled"),
        ("enable", "enabled"),
    ):
        rest.do("POST", f"{task}/{verb}")
        assert rest.do("GET", task)["status"] == status
    past = {"from": "2025-01-01T00:00:00Z", "to": "2025-01-03T12:00:00Z"}
    assert rest.do("POST", f"{task}/backfill", 200, {**past, "dry_run": True})["count"] == 3
    rest.do("POST", f"{task}/backfill", 201, past)
    filled = f"{task}/runs?until=2025-02-01T00:00:00Z"
    assert len(rest.do("GET", filled)["items"]) == 3
    assert len(rest.do("POST", f"{task}/simulate", 200, {**past, "duration": 1})["fires"]) == 3
    rest.do("PATCH", task, 200, {"cron": "30 4 * * *"})
    changed = rest.do("GET", task)
    assert (changed["cron"], changed["payload"]) == ("0 30 4 * * *", {"name": "Ada"})
    rest.do("PUT", task, 200, {"name": "nightly", "every": "2h", "handler": "greet"})
    replaced = rest.do("GET", task)
    assert (replaced.get("cron"), replaced["payload"]) == (None, {})
    applied = rest.do("POST", f"{V1}/tasks/apply", 200, {"documents": [NIGHTLY]})
    assert [change["action"] for change in applied["changes"]] == ["update"]
    assert rest.do("GET", task)["cron"] == "0 0 3 * * *"

    line = {"name": "slow", "handler": "hang", "concurrency_policy": "QUEUE", "max_concurrency": 1}
    rest.do("POST", f"{V1}/tasks", 201, line)
    first, *waiting = (rest.do("POST", f"{V1}/tasks/slow/trigger", 201)["run_ids"][0] for _ in range(3))
    assert rest.do("POST", f"{V1}/tasks/slow/clear-queue")["cleared"] == 2
    for run in waiting:
        rest.becomes(f"{V1}/runs/{run}", status="skipped")
    rest.becomes(f"{V1}/runs/{first}", status="running")
    rest.do("POST", f"{V1}/runs/{first}/cancel", 202)
    rest.becomes(f"{V1}/runs/{first}", status="canceled")
    rest.do("DELETE", task, 204)
    rest.do("GET", task, 404)


def templates(rest: Rest) -> None:
    poll = f"{V1}/task-templates/poll"
    rest.do("POST", f"{V1}/task-templates", 201, POLL)
    assert rest.names(f"{V1}/task-templates") == ["poll"]
    rest.do("POST", f"{V1}/tasks", 201, {"name": "mine", "template": "poll"})
    assert rest.do("GET", f"{V1}/tasks/mine")["handler"] == "greet"
    rest.do("PUT", poll, 200, {**POLL, "task": {"handler": "fail"}})
    assert rest.do("GET", poll)["task"] == {"handler": "fail"}
    rest.do("DELETE", poll, 204)
    rest.do("GET", poll, 404)


def workflows(rest: Rest) -> None:
    flow = f"{V1}/workflows/flow"
    rest.do("POST", f"{V1}/workflows", 201, FLOW)
    assert rest.names(f"{V1}/workflows") == ["flow"]
    assert [node["name"] for node in rest.do("GET", f"{flow}/graph")["nodes"]] == ["a", "b"]
    started = rest.do("POST", f"{flow}/start", 201)["id"]
    rest.becomes(f"{V1}/workflow-runs/{started}", status="succeeded", succeeded=2)
    graph = rest.do("GET", f"{V1}/workflow-runs/{started}/graph")
    assert [node["status"] for node in graph["nodes"]] == ["succeeded"] * 2
    nodes = [{"name": "a", "handler": "hang"}, {"name": "b", "after": ["a"], "handler": "greet"}]
    rest.do("PUT", flow, 200, {"name": "flow", "nodes": nodes})
    assert rest.do("GET", flow)["version"] == 2
    hangs = rest.do("POST", f"{flow}/start", 201)["id"]
    node = rest.do("GET", f"{V1}/workflow-runs/{hangs}/graph")["nodes"][0]
    rest.becomes(f"{V1}/runs/{node['run_id']}", status="running")
    rest.do("POST", f"{V1}/workflow-runs/{hangs}/cancel", 202)
    rest.becomes(f"{V1}/workflow-runs/{hangs}", status="canceled")
    again = rest.do("POST", f"{V1}/workflow-runs/{hangs}/rerun", 201)["id"]
    rest.becomes(f"{V1}/workflow-runs/{again}", status="running", origin_id=hangs)
    assert (
        rest.names(f"{flow}/runs", "id") == rest.names(f"{V1}/workflow-runs", "id") == [again, hangs, started]
    )
    rest.do("POST", f"{V1}/workflow-runs/{again}/cancel", 202)
    rest.becomes(f"{V1}/workflow-runs/{again}", status="canceled")
    rest.do("DELETE", flow, 204)
    rest.do("GET", flow, 404)


def batches(rest: Rest) -> None:
    def made(path: str, body: Any) -> str:
        return f"{V1}/batches/{rest.do('POST', path, 201, body)['batch_id']}"

    rest.becomes(
        made("/api/batch", {**LAMPS, "targets": [{"target_id": "2", "after": {"level": 5}}]}),
        status="success",
    )
    first, other, loose = (made(f"{V1}/batches", body) for body in (LAMPS, LAMPS, LOOSE))
    assert len(rest.do("GET", f"{V1}/batches")["items"]) == 4
    assert rest.do("GET", f"{first}/plan")["items"][0]["changes"] == [
        {"name": "level", "before": 0, "after": 5}
    ]
    planned = rest.do("POST", f"{first}/plan")
    assert (planned["counts"], planned["items"][0]["changes"]) == (
        {"change": 1},
        [{"name": "level", "before": 0, "after": 5}],
    )
    rest.do("POST", f"{first}/apply")
    rest.becomes(first, status="success")
    assert [one["status"] for one in rest.do("GET", f"{first}/targets")["items"]] == ["success"]
    assert rest.do("GET", f"{first}/recount")["equal"]
    rest.do("POST", f"{first}/rollback")
    rest.becomes(first, status="rollback_success", left_applied=0)
    rest.do("POST", f"{other}/cancel", 200, {"reason": "not today"})
    rest.becomes(other, status="cancel", reason="not today")
    rest.do("POST", f"{loose}/apply")
    rest.becomes(loose, status="fail")
    assert rest.do("POST", f"{loose}/retry")["retried"] == 1
    rest.becomes(loose, status="success")


def bulk_jobs(rest: Rest) -> None:
    news = {"name": "news", "business": "mail", "source": 3, "item_attempts": 1}
    job = f"{V1}/bulk-jobs/{rest.do('POST', f'{V1}/bulk-jobs', 201, news)['id']}"
    rest.do("PUT", f"{job}/data", 200, {"data": {"template": 4}})
    rest.do("POST", f"{job}/rate", 200, {"rate": 100})
    assert rest.do("PATCH", job, 200, {"alerts": "https://ops.example"})["alerts"]["on_failure"] is True
    assert (rest.do("GET", job)["data"], rest.do("GET", job)["rate"]) == ({"template": 4}, 100)
    rest.do("POST", f"{job}/start")
    rest.becomes(job, status="finished", done=2, quarantined=1)
    assert rest.names(f"{job}/quarantine", "index") == [1]
    assert "no such user" in json.dumps(rest.do("GET", f"{job}/quarantine/download"))
    rerun = rest.do("POST", f"{job}/quarantine/rerun", 201, {"start": True})["id"]
    rest.becomes(f"{V1}/bulk-jobs/{rerun}", status="finished", total=1, quarantined=1)
    undo = rest.do("POST", f"{job}/undo", 201, {"start": True})["id"]
    rest.becomes(f"{V1}/bulk-jobs/{undo}", status="finished", done=2)
    rest.do("POST", f"{job}/logs", 201, {"text": "all is well"})
    assert "all is well" in rest.names(f"{job}/logs", "text")
    rest.do("POST", f"{job}/extend", 409)

    slow = rest.do("POST", f"{V1}/bulk-jobs", 201, {**news, "source": 100_000, "rate": 1, "start": True})[
        "id"
    ]
    assert rest.names(f"{V1}/bulk-jobs", "id")[0] == slow
    slow = f"{V1}/bulk-jobs/{slow}"
    for verb in ("pause", "stop"):
        rest.becomes(slow, status="running")
        rest.do("POST", f"{slow}/{verb}")
        rest.becomes(slow, status="stopped")
        rest.do("POST", f"{slow}/resume")
    rest.do("POST", f"{slow}/stop")
    assert rest.becomes(slow, status="stopped")["ended"] < 100_000
    rest.do("DELETE", slow, 204)
    rest.do("GET", slow, 404)


def businesses(rest: Rest) -> None:
    crm = {"name": "crm", "chunk": "https://crm.example/mail", "chunk_size": 200}
    rest.do("POST", f"{V1}/businesses", 201, crm)
    assert rest.names(f"{V1}/businesses") == ["crm", "mail"]
    rest.do("PATCH", f"{V1}/businesses/crm", 200, {"timeout": 30})
    seen = rest.do("GET", f"{V1}/businesses/crm")
    assert (seen["timeout"], seen["chunk_size"]) == (30, 200)
    rest.do("DELETE", f"{V1}/businesses/crm", 204)
    rest.do("GET", f"{V1}/businesses/crm", 404)


def fleet(rest: Rest) -> None:
    mail = f"{V1}/queues/mail"
    rest.do("POST", f"{mail}/pause")
    held = rest.do("POST", f"{V1}/runs", 201, {"handler": "greet", "queue": "mail"})["id"]
    rest.becomes(mail, paused=True, pending=1)
    rest.do("PUT", mail, 200, {"concurrency": 4, "paused": True})
    rest.do("PATCH", mail, 200, {"rate": 2.5})
    rest.do("PUT", f"{mail}/strategy", 200, {"strategy": "least_loaded"})
    rest.becomes(mail, concurrency=4, rate=2.5, strategy="least_loaded", paused=True, pending=1)
    rest.do("POST", f"{mail}/resume")
    rest.becomes(f"{V1}/runs/{held}", status="succeeded")
    assert "mail" in rest.names(f"{V1}/queues")

    assert rest.do("GET", "/healthz") is not None
    assert rest.do("GET", "/readyz")["ready"]
    assert "fusee_" in rest.do("GET", "/metrics")
    assert rest.names(f"{V1}/workers") == ["w1"]
    rest.do("POST", f"{V1}/workers/w1/drain", 202)
    rest.becomes(f"{V1}/workers/w1", state="ended")

    assert rest.names(f"{V1}/keys") == []
    made = rest.do("POST", f"{V1}/keys", 201, {"name": "ada", "role": "admin"})
    rest.do("GET", f"{V1}/runs", 401)
    rest.key = made["key"]
    other = rest.do("POST", f"{V1}/keys", 201, {"name": "bob", "role": "viewer"})
    rotated = rest.do("POST", f"{V1}/keys/{other['id']}/rotate", 201)
    assert (rotated["name"], rotated["role"]) == ("bob", "viewer")
    assert rest.do("GET", f"{V1}/me")["name"] == "ada"
    rest.do("DELETE", f"{V1}/keys/{rotated['id']}", 204)
    rest.do("DELETE", f"{V1}/keys/{other['id']}", 204)
    revoked = {one["name"]: one["revoked_at"] is not None for one in rest.do("GET", f"{V1}/keys")["items"]}
    assert revoked == {"ada": False, "bob": True}
    rest.key = other["key"]
    rest.do("GET", f"{V1}/runs", 401)
