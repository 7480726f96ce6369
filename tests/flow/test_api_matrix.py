"""Every route for every kind of caller, made from the OpenAPI document: a new route must be entered here."""

from __future__ import annotations

import re

import pytest

from fusee.access.actions import ACTIONS
from fusee.access.principal import Role
from fusee.access.service import KeyOperations

OPEN = {"GET /healthz", "GET /readyz"}
"""They tell nobody anything."""
BY_TOKEN = {f"{method} /api/v1/callbacks/{{run_id}}" for method in ("PATCH", "PUT", "POST")}
"""They prove themselves by the token of one run; tests/flow/test_callbacks*.py."""
LOOKS = {"GET /metrics": "viewer", "GET /api/v1/me": "viewer", "GET /api/v1/cron": "viewer"}
"""Routes without a service behind them, with the least role."""

ROUTES = {
    "/api/v1/runs": {"POST": "runs.submit", "GET": "runs.list"},
    "/api/v1/runs/{run_id}": {"GET": "runs.get"},
    "/api/v1/runs/{run_id}/cancel": {"POST": "runs.cancel"},
    "/api/v1/runs/{run_id}/retry": {"POST": "runs.retry"},
    "/api/v1/runs/{run_id}/wait": {"GET": "runs.wait"},
    "/api/v1/runs/{run_id}/events": {"GET": "runs.get"},
    "/api/v1/tasks": {"POST": "tasks.create_once", "GET": "tasks.list"},
    "/api/v1/tasks/preview": {"POST": "tasks.preview"},
    "/api/v1/tasks/apply": {"POST": "tasks.create"},
    "/api/v1/tasks/{task}": {
        "GET": "tasks.get",
        "PUT": "tasks.replace",
        "PATCH": "tasks.change",
        "DELETE": "tasks.delete",
    },
    "/api/v1/tasks/{task}/runs": {"GET": "tasks.fires"},
    "/api/v1/tasks/{task}/explain": {"GET": "tasks.explain"},
    "/api/v1/tasks/{task}/next": {"GET": "tasks.next"},
    "/api/v1/tasks/{task}/simulate": {"POST": "tasks.simulate"},
    "/api/v1/tasks/{task}/trigger": {"POST": "tasks.trigger"},
    "/api/v1/tasks/{task}/restart": {"POST": "tasks.restart"},
    "/api/v1/tasks/{task}/pause": {"POST": "tasks.steer"},
    "/api/v1/tasks/{task}/resume": {"POST": "tasks.steer"},
    "/api/v1/tasks/{task}/enable": {"POST": "tasks.steer"},
    "/api/v1/tasks/{task}/disable": {"POST": "tasks.steer"},
    "/api/v1/tasks/{task}/clear-queue": {"POST": "tasks.clear_queue"},
    "/api/v1/tasks/{task}/backfill": {"POST": "tasks.backfill"},
    "/api/v1/task-templates": {"POST": "templates.create_once", "GET": "templates.list"},
    "/api/v1/task-templates/{template}": {
        "GET": "templates.get",
        "PUT": "templates.replace",
        "DELETE": "templates.delete",
    },
    "/api/v1/workflows": {"POST": "workflows.create_once", "GET": "workflows.list"},
    "/api/v1/workflows/{workflow}": {
        "GET": "workflows.get",
        "PUT": "workflows.replace",
        "DELETE": "workflows.delete",
    },
    "/api/v1/workflows/{workflow}/start": {"POST": "workflows.start"},
    "/api/v1/workflows/{workflow}/runs": {"GET": "workflows.runs"},
    "/api/v1/workflows/{workflow}/graph": {"GET": "workflows.get"},
    "/api/v1/workflow-runs": {"GET": "workflows.runs"},
    "/api/v1/workflow-runs/{workflow_run_id}": {"GET": "workflows.run"},
    "/api/v1/workflow-runs/{workflow_run_id}/graph": {"GET": "workflows.graph"},
    "/api/v1/workflow-runs/{workflow_run_id}/cancel": {"POST": "workflows.cancel"},
    "/api/v1/workflow-runs/{workflow_run_id}/rerun": {"POST": "workflows.rerun"},
    "/api/batch": {"POST": "batches.create"},
    "/api/v1/batches": {"POST": "batches.create", "GET": "batches.list"},
    "/api/v1/batches/{batch_id}": {"GET": "batches.get"},
    "/api/v1/batches/{batch_id}/targets": {"GET": "batches.tasks"},
    "/api/v1/batches/{batch_id}/plan": {"GET": "batches.recorded_plan", "POST": "batches.plan"},
    "/api/v1/batches/{batch_id}/recount": {"GET": "batches.recount"},
    "/api/v1/batches/{batch_id}/apply": {"POST": "batches.apply"},
    "/api/v1/batches/{batch_id}/cancel": {"POST": "batches.cancel"},
    "/api/v1/batches/{batch_id}/retry": {"POST": "batches.retry"},
    "/api/v1/batches/{batch_id}/rollback": {"POST": "batches.roll_back"},
    "/api/v1/bulk-jobs": {"POST": "bulk_jobs.create", "GET": "bulk_jobs.list"},
    "/api/v1/bulk-jobs/{job_id}": {
        "GET": "bulk_jobs.get",
        "PATCH": "bulk_jobs.adjust",
        "DELETE": "bulk_jobs.delete",
    },
    "/api/v1/bulk-jobs/{job_id}/quarantine": {"GET": "bulk_jobs.quarantine"},
    "/api/v1/bulk-jobs/{job_id}/quarantine/download": {"GET": "bulk_jobs.quarantined"},
    "/api/v1/bulk-jobs/{job_id}/quarantine/rerun": {"POST": "bulk_jobs.rerun_quarantine"},
    "/api/v1/bulk-jobs/{job_id}/logs": {"GET": "bulk_jobs.logs", "POST": "bulk_jobs.log"},
    "/api/v1/bulk-jobs/{job_id}/start": {"POST": "bulk_jobs.start"},
    "/api/v1/bulk-jobs/{job_id}/resume": {"POST": "bulk_jobs.resume"},
    "/api/v1/bulk-jobs/{job_id}/stop": {"POST": "bulk_jobs.stop"},
    "/api/v1/bulk-jobs/{job_id}/pause": {"POST": "bulk_jobs.stop"},
    "/api/v1/bulk-jobs/{job_id}/extend": {"POST": "bulk_jobs.extend"},
    "/api/v1/bulk-jobs/{job_id}/rate": {"POST": "bulk_jobs.adjust"},
    "/api/v1/bulk-jobs/{job_id}/data": {"PUT": "bulk_jobs.set_data"},
    "/api/v1/bulk-jobs/{job_id}/undo": {"POST": "bulk_jobs.undo"},
    "/api/v1/businesses": {"POST": "businesses.register_once", "GET": "businesses.list"},
    "/api/v1/businesses/{business}": {
        "GET": "businesses.get",
        "PATCH": "businesses.update",
        "DELETE": "businesses.delete",
    },
    "/api/v1/workers": {"GET": "workers.list"},
    "/api/v1/workers/{name}": {"GET": "workers.get"},
    "/api/v1/workers/{name}/drain": {"POST": "workers.drain"},
    "/api/v1/queues": {"GET": "queues.list"},
    "/api/v1/queues/{name}": {"GET": "queues.get", "PUT": "queues.limit", "PATCH": "queues.change"},
    "/api/v1/queues/{name}/pause": {"POST": "queues.pause"},
    "/api/v1/queues/{name}/resume": {"POST": "queues.pause"},
    "/api/v1/queues/{name}/strategy": {"PUT": "queues.place"},
    "/api/v1/keys": {"GET": "keys.list", "POST": "keys.create"},
    "/api/v1/keys/{key_id}": {"DELETE": "keys.revoke"},
    "/api/v1/keys/{key_id}/rotate": {"POST": "keys.rotate"},
}


