"""A PATCH changes what it names and nothing else: each field alone, in each of its spellings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fusee.tasks.fields import ALIASES, HTTP, TASK

TASKS = "/api/v1/tasks"
MOVES = {"version", "updated_at", "next_fires", "next_fire_at", "description_words", "trigger"}
"""What may differ after any change, or follows from the schedule."""

CALL: dict[str, Any] = {
    "url": "https://svc.example/sync",
    "method": "PUT",
    "headers": {"Content-Type": "application/json", "X-Team": "stats"},
    "body": '{"run_id":"{{run_id}}"}',
    "success": "200-204",
    "mode": "async",
    "callback_timeout": 60,
    "callback_hmac": True,
}
BASE: dict[str, Any] = {
    "name": "sync",
    "description": "Every quarter of an hour",
    "cron": "0 */15 * * * *",
    "timezone": "Europe/Berlin",
    "executor": "http",
    "payload": CALL,
    "queue": "calls",
    "region": "eu",
    "priority": 5,
    "timeout": 10,
    "retry": {"max_attempts": 4, "backoff": "linear", "base": 2.5, "max": 60, "jitter": 0.1},
    "overlap_action": "SKIP",
    "max_concurrency": 3,
    "concurrency_policy": "SKIP",
    "queue_depth": 7,
    "failure_action": "RETRY",
    "catch_up_mode": "FULL",
    "catch_up_window": 60,
    "catch_up_cap": 5,
    "grace": 3,
    "jitter": 1,
    "rate": 2,
    "burst": 2,
    "shards": 2,
    "after": ["first"],
    "trigger_rule": "all_done",
    "alerts": {"webhook": "https://hook.example/a", "on_failure": True, "on_lateness": 30},
    "labels": {"team": "stats", "tier": "gold"},
    "requires": {"gpu": "true", "zone": "a"},
    "strategy": "consistent_hash",
    "cpu": 1,
    "memory": 1024,
    "hash_key": "k",
}

# What is sent, and each member of the answer that shall then be otherwise; a dot goes into an object.
CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"target_url": "https://other.example/"}, {"payload.url": "https://other.example/"}),
    ({"http_method": "POST"}, {"payload.method": "POST"}),
    ({"http_method": None}, {"payload.method": None}),
    ({"headers_json": {"X-Team": "ops"}}, {"payload.headers.X-Team": "ops"}),
    ({"headers_json": {"X-Team": None}}, {"payload.headers.X-Team": None}),
    ({"headers_json": '{"X-New": "n"}'}, {"payload.headers": {"X-New": "n"}}),
    ({"headers_json": None}, {"payload.headers": None}),
    ({"body_template": "again"}, {"payload.body": "again"}),
    ({"body_template": None}, {"payload.body": None}),
    ({"callback_timeout_sec": 90}, {"payload.callback_timeout": 90}),
    ({"callback_method": "PATCH"}, {"payload.callback_method": "PATCH"}),
    ({"exec_type": "ASYNC"}, {}),
    (
        {"exec_type": "SYNC"},
        {"payload.mode": None, "payload.callback_timeout": None, "payload.callback_hmac": None},
    ),
    ({"payload": {"url": "https://other.example/"}}, {"payload.url": "https://other.example/"}),
    ({"params": {"method": "POST"}}, {"payload.method": "POST"}),
    ({"payload": {"headers": {"X-Team": "ops"}}}, {"payload.headers.X-Team": "ops"}),
    ({"payload": {"success": None}}, {"payload.success": None}),
    ({"payload": '{"url": "https://other.example/"}'}, {"payload": {"url": "https://other.example/"}}),
    ({"executor": "http"}, {}),
    ({"task_type": "HTTP"}, {}),
    ({"parameters": {"method": "POST"}}, {"payload.method": "POST"}),
    ({"schedule": "0 0 4 * * *"}, {"cron": "0 0 4 * * *"}),
    ({"max_retries": 8}, {"retry.max_attempts": 9}),
    ({"max_retries": None}, {"retry.max_attempts": None}),
    ({"dependencies": [2]}, {"after": ["second"]}),
    ({"shard_config": {"shard_total": 3}}, {"shards": 3}),
    ({"shard_config": None}, {"shards": 1}),
    ({"description": "Other"}, {"description": "Other"}),
    ({"cron": "0 0 4 * * *"}, {"cron": "0 0 4 * * *"}),
    ({"cron_expr": "0 0 4 * * *"}, {"cron": "0 0 4 * * *"}),
    ({"every": 60}, {"cron": None, "every": 60}),
    ({"interval": "1m"}, {"cron": None, "every": 60}),
    ({"interval_seconds": 60}, {"cron": None, "every": 60}),
    ({"at": "2090-01-31T03:00:00Z"}, {"cron": None, "at": "2090-01-31T03:00:00.000000Z"}),
    ({"timezone": "UTC"}, {"timezone": "UTC"}),
    ({"queue": "other"}, {"queue": "other"}),
    ({"region": None}, {"region": ""}),
    ({"priority": 6}, {"priority": 6}),
    ({"timeout": None}, {"timeout": None}),
    ({"timeout_seconds": 20}, {"timeout": 20}),
    ({"retry": {"max_attempts": 9}}, {"retry.max_attempts": 9}),
    ({"retry_policy": {"base": "3s"}}, {"retry.base": 3}),
    ({"retry_policy_json": '{"max_attempts": 9}'}, {"retry": {"max_attempts": 9}}),
    ({"overlap_action": "allow"}, {"overlap_action": "ALLOW"}),
    ({"overlap": "CANCEL_PREV"}, {"overlap_action": "CANCEL_PREV"}),
    ({"max_concurrency": 4}, {"max_concurrency": 4}),
    ({"concurrency_policy": "QUEUE"}, {"concurrency_policy": "QUEUE"}),
    ({"concurrency": "parallel"}, {"concurrency_policy": "PARALLEL"}),
    ({"queue_depth": 8}, {"queue_depth": 8}),
    ({"failure_action": "SKIP"}, {"failure_action": "SKIP"}),
    ({"failure": "PAUSE"}, {"failure_action": "PAUSE"}),
    ({"catch_up_mode": "NONE"}, {"catch_up_mode": "NONE"}),
    ({"catch_up": "compact"}, {"catch_up_mode": "COMPACT"}),
    ({"catch_up_window": 61}, {"catch_up_window": 61}),
    ({"catch_up_cap": 6}, {"catch_up_cap": 6}),
    ({"grace": 4}, {"grace": 4}),
    ({"jitter": 2}, {"jitter": 2}),
    ({"rate": "60/m"}, {"rate": 1}),
    ({"burst": 3}, {"burst": 3}),
    ({"shards": 3}, {"shards": 3}),
    ({"after": []}, {"after": []}),
    ({"depends_on": ["second"]}, {"after": ["second"]}),
    ({"trigger_rule": "any_success"}, {"trigger_rule": "any_success"}),
    ({"alerts": {"on_lateness": 40}}, {"alerts.on_lateness": 40}),
    ({"alerts": None}, {"alerts": None}),
    ({"labels": {"team": "ops"}}, {"labels.team": "ops"}),
    ({"requires": {"gpu": "false"}}, {"requires.gpu": "false"}),
    ({"labels": {"tier": None}}, {"labels.tier": None}),
    ({"strategy": "least_loaded", "hash_key": None}, {"strategy": "least_loaded", "hash_key": None}),
    ({"cpu": 2}, {"cpu": 2}),
    ({"memory": "2KiB"}, {"memory": 2048}),
    ({"hash_key": "other"}, {"hash_key": "other"}),
)


async def prepared(served: Any, **fields: Any) -> dict[str, Any]:
    for name in ("first", "second"):
        await served.ask("POST", TASKS, json={"name": name, "handler": "greet"})
    status, body, _ = await served.ask("POST", TASKS, json={**BASE, **fields})
    assert status == 201, body
    answer: dict[str, Any] = body
    return answer


def changed(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The answer that is wanted; None takes a member of an object away."""
    wanted = json.loads(json.dumps(before))
    for path, value in changes.items():
        *way, last = path.split(".")
        inner = wanted
        for step in way:
            inner = inner[step]
        if value is None and way:
            inner.pop(last, None)
        else:
            inner[last] = value
    return {name: value for name, value in wanted.items() if name not in MOVES}


