"""Requests as older designs write them: words in any case, all of their fields; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.errors import Invalid
from fusee.executors.http.guard import Guard
from fusee.executors.http.request import Reach

TASKS = "/api/v1/tasks"
CALL = {"name": "sync", "target_url": "https://svc.example/", "exec_type": "ASYNC"}


async def ask(served: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, answer, _ = await served.ask(method, path, json=body)
    return status, answer


# -- words in any case


@pytest.mark.parametrize("kind", ["ASYNC", "async", "Async"])
async def test_exec_type_is_read_in_any_case(served, kind):
    status, body = await ask(served, "POST", TASKS, {**CALL, "exec_type": kind})
    assert (status, body["payload"].get("mode")) == (201, "async")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("executor", "PYTHON", "python"),
        ("trigger_rule", "ALL_DONE", "all_done"),
        ("strategy", "Round_Robin", "round_robin"),
        ("overlap_action", "skip", "SKIP"),
        ("concurrency_policy", "parallel", "PARALLEL"),
        ("failure_action", "Pause", "PAUSE"),
        ("catch_up_mode", "none", "NONE"),
        ("retry", {"backoff": "LINEAR", "on": ["FAILED"]}, {"backoff": "linear", "on": ["failed"]}),
    ],
)
async def test_every_word_of_a_task_is_read_in_any_case(served, field, value, wanted):
    status, body = await ask(served, "POST", TASKS, {"name": "a", "handler": "greet", field: value})
    assert (status, body.get(field)) == (201, wanted), body


async def test_words_of_runs_workflows_batches_and_queues_are_read_in_any_case(served):
    run = {"handler": "greet", "executor": "Python", "strategy": "SHARED", "retry": {"backoff": "Fixed"}}
    status, body = await ask(served, "POST", "/api/v1/runs", run)
    assert status == 201, body
    _, kept = await ask(served, "GET", f"/api/v1/runs/{body['id']}")
    assert (kept["executor"], kept["retry"]["backoff"]) == ("python", "fixed")
    node = {"name": "n", "handler": "greet", "executor": "PYTHON", "retry": {"backoff": "FIXED"}}
    nodes = [node, {**node, "name": "m", "after": ["n"], "trigger_rule": "ANY_SUCCESS"}]
    status, body = await ask(served, "POST", "/api/v1/workflows", {"name": "w", "nodes": nodes})
    assert (status, body["nodes"][1]["trigger_rule"]) == (201, "any_success"), body
    status, body = await ask(served, "PUT", "/api/v1/queues/mail/strategy", {"strategy": "LEAST_LOADED"})
    assert (status, body["strategy"]) == (200, "least_loaded")


async def test_a_status_to_look_for_is_read_in_any_case(served):
    await ask(served, "POST", TASKS, {"name": "a", "handler": "greet", "enabled": False})
    await ask(served, "POST", "/api/v1/runs", {"handler": "greet"})
    for path in (f"{TASKS}?status=DISABLED", "/api/v1/runs?status=PENDING"):
        status, body = await ask(served, "GET", path)
        assert (status, len(body["items"])) == (200, 1), (path, body)
    for path in ("batches?status=PENDING", "bulk-jobs?status=Running", "workflow-runs?status=RUNNING"):
        status, body = await ask(served, "GET", f"/api/v1/{path}")
        assert (status, body["items"]) == (200, []), (path, body)
    status, body = await ask(served, "GET", f"{TASKS}/a/runs?decision=RUN")
    assert (status, body["items"]) == (200, []), body
    status, body = await ask(served, "GET", f"{TASKS}?status=OFF")
    assert status == 422


# -- the method of a callback


async def test_the_method_of_a_callback_is_kept_and_changed_alone(served):
    status, body = await ask(served, "POST", TASKS, {**CALL, "callback_method": "put"})
    assert (status, body["payload"].get("callback_method")) == (201, "PUT"), body
    _, body = await ask(served, "PATCH", f"{TASKS}/sync", {"callback_timeout_sec": "2m"})
    assert (body["payload"]["callback_method"], body["payload"]["callback_timeout"]) == ("PUT", 120)
    _, body = await ask(served, "PATCH", f"{TASKS}/sync", {"callback_method": None})
    assert body["payload"] == {"url": "https://svc.example/", "mode": "async", "callback_timeout": 120}


async def test_a_sync_call_of_old_may_carry_the_fields_of_a_callback(served):
    old = {**CALL, "exec_type": "SYNC", "callback_method": "POST", "callback_timeout_sec": 60}
    status, body = await ask(served, "POST", TASKS, old)
    assert (status, body["payload"]) == (201, {"url": "https://svc.example/"}), body


@pytest.mark.parametrize("method", ["GET", "DELETE", 7])
async def test_a_callback_carries_a_body(served, method):
    status, body = await ask(served, "POST", TASKS, {**CALL, "callback_method": method})
    assert status == 422 and "POST, PUT or PATCH" in body["detail"], body


# -- addresses that the guard refuses


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9000/", "http://localhost/hook", "http://api.localhost/", "http://[::1]/",
     "http://169.254.169.254/latest", "http://10.0.0.8/{{run_id}}"],
)  # fmt: skip
async def test_a_task_that_the_guard_would_refuse_is_refused_when_it_is_made_or_changed(served, url):
    says = "executors.http.allow_private"
    status, body = await ask(served, "POST", TASKS, {"name": "a", "target_url": url})
    assert (status, body["field"]) == (422, "payload") and says in body["detail"], body
    status, body = await ask(served, "POST", f"{TASKS}/preview", {"name": "a", "target_url": url})
    assert (status, body["field"]) == (422, "payload")
    await ask(served, "POST", TASKS, CALL)
    status, body = await ask(served, "PATCH", f"{TASKS}/sync", {"target_url": url})
    assert (status, body["field"]) == (422, "payload") and says in body["detail"], body
    status, body = await ask(served, "POST", "/api/v1/runs", {"executor": "http", "payload": {"url": url}})
    assert (status, body["field"]) == (422, "payload") and says in body["detail"], body
    alerts = {"name": "b", "handler": "greet", "alerts": url}
    status, body = await ask(served, "POST", TASKS, alerts)
    assert (status, body["field"]) == (422, "alerts") and says in body["detail"], body
    assert (await ask(served, "GET", TASKS))[1]["items"][0]["version"] == 1


async def test_a_name_that_leads_to_a_private_address_is_refused_when_it_is_known(served):
    class Resolver:
        async def resolve(self, host: str, *_: Any) -> list[Any]:
            if host != "inside.example":
                raise OSError("unknown")
            return [{"host": "10.1.2.3"}]

    served.app.reach.resolver = Resolver()
    operations = served.app.tasks
    for fields in (
        {"name": "a", "target_url": "https://inside.example/"},
        {"name": "a", "handler": "greet", "alerts": "https://inside.example/"},
    ):
        with pytest.raises(Invalid, match=r"inside\.example"):
            await operations.create(fields)
    # A name that is not known here may be known where the run executes.
    task = await operations.create({"name": "a", "target_url": "https://elsewhere.example/"})
    with pytest.raises(Invalid, match=r"inside\.example"):
        await operations.change("a", {"target_url": "https://inside.example/"})
    assert (await operations.get("a")).version == task.version


async def test_who_only_looks_makes_the_server_resolve_nothing(served, monkeypatch):
    async def resolve(self: Any, host: str, port: Any, **_: Any) -> list[Any]:
        raise AssertionError(f"{host} was resolved for a preview")

    monkeypatch.setattr(Reach, "check_name", resolve)
    fields = {"name": "a", "target_url": "https://svc.example/"}
    assert (await ask(served, "POST", f"{TASKS}/preview", fields))[0] == 200


async def test_an_allowed_address_is_taken_and_an_old_task_stays_editable(serving):
    async with serving(executors={"http": {"allow_private": ["127.0.0.0/8", "localhost"]}}) as served:
        for name, url in (("a", "http://127.0.0.1:1/"), ("b", "http://localhost:1/")):
            status, body = await ask(served, "POST", TASKS, {"name": name, "target_url": url})
            assert status == 201, body
        served.app.reach.guard = Guard(())
        status, body = await ask(served, "PATCH", f"{TASKS}/a", {"description": "as it was"})
        assert status == 200, body
        status, body = await ask(served, "PATCH", f"{TASKS}/a", {"http_method": "POST"})
        assert (status, body["field"]) == (422, "payload")


# -- restarting a task


async def test_a_task_is_restarted_over_rest(served):
    await ask(served, "POST", TASKS, {"name": "a", "handler": "greet", "payload": {"name": "Ada"}})
    status, body = await ask(served, "POST", f"{TASKS}/a/restart")
    assert status == 409 and "trigger it" in body["detail"]
    await ask(served, "POST", f"{TASKS}/a/trigger", {"payload": {"name": "Bob"}})
    key = {"Idempotency-Key": "again"}
    status, body, _ = await served.ask("POST", f"{TASKS}/a/restart", headers=key)
    assert (status, body["decision"], body["created"]) == (201, "queue", True), body
    _, run = await ask(served, "GET", f"/api/v1/runs/{body['run_ids'][0]}")
    assert (run["payload"], run["origin_id"]) == ({"name": "Bob"}, 1)
    status, again, _ = await served.ask("POST", f"{TASKS}/a/restart", headers=key)
    assert (status, again["run_ids"], again["created"]) == (200, body["run_ids"], False)
    assert (await ask(served, "POST", f"{TASKS}/nobody/restart"))[0] == 404


def test_a_task_is_restarted_on_the_command_line(cli):
    cli.json("task", "create", "a", "--handler", "greet", "--allow-unknown", "-p", "name=Ada")
    assert "trigger it" in cli.refused("task", "restart", "a")
    cli.json("task", "trigger", "a", "-p", "name=Bob")
    again = cli.json("task", "restart", "a", "--key", "k")
    assert cli.json("run", "show", str(again["run_ids"][0]))["payload"] == {"name": "Bob"}
    assert "nothing new" in cli("task", "restart", "a", "--key", "k").stderr


# -- the fields of the dispatcher design

DESIGN: dict[str, Any] = {
    "name": "report",
    "task_type": "python",
    "handler": "greet",
    "schedule": "0 3 * * *",
    "parameters": {"name": "Ada"},
    "timeout_seconds": 300,
    "max_retries": 2,
    "status": "ACTIVE",
    "dependencies": [],
    "shard_config": {"shard_total": 4},
}


async def test_the_fields_of_the_dispatcher_design_are_taken(served):
    _, first = await ask(served, "POST", TASKS, {"name": "first", "handler": "greet"})
    status, body = await ask(served, "POST", TASKS, {**DESIGN, "dependencies": [first["id"]]})
    assert status == 201, body
    wanted = {
        "executor": "python", "handler": "greet", "cron": "0 0 3 * * *", "payload": {"name": "Ada"},
        "timeout": 300, "status": "enabled", "after": ["first"], "shards": 4,
    }  # fmt: skip
    assert {name: body[name] for name in wanted} == wanted
    assert body["retry"].get("max_attempts", 3) == 3
    status, body = await ask(served, "POST", TASKS, {"name": "own", "task_type": "greet", "max_retries": 0})
    assert (status, body["handler"], body["retry"]) == (201, "greet", {"max_attempts": 1})


async def test_active_and_inactive_are_statuses(served):
    status, body = await ask(served, "POST", TASKS, {**DESIGN, "status": "inactive"})
    assert (status, body["status"]) == (201, "disabled")
    for word in ("INACTIVE", "DISABLED", "disabled"):
        assert (await ask(served, "PATCH", f"{TASKS}/report", {"status": word}))[0] == 200
    status, body = await ask(served, "PATCH", f"{TASKS}/report", {"status": "ACTIVE"})
    assert (status, body["field"]) == (422, "status")
    assert len((await ask(served, "GET", f"{TASKS}?status=INACTIVE"))[1]["items"]) == 1
    assert (await ask(served, "GET", f"{TASKS}?status=ACTIVE"))[1]["items"] == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": "2"}, "max_retries"),
        ({"max_retries": 2, "retry": {"max_attempts": 3}}, "retry"),
        ({"shard_config": {"size": 4}}, "shard_config"),
        ({"shard_config": {"shard_total": 0}}, "shards"),
        ({"dependencies": [999]}, "dependencies"),
        ({"dependencies": "first", "after": ["first"]}, "after"),
        ({"task_type": "nobody"}, "handler"),
        ({"status": "ON"}, "status"),
    ],
)
async def test_what_is_wrong_in_them_is_named(served, given, field):
    base = {k: v for k, v in DESIGN.items() if k not in ("handler", "task_type") or "task_type" not in given}
    base = {k: v for k, v in base.items() if k != "max_retries" or "retry" not in given}
    status, body = await ask(served, "POST", TASKS, {**base, **given})
    assert (status, body["field"]) == (422, field), body