def least_roles() -> dict[str, Role]:
    named = {
        f"{method} {path}": ACTIONS[action]
        for path, actions in ROUTES.items()
        for method, action in actions.items()
    }
    return named | {route: Role(role) for route, role in LOOKS.items()}


async def documented(served) -> set[str]:
    _, document, _ = await served.ask("GET", "/openapi.json")
    return {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}


def url_of(route: str) -> tuple[str, str]:
    """A route with values that nothing has: it can be asked for, and does nothing."""
    method, path = route.split(" ")
    path = re.sub(r"\{(run_id|batch_id|job_id|workflow_run_id|key_id)\}", "987654321", path)
    return method, re.sub(r"\{\w+\}", "nothing-has-this-name", path)


async def test_every_route_is_in_the_matrix(served):
    assert await documented(served) == least_roles().keys() | OPEN | BY_TOKEN


async def test_every_route_for_every_caller(served):
    keys = {}
    for role in ("viewer", "operator", "admin"):
        keys[role] = (await served.app.keys.create(role, role))[1]
    foreign = KeyOperations(served.app.store.for_namespace("other").api_keys)
    stranger = (await foreign.create("stranger", "admin"))[1]
    wrong: list[str] = []
    for route, least in least_roles().items():
        method, path = url_of(route)

        async def status(key: str | None, method: str = method, path: str = path, **headers: str) -> int:
            sent = headers if key is None else {"Authorization": f"Bearer {key}", **headers}
            return (await served.ask(method, path, headers=sent))[0]

        if route != "GET /metrics" and await status(None) != 401:
            wrong.append(f"{route} without a key")
        if await status(stranger, **{"X-Fusee-Namespace": "default"}) != 403:
            wrong.append(f"{route} for a key of another namespace")
        for role, key in keys.items():
            if (await status(key) == 403) == Role(role).includes(least):
                wrong.append(f"{route} for the role {role}, where {least} is the least")
    assert not wrong
    assert await served.count() == 0


async def test_a_wrong_key_opens_no_route(served):
    await served.app.keys.create("a", "admin")
    served.server.services.authenticator._left = lambda address: 100.0  # it may try them all
    for route in least_roles():
        method, path = url_of(route)
        status, _, _ = await served.ask(method, path, headers={"Authorization": "Bearer fusee_wrong"})
        assert status == 401, route


@pytest.mark.parametrize("route", sorted(OPEN))
async def test_what_is_open_says_nothing_of_anyone(served, route):
    await served.app.keys.create("a", "admin")
    method, path = url_of(route)
    status, body, _ = await served.ask(method, path)
    assert status == 200 and set(body) <= {"status", "version", "ready", "reasons", "warnings"}
