"""Whatever is sent about tasks: a clear 4xx as problem+json, nothing stored, no traceback."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASKS = "/api/v1/tasks"
JSON = {"Content-Type": "application/json"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(serving):
    async with serving() as it:
        task = {"name": "there", "cron": "* * * * *", "handler": "greet"}
        assert (await it.ask("POST", TASKS, json=task))[0] == 201
        yield it


async def names(served: Any) -> list[str]:
    return [one["name"] for one in (await served.ask("GET", TASKS))[1]["items"]]


def body(**fields: Any) -> bytes:
    return json.dumps({"name": "nightly", "cron": "0 3 * * *", "handler": "greet", **fields}).encode()


def call(**fields: Any) -> bytes:
    return json.dumps({"name": "nightly", "target_url": "http://a.example", **fields}).encode()


def during(begin: str, end: str, **more: Any) -> dict[str, Any]:
    return {"from": f"{begin}T00:00:00Z", "to": f"{end}T00:00:00Z", **more}


BAD: dict[str, tuple[bytes, int, str | None, str]] = {
    "empty": (b"", 400, None, "the body is empty"),
    "not JSON": (b"hello", 400, None, "line 1, column 1"),
    "a list": (b"[]", 422, None, "a task is an object"),
    "null": (b"null", 422, None, "a task is an object"),
    "nothing": (b"{}", 422, None, "name"),
    "10,000 deep": (b'{"payload":' + b'{"a":' * 10_000, 422, None, "nested deeper than 64"),
    "payload over 1 MiB": (body(payload={"a": "x" * 2**20}), 422, None, "at most"),
    "unknown field": (body(crn="@daily"), 422, "crn", "did you mean 'cron'?"),
    "unknown policy": (body(overlap_acton="SKIP"), 422, "overlap_acton", "did you mean 'overlap_action'?"),
    "two names for one": (body(cron_expr="@daily"), 422, "cron", "given twice"),
    "two schedules": (body(every=60), 422, None, "one schedule"),
    "NUL in the name": (body(name="a\x00b"), 422, "name", "name must be"),
    "right-to-left name": (body(name="\u202eyl"), 422, "name", "name must be"),
    "name too long": (body(name="n" * 129), 422, "name", "name must be"),
    "name is a number": (body(name=7), 422, "name", "must be 1 to 128 letters"),
    "name is null": (body(name=None), 422, None, "name"),
    "cron is a number": (body(cron=5), 422, "cron", "must be text"),
    "cron that never fires": (body(cron="0 0 31 2 *"), 422, "cron", "31 is not a day of February"),
    "cron with NUL": (body(cron="\x00"), 422, "cron", ""),
    "no such zone": (body(timezone="Mars/Base"), 422, "timezone", "IANA"),
    "interval of nothing": (body(cron=None, every=0), 422, "every", "from 1"),
    "interval of a century": (body(cron=None, every=10**10), 422, "every", "every must be"),
    "huge integer": (b'{"name": "a", "every": ' + b"9" * 400 + b"}", 422, None, "beyond 64 bits"),
    "at long ago": (body(cron=None, at="1930-01-31T09:00:00Z"), 422, "at", "1970"),
    "at has passed": (body(cron=None, at="2001-01-31T09:00:00Z"), 422, "at", "passed"),
    "at the end of time": (body(cron=None, at="9999-12-31T23:59:59-23:59"), 422, "at", "9999"),
    "at no day": (body(cron=None, at="2030-02-31"), 422, "at", "at must be"),
    "payload is a list": (body(payload=[1]), 422, "payload", "payload must be"),
    "payload is bad text": (body(payload="{"), 422, "payload", "payload must be"),
    "headers are no object": (call(headers_json="[1]"), 422, "headers_json", "object"),
    "lone surrogate in text": (call(headers_json='{"a": "\\ud800"}'), 422, None, ""),
    "exec_type": (call(exec_type="LATER"), 422, "exec_type", "SYNC"),
    "a url and a handler": (body(target_url="http://a.example"), 422, "target_url", "give one"),
    "a method without a url": (body(http_method="GET"), 422, "http_method", "target_url"),
    "a url of a file": (call(target_url="file:///etc/passwd"), 422, "payload", "http"),
    "shell is off": (body(handler=None, executor="shell", payload={"argv": ["ls"]}), 422, "payload", "off"),
    "executor": (body(executor="telepathy"), 422, "executor", "executor must be"),
    "workflow and handler": (body(workflow="w"), 422, "workflow", "give one"),
    "priority": (body(priority=1001), 422, "priority", "priority must be"),
    "priority is true": (body(priority=True), 422, "priority", "whole number"),
    "overlap": (body(overlap_action="MAYBE"), 422, "overlap_action", "ALLOW, SKIP"),
    "overlap is a list": (body(overlap_action=["SKIP"]), 422, "overlap_action", "must be one of"),
    "max_concurrency": (body(max_concurrency=-1), 422, "max_concurrency", "from 0"),
    "queue_depth is text": (body(queue_depth="10"), 422, "queue_depth", "whole number"),
    "rate of nothing": (body(rate=0), 422, "rate", "rate must be"),
    "rate of almost nothing": (body(rate=1e-300), 422, "rate", "one a year"),
    "rate in words": (body(rate="often"), 422, "rate", "10/m"),
    "rate is not a number": (body(rate="nan/s"), 422, "rate", "rate must be"),
    "jitter": (body(jitter=-1), 422, "jitter", "jitter must be"),
    "grace is a list": (body(grace=[1]), 422, "grace", "grace must be"),
    "retry": (body(retry={"max_attempts": 0}), 422, "retry", "max_attempts must be"),
    "unknown retry": (body(retry={"attempts": 1}), 422, "retry", "retry has no 'attempts'"),
    "retry on success": (body(retry={"on": ["succeeded"]}), 422, "retry", "on may hold"),
    "shards": (body(shards=0), 422, "shards", "from 1"),
    "waits for itself": (body(after=["nightly"]), 422, "after", "itself"),
    "waits for nobody": (body(after=["nobody"]), 422, "after", "create it first"),
    "waits for a number": (body(after=[1]), 422, "after", "list of names"),
    "trigger_rule": (body(trigger_rule="any"), 422, "trigger_rule", "all_success"),
    "alerts": (body(alerts={"webhook": "ftp://a"}), 422, "alerts", "http or https"),
    "unknown alert": (body(alerts={"webhok": "http://a"}), 422, "alerts", "webhok"),
    "labels": (body(labels={"a": 1}), 422, "labels", "short texts"),
    "enabled": (body(enabled="no"), 422, "enabled", "true or false"),
    "status": (body(status="PAUSED"), 422, "status", "one of ENABLED"),
    "both": (body(status="ENABLED", enabled=False), 422, "status", "different things"),
    "version is not for making": (body(version=1), 422, "version", "a task has no 'version'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_bad_task(served, name):
    text, wanted, field, says = BAD[name]
    status, problem, headers = await served.ask("POST", TASKS, data=BytesIO(text), headers=JSON)
    assert status == wanted, problem
    assert headers["Content-Type"] == "application/problem+json"
    assert says in problem["detail"]
    if field is not None:
        assert problem["field"] == field
    assert "Traceback" not in json.dumps(problem) and len(json.dumps(problem)) < 4000
    assert await names(served) == ["there"]


@pytest.mark.parametrize(
    ("path", "sent", "field"),
    [
        ("trigger", {"payload": [1]}, "payload"),
        ("trigger", {"payload": "{}"}, "payload"),
        ("trigger", {"reason": "a\nb"}, "reason"),
        ("trigger", {"reason": "x" * 201}, "reason"),
        ("trigger", {"reasn": "x"}, "reasn"),
        ("pause", {"reason": "\x00"}, "reason"),
        ("pause", {"version": "1"}, "version"),
        ("pause", {"version": 0}, "version"),
        ("backfill", {}, "from"),
        ("backfill", {"from": "2030-01-01T00:00:00Z"}, "to"),
        ("backfill", {"from": "2030-01-01", "to": "2030-01-01T00:00:00Z"}, "from"),
        ("backfill", during("2030-01-02", "2030-01-01"), "to"),
        ("backfill", during("2001-01-01", "2030-01-01"), "to"),
        ("backfill", during("2020-01-01", "2020-01-02", concurrency=0), "concurrency"),
        ("backfill", during("2020-01-01", "2020-01-02", dry_run="no"), "dry_run"),
        ("backfill", {"begin": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}, "from"),
        ("simulate", during("2001-01-01", "2030-01-01", duration=1), "to"),
        ("simulate", during("2030-01-02", "2030-01-01"), "to"),
        ("simulate", during("2030-01-01", "2030-01-02"), "duration"),
        ("simulate", during("2030-01-01", "2030-01-02", duration=-1), "duration"),
        *(
            ("simulate", during("2030-01-01", "2030-01-02", duration=1, policy=policy), field)
            for policy, field in (
                ({"rate": 0}, "rate"),
                ({"burst": 0, "rate": 1}, "burst"),
                ({"max_concurrency": -1}, "max_concurrency"),
                ({"overlap_action": "MAYBE"}, "overlap_action"),
                ({"overlap_acton": "SKIP"}, "overlap_acton"),
                ([], "policy"),
            )
        ),
    ],
)
async def test_bad_commands(served, path, sent, field):
    status, problem, _ = await served.ask("POST", f"{TASKS}/there/{path}", json=sent)
    assert (status, problem.get("field")) == (422, field), problem
    assert await served.count() == 0


@pytest.mark.parametrize(
    ("method", "path", "wanted", "says"),
    [
        ("GET", f"{TASKS}/nobody", 404, "no task 'nobody'"),
        ("GET", f"{TASKS}/7", 404, "no task 7"),
        ("GET", f"{TASKS}/{'9' * 100}", 404, "taken for a number"),
        ("GET", f"{TASKS}/", 422, "task must be"),
        ("GET", f"{TASKS}/a%00b", 422, "task must be"),
        ("GET", f"{TASKS}/%E2%80%AE", 422, "task must be"),
        ("GET", f"{TASKS}/%E2%88%95", 422, "task must be"),
        ("GET", f"{TASKS}/{'n' * 129}", 422, "task must be"),
        ("POST", f"{TASKS}/nobody/trigger", 404, "no task"),
        ("POST", f"{TASKS}/nobody/pause", 404, "no task"),
        ("GET", f"{TASKS}/nobody/runs", 404, "no task"),
        ("GET", f"{TASKS}/nobody/explain", 422, "at is missing"),
        ("GET", f"{TASKS}/nobody/explain?at=soon", 422, "must be a time"),
        ("GET", f"{TASKS}/nobody/next?count=0", 422, "count"),
        ("GET", f"{TASKS}/nobody/runs?decision=maybe", 422, "decision"),
        ("GET", f"{TASKS}/nobody/runs?since=2030", 422, "must be a time"),
        ("GET", f"{TASKS}/nobody/runs?cursor=nonsense", 422, "next_cursor"),
        ("GET", f"{TASKS}?status=deleted", 422, "status"),
        ("GET", f"{TASKS}?prefix=%00", 422, "prefix must be"),
        ("GET", f"{TASKS}?cursor=nonsense", 422, "next_cursor"),
        ("GET", f"{TASKS}?limit=0", 422, "limit"),
        ("GET", f"{TASKS}?stauts=enabled", 422, "did you mean 'status'?"),
        ("PATCH", f"{TASKS}/nobody/trigger", 405, "it takes POST"),
        ("DELETE", TASKS, 405, "GET, POST"),
        ("POST", f"{TASKS}/nobody", 405, "DELETE, GET, PATCH, PUT"),
    ],
)
async def test_bad_path_or_query(served, method, path, wanted, says):
    async with served.client.request(method, URL(served.url + path, encoded=True)) as answer:
        problem = await answer.json(content_type=None)
        assert answer.status == wanted, problem
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert says in problem["detail"]


async def test_keys_that_cannot_be_kept(served):
    now = datetime.now(UTC)
    stretch = {"from": (now - timedelta(hours=2)).isoformat(), "to": now.isoformat()}
    for key in ("k" * 201, "a\tb"):
        for path, sent in (("trigger", None), ("backfill", stretch)):
            status, problem, _ = await served.ask(
                "POST", f"{TASKS}/there/{path}", json=sent, headers={"Idempotency-Key": key}
            )
            assert (status, problem["field"]) == (422, "Idempotency-Key")