async def test_a_patch_changes_what_it_names_and_nothing_else(served):
    await prepared(served)
    path = f"{TASKS}/sync"
    for sent, changes in CHANGES:
        before = (await served.ask("PUT", path, json=BASE))[1]
        status, after, _ = await served.ask("PATCH", path, json=sent)
        assert status == 200, (sent, after)
        wanted = changed(before, changes)
        assert {name: value for name, value in after.items() if name not in MOVES} == wanted, sent


def test_every_field_and_every_spelling_of_it_is_tried():
    tried = {name for sent, _ in CHANGES for name in sent}
    # A name stays; these four choose what runs, and have a test of their own.
    apart = {"name", "handler", "workflow", "batch"}
    assert {*TASK.fields, *HTTP, *ALIASES} - apart - tried == set()


async def test_the_executor_of_a_handler_can_be_named_without_losing_the_handler(served):
    await served.ask("POST", TASKS, json={"name": "a", "handler": "greet", "payload": {"name": "Ada"}})
    status, body, _ = await served.ask("PATCH", f"{TASKS}/a", json={"executor": "python"})
    assert (status, body["handler"], body["payload"]) == (200, "greet", {"name": "Ada"}), body
    _, body, _ = await served.ask("PATCH", f"{TASKS}/a", json={"handler": "fail"})
    assert (body["handler"], body["payload"]) == ("fail", {"name": "Ada"})


