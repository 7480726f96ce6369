"""Whatever is sent: a clear 4xx as problem+json, nothing stored, no traceback."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNS = "/api/v1/runs"
JSON = {"Content-Type": "application/json"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(serving):
    async with serving() as it:
        yield it


def run(**fields: Any) -> bytes:
    return json.dumps({"handler": "greet", **fields}).encode()


BAD: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "the body is empty"),
    "not JSON": (b"hello", 400, "line 1, column 1"),
    "cut off": (b'{"handler": "greet", "payl', 400, "ends too early"),
    "trailing comma": (b'{\n"handler": "greet",}', 400, "line 2, column 20"),
    "two values": (run() + run(), 400, "trailing characters"),
    "not UTF-8": (b'{"handler": "greet", "payload": {"a": "\xff"}}', 400, "not UTF-8"),
    "UTF-16": ('{"handler": "greet"}'.encode("utf-16"), 400, "not"),
    "NaN": (b'{"handler": "greet", "payload": {"a": NaN}}', 400, "not JSON"),
    "infinite number": (b'{"handler": "greet", "payload": {"a": 1e999}}', 422, "number"),
    "lone surrogate": (b'{"handler": "greet", "payload": {"a": "\\ud800"}}', 400, "surrogate"),
    "10 MB": (run(payload={"a": "x" * 10_000_000}), 413, "api.max_body"),
    "payload over 1 MiB": (run(payload={"a": "x" * 2**20}), 422, "payload"),
    "10,000 deep array": (b"[" * 10_000, 422, "nested deeper than 64"),
    "10,000 deep payload": (
        b'{"handler":"greet","payload":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
        422,
        "nested deeper than 64",
    ),
    "100 deep payload": (
        b'{"handler":"greet","payload":' + b'{"a":' * 100 + b"1" + b"}" * 101,
        422,
        "nested deeper than 64",
    ),
    "a million runs": (b"[" + b"{}," * 999_999 + b"{}]", 413, "application/x-ndjson"),
    "empty array": (b"[]", 422, "empty"),
    "a number": (b"7", 422, "a run is an object"),
    "null": (b"null", 422, "a run is an object"),
    "array of null": (b"[null]", 422, "run 0 of the array"),
    "no handler": (b"{}", 422, "handler is missing"),
    "unknown handler": (b'{"handler": "gret"}', 422, "Did you mean 'greet'?"),
    "unknown field": (run(prioritty=1), 422, "did you mean 'priority'?"),
    "unknown retry field": (run(retry={"max_atempts": 1}), 422, "did you mean 'max_attempts'?"),
    "NUL in a name": (b'{"handler": "gr\\u0000eet"}', 422, "handler must be"),
    "right-to-left name": (json.dumps({"handler": "\u202eteerg"}).encode(), 422, "handler must be"),
    "look-alike name": (json.dumps({"handler": "grеet"}).encode(), 422, "handler must be"),
    "empty name": (b'{"handler": ""}', 422, "handler must be"),
    "long queue": (run(queue="q" * 129), 422, "queue must be"),
    "queue is a list": (run(queue=["a"]), 422, "queue must be"),
    "handler is a number": (b'{"handler": 5}', 422, "handler must be"),
    "payload is a list": (run(payload=[1]), 422, "payload must be"),
    "payload is text": (run(payload="x"), 422, "payload must be"),
    "priority is text": (run(priority="high"), 422, "priority must be"),
    "priority is true": (run(priority=True), 422, "priority must be"),
    "priority too high": (run(priority=1001), 422, "priority must be"),
    "huge priority": (b'{"handler": "greet", "priority": ' + b"9" * 400 + b"}", 422, "beyond 64 bits"),
    "huge integer": (b'{"handler": "greet", "payload": {"a": -' + b"9" * 30 + b"}}", 422, "beyond 64 bits"),
    "10,000 digits": (b'{"handler": "greet", "payload": {"a": ' + b"9" * 10_000 + b"}}", 422, ""),
    "negative delay": (run(delay=-1), 422, "delay must be"),
    "delay of a century": (run(delay=10**10), 422, "delay must be"),
    "delay of nothing": (run(delay="soon"), 422, "delay must be"),
    "timeout of zero": (run(timeout=0), 422, "timeout must be"),
    "timeout is true": (run(timeout=True), 422, "timeout must be"),
    "due_at without offset": (run(due_at="2030-01-31T09:00:00"), 422, "due_at must be"),
    "due_at as number": (run(due_at=1893456000), 422, "due_at must be"),
    "due_at that is no day": (run(due_at="2030-02-31T09:00:00Z"), 422, "there is no 2030-02-31"),
    "due_at long ago": (run(due_at="1930-01-31T09:00:00Z"), 422, "1970"),
    "due_at at the end of time": (run(due_at="9999-12-31T23:59:59-23:59"), 422, "9999"),
    "executor": (run(executor="telepathy"), 422, "executor must be"),
    "shell is off": (run(executor="shell", payload={"argv": ["ls"]}), 422, "executors.shell.enabled"),
    "retry is text": (run(retry="often"), 422, "retry must be an object"),
    "retry is a number": (run(retry=5), 422, "retry must be an object"),
    "zero attempts": (run(retry={"max_attempts": 0}), 422, "max_attempts must be"),
    "retry on success": (run(retry={"on": ["succeeded"]}), 422, "on may hold"),
    "origin is not for callers": (run(origin_id=1), 422, "origin_id"),
    "key with a newline": (run(idempotency_key="a\nb"), 422, "idempotency_key must be"),
    "key too long": (run(idempotency_key="k" * 201), 422, "idempotency_key must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_bad_body(served, name):
    body, wanted, says = BAD[name]
    status, problem, headers = await served.ask("POST", RUNS, data=BytesIO(body), headers=JSON)
    assert status == wanted, problem
    assert headers["Content-Type"] == "application/problem+json"
    assert problem["status"] == wanted and problem["type"].startswith("urn:fusee:problem:")
    assert problem["request_id"] == headers["X-Request-Id"]
    assert says in problem["detail"]
    assert "Traceback" not in json.dumps(problem) and len(json.dumps(problem)) < 4000
    assert await served.count() == 0


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", run()),
        ("application/x-www-form-urlencoded", b"handler=greet"),
        ("application/json; charset=latin-1", run()),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/xml", b"<run/>"),
        ("", run()),
    ],
)
async def test_wrong_content_type(served, kind, body):
    status, problem, _ = await served.ask("POST", RUNS, data=body, headers={"Content-Type": kind})
    assert status == 415 and "application/json" in problem["detail"]
    assert await served.count() == 0


@pytest.mark.parametrize(
    ("method", "path", "wanted", "says"),
    [
        ("GET", f"{RUNS}/1", 404, "no run 1"),
        ("GET", f"{RUNS}/0", 422, "run_id"),
        ("GET", f"{RUNS}/-1", 422, "run_id"),
        ("GET", f"{RUNS}/abc", 422, "run_id"),
        ("GET", f"{RUNS}/{2**63}", 422, "run_id"),
        ("GET", f"{RUNS}/{'9' * 5000}", 422, "run_id"),
        ("GET", f"{RUNS}/1/wait", 404, "no run 1"),
        ("GET", f"{RUNS}/1/events", 404, "no run 1"),
        ("POST", f"{RUNS}/1/cancel", 404, "no run 1"),
        ("POST", f"{RUNS}/1/retry", 404, "no run 1"),
        ("GET", f"{RUNS}?limit=0", 422, "limit"),
        ("GET", f"{RUNS}?limit=1001", 422, "limit"),
        ("GET", f"{RUNS}?limit=many", 422, "limit"),
        ("GET", f"{RUNS}?statsu=failed", 422, "did you mean 'status'?"),
        ("GET", f"{RUNS}?status=sucess", 422, "status"),
        ("GET", f"{RUNS}?handler=%00", 422, "handler must be"),
        ("GET", f"{RUNS}?queue=%E2%80%AE", 422, "queue must be"),
        ("GET", f"{RUNS}?cursor=nonsense", 422, "next_cursor"),
        ("GET", f"{RUNS}?cursor=%FF", 422, "next_cursor"),
        ("GET", f"{RUNS}?cursor=cjE6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5", 422, "next_cursor"),
        ("DELETE", RUNS, 405, "GET, POST"),
        ("PATCH", f"{RUNS}/1", 405, "GET"),
        ("GET", "/api/v1/nothing", 404, "no such path"),
        ("GET", "/api/v2/runs", 404, "no such path"),
        ("GET", "/%00", 404, "no such path"),
        ("GET", f"{RUNS}/", 422, ""),
        ("PUT", "/api/v1/queues/a%00b", 415, ""),
        ("GET", "/api/v1/queues/a%00b", 422, "queue must be"),
        ("POST", "/api/v1/queues/%E2%80%AE/pause", 422, "queue must be"),
        ("DELETE", "/api/v1/keys/7", 404, "no valid key 7"),
        ("GET", "/api/v1/workers?al=true", 422, "did you mean 'all'?"),
        ("GET", "/healthz?x=1", 422, "it takes none"),
    ],
)  # fmt: skip
async def test_bad_path_or_query(served, method, path, wanted, says):
    from yarl import URL

    url = URL(served.url + path, encoded=True)
    async with served.client.request(method, url) as answer:
        problem = await answer.json(content_type=None)
        if path == f"{RUNS}/":
            assert answer.status in (404, 422)
        else:
            assert answer.status == wanted, problem
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert says in problem["detail"]
    assert await served.count() == 0


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/queues/q", {"concurrency": 0}, "concurrency"),
        ("/api/v1/queues/q", {"concurrency": "4"}, "concurrency"),
        ("/api/v1/queues/q", {"rate": -1}, "rate"),
        ("/api/v1/queues/q", {"burst": 5}, "burst"),
        ("/api/v1/queues/q", {"paused": "yes"}, "paused"),
        ("/api/v1/queues/q", {"pausd": True}, "pausd"),
    ],
)
async def test_bad_limits(served, path, body, field):
    status, problem, _ = await served.ask("PUT", path, json=body)
    assert (status, problem["field"]) == (422, field)


@pytest.mark.parametrize("act", ["clear-queue", "trigger"])
async def test_a_reason_that_is_too_long_is_told_its_own_limit(served, act):
    status, problem, _ = await served.ask("POST", f"/api/v1/tasks/nightly/{act}", json={"reason": "r" * 3000})
    assert (status, problem["detail"]) == (422, "reason must have at most 200 characters")


async def test_a_wrong_line_is_told_by_its_own_number_alone(served):
    lines = run() + b"\n" + run() + b"\n" + b'{"handler" 5}\n'
    headers = {"Content-Type": "application/x-ndjson"}
    status, problem, _ = await served.ask("POST", f"{RUNS}?allow_unknown=true", data=lines, headers=headers)
    assert status == 400 and problem["line"] == 3
    assert (
        problem["detail"].startswith("line 3: the line is not JSON: ") and "line 1" not in problem["detail"]
    )
    assert "at column 12" in problem["detail"]


async def test_an_interval_that_is_too_short_is_told_the_limits_in_plain_digits(served):
    body = {"name": "often", "handler": "greet", "every": 0.5}
    status, problem, _ = await served.ask("POST", "/api/v1/tasks", json=body)
    assert status == 422 and "from 1 to 316224000 seconds, not 0.5" in problem["detail"]


@pytest.mark.parametrize("body", [{"role": "viewer"}, {"name": "a b"}, {"name": "x", "role": "king"}, []])
async def test_bad_keys(served, body):
    assert (await served.ask("POST", "/api/v1/keys", json=body))[0] == 422
    assert (await served.ask("GET", "/api/v1/keys"))[1] == {"items": []}


@pytest.mark.parametrize("reason", ["a\nb", "\u0000", "", 5, "x" * 501])
async def test_bad_reasons(served, reason):
    status, problem, _ = await served.ask("POST", f"{RUNS}/1/cancel", json={"reason": reason})
    assert (status, problem["field"]) == (422, "reason")
