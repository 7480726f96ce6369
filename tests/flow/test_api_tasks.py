"""Tasks over REST: make, look, change, steer, fire, explain, simulate, apply; and what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fusee.access.service import KeyOperations
from fusee.runs.rest.shapes import RunOut
from fusee.tasks.fields import ALIASES, HTTP, TASK, fields_from
from fusee.tasks.model.task import TaskSpec
from fusee.tasks.rest.shapes import CREATE
from fusee.values.fields import shown as shown_of

TASKS = "/api/v1/tasks"
JSON = {"Content-Type": "application/json"}

# As it stands in the design that callers of old know, byte for byte.
OLD_REQUEST = rb"""{
  "name":"sync_stats",
  "description":"%s",
  "cron_expr":"*/15 * * * * *",
  "exec_type":"SYNC",
  "http_method":"POST",
  "target_url":"http://svc.internal/api/sync",
  "headers_json":"{\"Content-Type\":\"application/json\"}",
  "body_template":"{\"run_id\":\"{{run_id}}\"}",
  "timeout_seconds":10,
  "max_concurrency":1,
  "concurrency_policy":"QUEUE",
  "overlap_action":"SKIP",
  "failure_action":"RUN_NEW"
}""" % "统计同步".encode()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def task(name: str = "nightly", **fields: Any) -> dict[str, Any]:
    return {"name": name, "cron": "0 3 * * *", "handler": "greet", **fields}


async def made(served: Any, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    status, body, _ = await served.ask("POST", TASKS, json=task(name, **fields))
    assert status == 201, body
    answer: dict[str, Any] = body
    return answer


def ago(**how: float) -> str:
    return (datetime.now(UTC) - timedelta(**how)).isoformat()


# -- making


async def test_a_task_is_made_and_says_when_it_fires(served):
    status, body, headers = await served.ask("POST", TASKS, json=task(timezone="Europe/Berlin"))
    assert (status, body["name"], body["status"], body["version"]) == (201, "nightly", "enabled", 1)
    assert headers["Location"] == f"{TASKS}/{body['id']}"
    assert headers["ETag"] == '"1"'
    assert (body["cron"], body["trigger"]) == ("0 0 3 * * *", "cron")
    assert "03:00" in body["description_words"]["en"] and "3" in body["description_words"]["zh"]
    fires = [datetime.fromisoformat(at) for at in body["next_fires"]]
    assert len(fires) == 5 and fires == sorted(fires) and fires[0] > datetime.now(UTC)
    assert body["next_fires"][0] == body["next_fire_at"]
    _, again, headers = await served.ask("GET", headers["Location"])
    assert again == body and headers["ETag"] == '"1"'


async def test_the_request_of_old_is_taken_as_it_is(served):
    status, body, _ = await served.ask("POST", TASKS, data=OLD_REQUEST, headers=JSON)
    assert status == 201, body
    assert (body["name"], body["description"], body["cron"]) == ("sync_stats", "统计同步", "*/15 * * * * *")
    assert body["executor"] == "http"
    assert body["payload"] == {
        "url": "http://svc.internal/api/sync",
        "method": "POST",
        "headers": {"Content-Type": "application/json"},
        "body": '{"run_id":"{{run_id}}"}',
    }
    assert (body["timeout"], body["overlap_action"], body["concurrency_policy"]) == (10, "SKIP", "QUEUE")
    assert len(body["next_fires"]) == 5


@pytest.mark.parametrize("off", [{"enabled": False}, {"status": "DISABLED"}])
async def test_a_task_can_be_made_disabled(served, off):
    body = await made(served, **off)
    assert (body["status"], body["next_fire_at"], body["next_fires"]) == ("disabled", None, [])
    assert (await made(served, "on", status="ENABLED"))["status"] == "enabled"


async def test_a_name_is_taken_once(served):
    await made(served)
    status, body, _ = await served.ask("POST", TASKS, json=task())
    assert status == 409 and "already" in body["detail"]
    await served.ask("DELETE", f"{TASKS}/nightly")
    assert (await served.ask("POST", TASKS, json=task()))[0] == 201


async def test_a_handler_no_worker_has_is_refused_unless_allowed(served):
    status, body, _ = await served.ask("POST", TASKS, json=task(handler="gret"))
    assert (status, body["field"]) == (422, "handler") and "Did you mean 'greet'?" in body["detail"]
    assert (await served.ask("POST", f"{TASKS}?allow_unknown=true", json=task(handler="gret")))[0] == 201


async def test_a_preview_makes_nothing(served):
    status, body, _ = await served.ask("POST", f"{TASKS}/preview", json=task(cron="@hourly", enabled=False))
    assert status == 200 and body["cron"] == "0 0 * * * *"
    assert len(body["next_fires"]) == 5 and body["description_words"]["en"]
    assert (await served.ask("GET", TASKS))[1]["items"] == []
    status, body, _ = await served.ask("POST", f"{TASKS}/preview", json=task(cron="61 * * * *"))
    assert (status, body["field"]) == (422, "cron")


# -- looking


async def test_tasks_are_listed_by_name_page_by_page(served):
    names = ["a", "b/1", "b/2", "b/3", "c"]
    for name in reversed(names):
        await made(served, name)
    seen, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        _, page, _ = await served.ask("GET", TASKS, params=query)
        seen += [one["name"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == names
    assert "payload" not in page["items"][0]

    async def found(query: str) -> list[str]:
        return [one["name"] for one in (await served.ask("GET", f"{TASKS}?{query}"))[1]["items"]]

    await served.ask("POST", f"{TASKS}/a/pause")
    await served.ask("POST", f"{TASKS}/c/disable")
    assert await found("prefix=b/") == ["b/1", "b/2", "b/3"]
    assert await found("status=paused") == ["a"]
    assert await found("status=paused&status=disabled") == ["a", "c"]
    assert await found("status=enabled&prefix=b/2") == ["b/2"]


async def test_a_task_is_found_by_name_or_number_and_digits_are_a_number(served):
    first = await made(served, "mail/eu:daily")
    digits = await made(served, "4711")
    assert (await served.ask("GET", f"{TASKS}/mail/eu:daily"))[1]["id"] == first["id"]
    assert (await served.ask("GET", f"{TASKS}/{first['id']}"))[1]["name"] == "mail/eu:daily"
    assert (await served.ask("GET", f"{TASKS}/4711"))[0] == 404
    assert (await served.ask("GET", f"{TASKS}/{digits['id']}"))[1]["name"] == "4711"


async def test_a_name_that_ends_in_a_word_of_ours_escapes_its_slash(served):
    from yarl import URL

    await made(served, "a")
    other = await made(served, "a/runs")
    assert (await served.ask("GET", f"{TASKS}/a/runs"))[1] == {"items": [], "next_cursor": None}
    assert (await served.ask("DELETE", f"{TASKS}/a/runs"))[0] == 405
    escaped = URL(f"{served.url}{TASKS}/a%2Fruns", encoded=True)
    async with served.client.get(escaped) as answer:
        assert (await answer.json())["id"] == other["id"]
    async with served.client.post(URL(f"{escaped}/pause", encoded=True)) as answer:
        assert (await answer.json())["status"] == "paused"


# -- changing


async def test_put_makes_it_what_is_written(served):
    await made(served, timeout="5m", labels={"team": "mail"})
    wanted = {"cron": "0 4 * * *", "handler": "greet", "version": 1}
    status, body, headers = await served.ask("PUT", f"{TASKS}/nightly", json=wanted)
    assert status == 200, body
    assert (body["name"], body["cron"], body["version"], headers["ETag"]) == (
        "nightly",
        "0 0 4 * * *",
        2,
        '"2"',
    )
    assert (body["timeout"], body["labels"]) == (None, {})


async def test_an_answer_can_be_edited_and_sent_back(served):
    for fields in (task("a"), task("b", cron=None, every="90s"), json.loads(OLD_REQUEST)):
        _, answer, _ = await served.ask("POST", TASKS, json=fields)
        status, body, _ = await served.ask("PUT", f"{TASKS}/{answer['name']}", json=answer | {"priority": 7})
        assert status == 200, body
        same = {key: value for key, value in body.items() if key not in ("version", "updated_at", "priority")}
        assert same.items() <= answer.items() and (body["priority"], body["version"]) == (7, 2)


async def test_patch_changes_what_is_given_and_null_is_the_default(served):
    await made(served, timeout="5m", priority=3)
    _, body, _ = await served.ask("PATCH", f"{TASKS}/nightly", json={"every": 60, "timeout": None})
    assert (body["cron"], body["every"], body["timeout"], body["priority"]) == (None, 60, None, 3)
    _, body, _ = await served.ask("PATCH", f"{TASKS}/nightly", json={"interval_seconds": 90})
    assert (body["every"], body["trigger"], body["version"]) == (90, "interval", 3)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_stale_version_is_refused(served, method):
    await made(served)
    path = f"{TASKS}/nightly"
    fields = {"cron": "0 5 * * *", "handler": "greet"}
    assert (await served.ask(method, path, json=fields, headers={"If-Match": '"1"'}))[0] == 200
    for body, headers in (({"version": 1}, {}), ({}, {"If-Match": '"1"'}), ({}, {"If-Match": "1"})):
        status, problem, _ = await served.ask(method, path, json=fields | body, headers=headers)
        assert status == 409 and "at version 2, not 1" in problem["detail"]
    assert (await served.ask(method, path, json=fields, headers={"If-Match": "*"}))[0] == 200
    for body, headers, field in (
        ({"version": 3}, {"If-Match": '"2"'}, "version"),
        ({"version": "3"}, {}, "version"),
        ({"version": 0}, {}, "version"),
        ({}, {"If-Match": "soon"}, "If-Match"),
        ({}, {"If-Match": '"1", "2"'}, "If-Match"),
    ):
        status, problem, _ = await served.ask(method, path, json=fields | body, headers=headers)
        assert (status, problem["field"]) == (422, field)
    assert (await served.ask("GET", path))[1]["version"] == 3


async def test_of_many_who_change_the_same_version_one_wins(served):
    await made(served)

    async def put(hour: int) -> int:
        body = {"cron": f"0 {hour} * * *", "handler": "greet", "version": 1}
        return int((await served.ask("PUT", f"{TASKS}/nightly", json=body))[0])

    assert sorted(await asyncio.gather(*(put(hour) for hour in range(8)))) == [200] + [409] * 7
    assert (await served.ask("GET", f"{TASKS}/nightly"))[1]["version"] == 2


async def test_neither_name_nor_status_is_changed_on_the_side(served):
    await made(served)
    path = f"{TASKS}/nightly"
    for method in ("PUT", "PATCH"):
        assert (await served.ask(method, path, json=task("other")))[0] == 409
        for change, field in (({"enabled": False}, "enabled"), ({"status": "DISABLED"}, "status")):
            status, problem, _ = await served.ask(method, path, json=task() | change)
            assert (status, problem["field"]) == (422, field) and "/disable" in problem["detail"]
        for same in ({"enabled": True}, {"status": "ENABLED"}, {"status": "enabled"}):
            assert (await served.ask(method, path, json=task() | same))[0] == 200
    assert (await served.ask("PATCH", path, json={"name": None}))[0] == 422
    assert (await served.ask("PATCH", path, json={"next_fire_at": None}))[0] == 422


async def test_a_task_that_others_wait_for_is_not_deleted(served):
    await made(served, "first")
    await made(served, "second", after=["first"], cron=None)
    status, problem, _ = await served.ask("DELETE", f"{TASKS}/first")
    assert status == 409 and "second" in problem["detail"]
    assert (await served.ask("DELETE", f"{TASKS}/second", headers={"If-Match": '"2"'}))[0] == 409
    assert (await served.ask("DELETE", f"{TASKS}/second", headers={"If-Match": '"1"'}))[0] == 204
    assert (await served.ask("DELETE", f"{TASKS}/first"))[0] == 204
    assert (await served.ask("GET", f"{TASKS}/first"))[0] == 404
    assert (await served.ask("DELETE", f"{TASKS}/first"))[0] == 404


async def test_steering(served):
    await made(served)
    path = f"{TASKS}/nightly"
    status, body, headers = await served.ask("POST", f"{path}/pause", json={"reason": "maintenance"})
    assert (status, body["status"], body["reason"], headers["ETag"]) == (200, "paused", "maintenance", '"2"')
    assert body["next_fires"] == []
    assert (await served.ask("POST", f"{path}/pause"))[1]["version"] == 2  # asked twice, nothing changes
    assert (await served.ask("POST", f"{path}/resume", json={"version": 1}))[0] == 409
    assert (await served.ask("POST", f"{path}/resume", headers={"If-Match": '"2"'}))[1]["status"] == "enabled"
    assert (await served.ask("POST", f"{path}/disable"))[1]["status"] == "disabled"
    assert (await served.ask("POST", f"{path}/resume"))[0] == 409
    assert (await served.ask("POST", f"{path}/trigger"))[0] == 409
    assert (await served.ask("POST", f"{path}/enable"))[1]["next_fires"] != []


async def test_a_queue_is_cleared(served):
    await made(served)
    path = f"{TASKS}/nightly"
    for _ in range(3):
        await served.ask("POST", f"{path}/trigger")
    status, body, _ = await served.ask("POST", f"{path}/clear-queue", json={"reason": "stale"})
    assert (status, body) == (200, {"cleared": 2})
    assert (await served.ask("POST", f"{path}/clear-queue"))[1] == {"cleared": 0}
    _, fires, _ = await served.ask("GET", f"{path}/runs")
    assert [fire["rule"] for fire in fires["items"][:2]] == ["queue cleared: stale"] * 2
    assert [fire["run_status"] for fire in fires["items"]] == ["skipped", "skipped", "pending"]
    assert (await served.ask("POST", f"{TASKS}/nobody/clear-queue"))[0] == 404
    assert (await served.ask("POST", f"{path}/clear-queue", json={"reason": 7}))[0] == 422


# -- firing


async def test_a_trigger_runs_and_the_run_knows_its_task(working):
    await made(working, payload={"name": "Ada"})
    path = f"{TASKS}/nightly"
    status, body, _ = await working.ask(
        "POST", f"{path}/trigger", json={"payload": {"name": "Grace"}, "reason": "asked for"}
    )
    assert (status, body["decision"], body["created"]) == (201, "run", True)
    assert "asked for" in body["rule"]
    _, run, _ = await working.ask("GET", f"/api/v1/runs/{body['run_ids'][0]}/wait?timeout=20s")
    assert (run["status"], run["result"]) == ("succeeded", "hello Grace")
    assert (run["kind"], run["task"], run["fire_time"]) == ("task", "nightly", body["fire_time"])
    assert (run["shard_index"], run["shard_total"]) == (0, 1)


async def test_a_repeated_trigger_fires_once(served):
    await made(served, "a", shards=3)
    await made(served, "b")
    key = {"Idempotency-Key": "order-1"}
    first = await served.ask("POST", f"{TASKS}/a/trigger", headers=key)
    again = await served.ask("POST", f"{TASKS}/a/trigger", headers=key)
    assert (first[0], again[0], again[1]["created"]) == (201, 200, False)
    assert again[1]["run_ids"] == first[1]["run_ids"] and len(first[1]["run_ids"]) == 3
    assert (await served.ask("POST", f"{TASKS}/b/trigger", headers=key))[0] == 409
    assert await served.count() == 3


async def test_a_skipped_trigger_is_an_answer_too(served):
    await made(served, overlap_action="SKIP")
    _, first, _ = await served.ask("POST", f"{TASKS}/nightly/trigger")
    status, body, _ = await served.ask("POST", f"{TASKS}/nightly/trigger")
    assert (status, body["decision"]) == (201, "skip")
    assert f"run {first['run_ids'][0]} has not ended" in body["rule"]


async def test_a_payload_that_could_never_run_is_refused_before_it_fires(served):
    call = {"executor": "http", "payload": {"url": "http://svc.example/{{param.day}}", "params": {"day": 1}}}
    await made(served, handler=None, **call)
    status, problem, _ = await served.ask("POST", f"{TASKS}/nightly/trigger", json={"payload": {"a day": 1}})
    assert (status, problem["field"]) == (422, "payload")
    assert await served.count() == 0
    assert (await served.ask("POST", f"{TASKS}/nightly/trigger", json={"payload": {"day": 2}}))[0] == 201


async def test_the_runs_of_a_task_newest_first_with_the_rule(served):
    await made(served, overlap_action="SKIP", shards=2)
    for _ in range(3):
        await served.ask("POST", f"{TASKS}/nightly/trigger")
    path = f"{TASKS}/nightly/runs"
    seen, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        _, page, _ = await served.ask("GET", path, params=query)
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len({(one["fire_time"], one["shard"]) for one in seen}) == len(seen) == 4
    assert [one["decision"] for one in seen] == ["skip", "skip", "run", "run"]
    assert [one["fire_time"] for one in seen] == sorted((one["fire_time"] for one in seen), reverse=True)
    last = seen[-1]
    assert (last["cause"], last["code"], last["run_status"], last["held"]) == (
        "manual",
        "manual",
        "pending",
        None,
    )
    assert last["lateness_seconds"] >= 0 and last["run_id"]
    _, page, _ = await served.ask("GET", path, params={"decision": "run"})
    assert [one["decision"] for one in page["items"]] == ["run", "run"]
    _, page, _ = await served.ask(
        "GET", path, params={"decision": ["run", "skip"], "until": last["fire_time"]}
    )
    assert {one["fire_time"] for one in page["items"]} == {last["fire_time"]}
    assert (await served.ask("GET", path, params={"since": "2031-01-01T00:00:00Z"}))[1]["items"] == []


async def test_explain(served):
    await made(served, cron="0 3 * * *")
    _, fired, _ = await served.ask("POST", f"{TASKS}/nightly/trigger")
    path = f"{TASKS}/nightly/explain"
    _, body, _ = await served.ask("GET", path, params={"at": fired["fire_time"]})
    assert (body["verdict"], body["rule"], body["at"]) == ("waiting", fired["rule"], fired["fire_time"])
    assert [one["run_id"] for one in body["fires"]] == fired["run_ids"]
    _, body, _ = await served.ask("GET", path, params={"at": "2099-01-01T03:00:00Z"})
    assert (body["verdict"], body["fires"]) == ("not_yet", [])
    # A plus that nobody escaped arrives as a space.
    _, body, _ = await served.ask("GET", f"{path}?at=2099-01-01T05:00:00+02:00")
    assert body["at"] == "2099-01-01T03:00:00.000000Z"
    _, body, _ = await served.ask("GET", path, params={"at": "2099-01-01T04:00:00Z"})
    assert body["verdict"] == "not_due" and "next time after it" in body["text"]


async def test_the_end_of_the_calendar_is_no_error(served):
    await made(served, cron=None, every="3650d")
    status, body, _ = await served.ask("GET", f"{TASKS}/nightly/explain?at=9999-12-31T23:59:59Z")
    assert (status, body["verdict"]) == (200, "not_due")


async def test_next(served):
    await made(served, timezone="Europe/Berlin")
    _, body, _ = await served.ask("GET", f"{TASKS}/nightly/next?count=12")
    assert (body["task"], len(body["next_fires"])) == ("nightly", 12)
    await served.ask("POST", f"{TASKS}/nightly/pause")
    assert (await served.ask("GET", f"{TASKS}/nightly/next"))[1]["next_fires"] == []


async def test_backfill_dry_first_then_once(served):
    await made(served, cron="0 * * * *")
    body = {"from": ago(hours=5), "to": ago(hours=0), "concurrency": 2}
    path, key = f"{TASKS}/nightly/backfill", {"Idempotency-Key": "march"}
    status, dry, _ = await served.ask("POST", path, json=body | {"dry_run": True}, headers=key)
    assert (status, dry["id"], dry["created"], dry["count"]) == (200, None, False, 5)
    assert await served.count() == 0
    status, done, _ = await served.ask("POST", path, json=body, headers=key)
    assert (status, done["fires"], done["concurrency"]) == (201, dry["fires"], 2)
    status, again, _ = await served.ask("POST", path, json=body, headers=key)
    assert (status, again["id"], again["fires"], again["created"]) == (200, done["id"], done["fires"], False)
    _, page, _ = await served.ask("GET", f"{TASKS}/nightly/runs")
    assert {(one["cause"], one["backfill_id"]) for one in page["items"]} == {("backfill", done["id"])}
    other = await served.ask("POST", path, json=body | {"to": ago(hours=1)}, headers=key)
    assert other[0] == 409 and "use a new key" in other[1]["detail"]
    status, nothing, _ = await served.ask("POST", path, json=body)
    assert (status, nothing["count"], nothing["left"]) == (200, 0, 5)


async def test_simulate_says_what_another_policy_would_have_done(served):
    await made(served, cron="* * * * *")
    body = {
        "from": "2030-01-01T00:00:00Z",
        "to": "2030-01-01T00:09:00Z",
        "policy": {"overlap": "SKIP"},
        "duration": "90s",
    }
    status, answer, _ = await served.ask("POST", f"{TASKS}/nightly/simulate", json=body)
    assert status == 200, answer
    assert (answer["simulated"], answer["actual"]) == ({"run": 5, "skip": 5}, {})
    assert answer["policy"]["overlap_action"] == "SKIP" and answer["duration"] == 90
    first, second = answer["fires"][:2]
    assert (first["decision"], first["ends_at"]) == ("run", "2030-01-01T00:01:30.000000Z")
    assert (second["decision"], second["starts_at"], second["actual"]) == ("skip", None, None)
    assert await served.count() == 0


# -- cron


async def test_a_cron_expression_in_words(served):
    query = {"expression": "0 9 * * MON-FRI", "timezone": "Asia/Shanghai", "count": "3"}
    status, body, _ = await served.ask("GET", "/api/v1/cron", params=query)
    assert (status, body["cron"], body["timezone"]) == (200, "0 0 9 * * MON-FRI", "Asia/Shanghai")
    assert "09:00" in body["description_words"]["en"] and body["description_words"]["zh"]
    assert len(body["next_fires"]) == 3 and all(at.endswith("T01:00:00.000000Z") for at in body["next_fires"])


@pytest.mark.parametrize(
    ("query", "field", "says", "part", "position"),
    [
        ({"expression": "61 * * * *"}, "expression", "minute", "minute", 1),
        ({"expression": "0 0 31 2 *"}, "expression", "31 is not a day of February", None, None),
        ({"expression": "* * *"}, "expression", "", None, None),
        ({"expression": "\x00"}, "expression", "", None, None),
        ({"expression": "0 3 * * *", "timezone": "Mars/Base"}, "timezone", "IANA", None, None),
        ({"expression": "0 3 * * *", "timezone": "../../etc/passwd"}, "timezone", "IANA", None, None),
        ({"expression": "0 3 * * *", "count": "101"}, "count", "100", None, None),
        ({"timezone": "UTC"}, "expression", "missing", None, None),
    ],
)
async def test_a_wrong_cron_expression(served, query, field, says, part, position):
    status, problem, _ = await served.ask("GET", "/api/v1/cron", params=query)
    assert (status, problem["field"]) == (422, field) and says in problem["detail"]
    if part is not None:
        assert (problem["part"], problem["position"]) == (part, position)


# -- tasks as code


async def test_apply_makes_it_so_and_tells_what_changed(served):
    documents = [task("b", after=["a"], cron=None), task("a"), task("off", status="DISABLED")]

    async def apply(**body: Any) -> tuple[int, Any]:
        wanted = {"documents": documents, "group": "mail", **body}
        status, answer, _ = await served.ask("POST", f"{TASKS}/apply", json=wanted)
        return status, answer

    status, dry = await apply(dry_run=True)
    assert status == 200 and dry["dry_run"] is True
    assert {one["name"]: one["action"] for one in dry["changes"]} == dict.fromkeys(
        ("a", "b", "off"), "create"
    )
    assert (await served.ask("GET", TASKS))[1]["items"] == []
    _, done = await apply()
    assert done["changes"] == dry["changes"]
    assert {one["action"] for one in (await apply())[1]["changes"]} == {"unchanged"}

    documents = [task("a", priority=5)]
    await made(served, "mine")
    _, answer = await apply(prune=True)
    changes = {one["name"]: one for one in answer["changes"]}
    assert {name: one["action"] for name, one in changes.items()} == {
        "a": "update",
        "b": "delete",
        "off": "delete",
    }
    assert changes["a"]["differences"] == [{"field": "priority", "before": 0, "after": 5}]
    assert [one["name"] for one in (await served.ask("GET", TASKS))[1]["items"]] == ["a", "mine"]


async def test_apply_checks_all_before_it_writes_any(served):
    for bad, field in ((task("b", handler="gret"), "handler"), (task("b", prio=1), "prio"), ({}, "name")):
        wanted = {"documents": [task("a"), bad]}
        for more in ({}, {"dry_run": True}):
            status, problem, _ = await served.ask("POST", f"{TASKS}/apply", json=wanted | more)
            assert (status, problem["field"]) == (422, field)
    assert (await served.ask("GET", TASKS))[1]["items"] == []


async def test_an_apply_that_fails_half_way_says_how_far_it_came(served):
    wanted = {"documents": [task("a"), task("b", after=["nowhere"])]}
    status, problem, _ = await served.ask("POST", f"{TASKS}/apply", json=wanted)
    assert (status, problem["field"]) == (422, "after")
    assert [(one["name"], one["action"]) for one in problem["changes"]] == [("a", "create")]


# -- who may


async def test_roles(served):
    await made(served)
    keys = {}
    for role in ("viewer", "operator", "admin"):
        keys[role] = bearer((await served.app.keys.create(role, role))[1])
    one = f"{TASKS}/nightly"
    allowed = {
        ("GET", TASKS): "viewer",
        ("GET", one): "viewer",
        ("GET", f"{one}/runs"): "viewer",
        ("GET", f"{one}/next"): "viewer",
        ("GET", f"{one}/explain?at=2030-01-01T00:00:00Z"): "viewer",
        ("POST", f"{one}/simulate"): "viewer",
        ("POST", f"{TASKS}/preview"): "viewer",
        ("GET", "/api/v1/cron?expression=@daily"): "viewer",
        ("POST", TASKS): "operator",
        ("POST", f"{TASKS}/apply"): "operator",
        ("PUT", one): "operator",
        ("PATCH", one): "operator",
        ("POST", f"{one}/trigger"): "operator",
        ("POST", f"{one}/backfill"): "operator",
        ("POST", f"{one}/pause"): "operator",
        ("POST", f"{one}/resume"): "operator",
        ("POST", f"{one}/enable"): "operator",
        ("POST", f"{one}/disable"): "operator",
        ("DELETE", one): "operator",
    }
    roles = list(keys)
    for (method, path), least in allowed.items():
        for role, headers in keys.items():
            status, _, _ = await served.ask(method, path, headers=headers)
            assert (status == 403) == (roles.index(role) < roles.index(least)), (method, path, role, status)


async def test_a_task_of_another_namespace_is_not_there(served):
    ours = await made(served)
    elsewhere = KeyOperations(served.app.store.for_namespace("other").api_keys)
    theirs = bearer((await elsewhere.create("them", "admin"))[1])
    for ref in ("nightly", ours["id"]):
        one = f"{TASKS}/{ref}"
        for method, path, body in (
            ("GET", one, None),
            ("GET", f"{one}/runs", None),
            ("GET", f"{one}/next", None),
            ("GET", f"{one}/explain?at=2030-01-01T00:00:00Z", None),
            ("PUT", one, task()),
            ("PATCH", one, {"priority": 1}),
            ("DELETE", one, None),
            ("POST", f"{one}/trigger", None),
            ("POST", f"{one}/pause", None),
            ("POST", f"{one}/simulate", {"from": ago(days=1), "to": ago(days=0), "duration": 1}),
            ("POST", f"{one}/backfill", {"from": ago(days=1), "to": ago(days=0)}),
        ):
            assert (await served.ask(method, path, json=body, headers=theirs))[0] == 404, (method, path)
    assert (await served.ask("GET", TASKS, headers=theirs))[1]["items"] == []
    # Each namespace has its own names.
    path = f"{TASKS}?allow_unknown=true"
    assert (await served.ask("POST", path, json=task(), headers=theirs))[0] == 201


# -- what is described


async def test_the_examples_of_the_page_work(working):
    page = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    section = page.partition("\n## Tasks\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = [line for block in blocks for line in commands_in(block)]
    assert len(commands) >= 10
    for command in commands:
        method, path, headers, data = asked_by(command)
        status, answer, _ = await working.ask(method, path, headers=headers, data=data)
        assert status in (200, 201), (command, answer)
        if "/simulate" in path:
            assert answer["simulated"] == {"run": 4, "skip": 3}
        if "/backfill" in path:
            assert (answer["count"], answer["fires"][0]) == (5, "2025-03-03T08:30:00.000000Z")
        if "/explain" in path:
            assert answer["verdict"] == "not_yet"


def commands_in(block: str) -> list[list[str]]:
    """The words of each curl of a shell example; quoted text and `\\` may go over lines."""
    words = shlex.split(block.replace("\\\n", " "), comments=True)
    starts = [place for place, word in enumerate(words) if word == "curl"]
    return [words[a:b] for a, b in zip(starts, [*starts[1:], len(words)], strict=True)]


def asked_by(words: list[str]) -> tuple[str, str, dict[str, str], str | None]:
    """What `curl` would send: method, path, headers, body."""
    method, path, headers, data = "", "", {}, None
    rest = iter(words[1:])
    for word in rest:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "-d":
                data = next(rest)
            case _:
                path = word.removeprefix("$API")
    return method or ("GET" if data is None else "POST"), path, headers, data


def test_the_description_knows_every_field_and_its_default():
    described = CREATE.schema
    assert set(described["properties"]) == {*TASK.fields, *HTTP, "enabled", "status", "template", "with"}
    older = next(iter(described["patternProperties"]))
    assert set(older.strip("^($)").split("|")) == set(ALIASES)
    defaults = fields_from(TaskSpec(name="a", handler="a"))
    for name, schema in described["properties"].items():
        if name in defaults and name not in ("name", "handler"):
            assert schema["default"] == defaults[name]


async def test_the_command_line_shows_a_run_as_the_api_does(served):
    _, accepted, _ = await served.ask("POST", "/api/v1/runs", json={"handler": "greet"})
    run = await served.app.store.runs.run(accepted["id"])
    printed = shown_of(run, attempts=[])
    assert RunOut(**printed).model_dump(mode="json") == printed


async def test_fires_by_hand_are_counted(served):
    await served.ask("POST", "/api/v1/tasks", json={"name": "counted", "handler": "greet"})
    for _ in range(3):
        assert (await served.ask("POST", "/api/v1/tasks/counted/trigger"))[0] == 201
    _, text, _ = await served.ask("GET", "/metrics")
    assert 'fusee_fires_total{code="manual"} 1' in text
    assert 'fusee_fires_total{code="concurrency"} 2' in text