async def test_a_payload_does_not_follow_to_another_executor(served):
    await prepared(served)
    path = f"{TASKS}/sync"
    _, body, _ = await served.ask("PATCH", path, json={"handler": "greet", "payload": {"name": "Ada"}})
    assert (body["executor"], body["handler"], body["payload"]) == ("python", "greet", {"name": "Ada"})
    _, body, _ = await served.ask("PATCH", path, json={"target_url": "https://svc.example/"})
    assert (body["executor"], body["payload"]) == ("http", {"url": "https://svc.example/"})


@pytest.mark.parametrize(
    ("base", "sent", "field", "says"),
    [
        ({}, {"target_url": None}, "target_url", "needs an address"),
        ({}, {"headers_json": "X"}, "headers_json", "an object"),
        ({}, {"http_method": "FETCH"}, "payload", "method must be one of"),
        ({"payload": {"url": "https://a.example"}}, {"callback_timeout_sec": 5}, "callback_timeout_sec",
         "ASYNC"),
        ({"executor": "python", "handler": "greet", "payload": {}}, {"http_method": "POST"}, "http_method",
         "goes with target_url"),
    ],
)  # fmt: skip
async def test_a_patch_that_cannot_be_is_refused_and_changes_nothing(served, base, sent, field, says):
    before = await prepared(served, **base)
    status, problem, _ = await served.ask("PATCH", f"{TASKS}/sync", json=sent)
    assert (status, problem["field"]) == (422, field) and says in problem["detail"], problem
    assert (await served.ask("GET", f"{TASKS}/sync"))[1]["version"] == before["version"]


async def test_a_header_and_a_default_of_a_business_change_alone(served):
    path = "/api/v1/businesses"
    fields = {
        "name": "crm",
        "item": "https://crm.example/mail",
        "headers": {"Authorization": "Bearer s3cret", "X-Team": "mail"},
        "defaults": {"rate": 5, "concurrency": 4},
    }
    status, _, _ = await served.ask("POST", path, json=fields)
    assert status == 201
    _, body, _ = await served.ask("PATCH", f"{path}/crm", json={"headers": {"X-Team": "ops"}})
    kept = await served.app.store.bulk.businesses.business("crm")
    assert kept.spec.headers == {"Authorization": "Bearer s3cret", "X-Team": "ops"}
    _, body, _ = await served.ask(
        "PATCH", f"{path}/crm", json={"defaults": {"rate": None}, "headers": {"X-Team": None}}
    )
    assert (body["defaults"], body["headers"]) == ({"concurrency": 4}, {"Authorization": "***"})


async def test_a_limit_of_a_queue_changes_alone(served):
    path = "/api/v1/queues/mail"
    await served.ask("PUT", path, json={"concurrency": 3, "rate": 10, "burst": 20})
    for sent, wanted in (
        ({"rate": 5}, {"paused": False, "concurrency": 3, "rate": 5, "burst": 20}),
        ({"paused": True}, {"paused": True, "concurrency": 3, "rate": 5, "burst": 20}),
        ({"concurrency": None}, {"paused": True, "concurrency": None, "rate": 5, "burst": 20}),
        ({"rate": None}, {"paused": True, "concurrency": None, "rate": None, "burst": None}),
    ):
        status, body, _ = await served.ask("PATCH", path, json=sent)
        assert status == 200, body
        assert {name: body[name] for name in wanted} == wanted
    status, problem, _ = await served.ask("PATCH", path, json={"burst": 5})
    assert status == 422 and "burst goes with a rate" in problem["detail"]
