"""Requests as older designs write them: words in any case, all of their fields; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

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
