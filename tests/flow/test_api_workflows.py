"""Workflows over REST: define, start, look, cancel, do again."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.flow.conftest import Served

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "params": {"day": {}, "limit": {"default": 5}},
    "nodes": [
        {"name": "extract", "handler": "greet", "payload": {"name": "{{param.day}}"}},
        {"name": "load", "after": ["extract"], "handler": "greet", "timeout": "2m"},
    ],
}
WORKFLOWS, RUNS = "/api/v1/workflows", "/api/v1/workflow-runs"


async def ended(served: Served, workflow_run_id: int) -> dict[str, Any]:
    while True:
        _, run, _ = await served.ask("GET", f"{RUNS}/{workflow_run_id}")
        if run["finished_at"] is not None:
            return dict(run)
        await asyncio.sleep(0.02)


async def test_a_workflow_is_made_started_and_comes_to_its_end(working: Served) -> None:
    status, made, headers = await working.ask("POST", WORKFLOWS, json=NIGHTLY)
    assert (status, headers["Location"], headers["ETag"]) == (201, f"{WORKFLOWS}/nightly", '"1"')
    assert made["nodes"][1] == {"name": "load", "after": ["extract"], "handler": "greet", "timeout": 120.0}
    status, started, headers = await working.ask(
        "POST", f"{WORKFLOWS}/nightly/start", json={"params": {"day": "Ada"}}
    )
    assert (status, started["created"]) == (201, True)
    assert headers["Location"] == f"{RUNS}/{started['id']}"
    run = await ended(working, started["id"])
    assert (run["status"], run["total"], run["succeeded"]) == ("succeeded", 2, 2)
    assert run["params"] == {"day": "Ada", "limit": 5}
    _, graph, _ = await working.ask("GET", f"{RUNS}/{started['id']}/graph")
    assert [(n["name"], n["level"], n["after"], n["status"]) for n in graph["nodes"]] == [
        ("extract", 0, [], "succeeded"),
        ("load", 1, ["extract"], "succeeded"),
    ]
    _, node_run, _ = await working.ask("GET", f"/api/v1/runs/{graph['nodes'][0]['run_id']}")
    assert node_run["result"] == "hello Ada"
    _, listed, _ = await working.ask("GET", f"{WORKFLOWS}/nightly/runs?status=succeeded")
    assert [one["id"] for one in listed["items"]] == [started["id"]] and listed["next_cursor"] is None


async def test_a_failing_workflow_tells_which_node_and_can_be_done_again(working: Served) -> None:
    nodes = [
        {"name": "a", "handler": "greet"},
        {"name": "b", "handler": "fail", "after": ["a"], "retry": {"max_attempts": 1}},
        {"name": "c", "handler": "greet", "after": ["b"]},
    ]
    await working.ask("POST", WORKFLOWS, json={"name": "w", "nodes": nodes})
    _, started, _ = await working.ask("POST", f"{WORKFLOWS}/w/start")
    run = await ended(working, started["id"])
    assert (run["status"], run["reason"], run["failed"], run["skipped"]) == ("failed", "node b failed", 1, 1)
    key = {"Idempotency-Key": "again"}
    status, again, _ = await working.ask("POST", f"{RUNS}/{started['id']}/rerun", headers=key)
    assert status == 201
    status, same, _ = await working.ask("POST", f"{RUNS}/{started['id']}/rerun", headers=key)
    assert (status, same) == (200, {"id": again["id"], "created": False})
    run = await ended(working, again["id"])
    assert (run["origin_id"], run["total"], run["status"]) == (started["id"], 2, "failed")


async def test_a_repeated_start_is_harmless(served: Served) -> None:
    await served.ask("POST", f"{WORKFLOWS}?allow_unknown=true", json=NIGHTLY)
    options: dict[str, Any] = {"json": {"params": {"day": 1}}, "headers": {"Idempotency-Key": "k"}}
    status, first, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", **options)
    assert status == 201
    status, again, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", **options)
    assert (status, again) == (200, {"id": first["id"], "created": False})
    options["json"] = {"params": {"day": 2}}
    status, problem, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", **options)
    assert status == 409 and "used for another request" in problem["detail"]


async def test_a_running_workflow_is_canceled(working: Served) -> None:
    nodes = [{"name": "a", "handler": "hang"}, {"name": "b", "handler": "greet", "after": ["a"]}]
    await working.ask("POST", WORKFLOWS, json={"name": "w", "nodes": nodes})
    _, started, _ = await working.ask("POST", f"{WORKFLOWS}/w/start")
    await working.hanging.wait()
    path = f"{RUNS}/{started['id']}/cancel"
    status, run, _ = await working.ask("POST", path, json={"reason": "wrong day"})
    assert status in (200, 202) and run["cancel_requested_at"] is not None
    run = await ended(working, started["id"])
    assert (run["status"], run["reason"], run["canceled"]) == ("canceled", "wrong day", 2)
    status, _, _ = await working.ask("POST", path)
    assert status == 200  # a second time is harmless
    _, again, _ = await working.ask("GET", RUNS)
    assert len(again["items"]) == 1


async def test_edits_name_the_version_they_were_made_on(served: Served) -> None:
    _, made, _ = await served.ask("POST", WORKFLOWS, json=NIGHTLY)
    changed = {**made, "description": "every night"}  # an answer, edited and sent back
    status, after, headers = await served.ask("PUT", f"{WORKFLOWS}/nightly", json=changed)
    assert (status, after["version"], after["description"], headers["ETag"]) == (200, 2, "every night", '"2"')
    status, problem, _ = await served.ask("PUT", f"{WORKFLOWS}/nightly", json=changed)
    assert status == 409 and "at version 2, not 1" in problem["detail"]
    stale = {"If-Match": '"1"'}
    status, _, _ = await served.ask("DELETE", f"{WORKFLOWS}/nightly", headers=stale)
    assert status == 409
    status, _, _ = await served.ask("DELETE", f"{WORKFLOWS}/nightly", headers={"If-Match": '"2"'})
    assert status == 204
    status, _, _ = await served.ask("GET", f"{WORKFLOWS}/nightly")
    assert status == 404


async def test_what_cannot_be_run_is_refused_with_the_place(served: Served) -> None:
    async def refused(**changes: Any) -> tuple[str, str]:
        status, problem, _ = await served.ask("POST", WORKFLOWS, json={**NIGHTLY, **changes})
        assert status == 422
        return problem["field"], problem["detail"]

    cycle = [
        {"name": "a", "after": ["b"], "handler": "greet"},
        {"name": "b", "after": "a", "handler": "greet"},
    ]
    assert await refused(nodes=cycle) == ("after", "after closes a cycle: a → b → a")
    field, says = await refused(nodes=[{"name": "a", "handler": "gret"}])
    assert field == "nodes.0.handler" and "Did you mean 'greet'?" in says
    field, says = await refused(nodes=[{"name": "a", "handler": "greet", "afer": []}])
    assert (field, says) == ("nodes.0.afer", "node a has no 'afer'; did you mean 'after'?")
    field, says = await refused(nodes=[{"name": "a", "executor": "http", "payload": {"url": "ftp://x"}}])
    assert field == "nodes.0.payload" and says.startswith("node a: url must start with http")
    field, says = await refused(nodes=[{"name": "a", "handler": "greet", "timeout": "soon"}])
    assert field == "nodes.0.timeout"
    field, says = await refused(nodes=[{"name": "a", "task": "none"}])
    assert field == "nodes.0.task" and "no task 'none'" in says
    field, says = await refused(params={"day": 5})
    assert field == "params.day"
    field, says = await refused(nodes=[{"name": "a", "handler": "greet", "payload": {"x": "{{param.dya}}"}}])
    assert field == "nodes" and "{{param.dya}}" in says
    assert (await refused(nodes=[]))[0] == "nodes"
    assert (await refused(name="no spaces"))[0] == "name"


async def test_a_start_with_wrong_parameters_is_refused(served: Served) -> None:
    await served.ask("POST", WORKFLOWS, json=NIGHTLY)
    for params, says in (({}, "day must be given"), ({"day": 1, "limt": 2}, "did you mean 'limit'?")):
        status, problem, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", json={"params": params})
        assert (status, problem["field"]) == (422, "params") and says in problem["detail"]
    status, _, _ = await served.ask("POST", f"{WORKFLOWS}/none/start", json={})
    assert status == 404
    status, _, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", json={"parms": {}})
    assert status == 422


async def test_lists_and_graphs_come_in_pages(served: Served) -> None:
    for name in ("a", "b/c", "d"):
        nodes = [{"name": f"n{n}", "handler": "greet"} for n in range(5)]
        await served.ask("POST", WORKFLOWS, json={"name": name, "nodes": nodes})
    _, page, _ = await served.ask("GET", f"{WORKFLOWS}?limit=2")
    assert [(one["name"], one["nodes"]) for one in page["items"]] == [("a", 5), ("b/c", 5)]
    _, page, _ = await served.ask("GET", f"{WORKFLOWS}?limit=2&cursor={page['next_cursor']}")
    assert [one["name"] for one in page["items"]] == ["d"] and page["next_cursor"] is None
    _, started, _ = await served.ask("POST", f"{WORKFLOWS}/b/c/start")
    for path in (f"{WORKFLOWS}/b/c/graph", f"{RUNS}/{started['id']}/graph"):
        seen: list[str] = []
        cursor = ""
        while True:
            _, page, _ = await served.ask("GET", f"{path}?limit=2{cursor}")
            assert page["total"] == 5
            seen += [node["name"] for node in page["nodes"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == ["n0", "n1", "n2", "n3", "n4"]
    status, _, _ = await served.ask("GET", f"{RUNS}/{started['id']}/graph?cursor=zzz")
    assert status == 422


async def test_ten_thousand_nodes_fit_through_the_api(served: Served) -> None:
    middle = [f"n{n}" for n in range(9_998)]
    nodes: list[dict[str, Any]] = [{"name": "first", "handler": "greet"}]
    nodes += [{"name": name, "handler": "greet", "after": ["first"]} for name in middle]
    nodes += [{"name": "last", "handler": "greet", "after": middle}]
    status, _, _ = await served.ask("POST", WORKFLOWS, json={"name": "wide", "nodes": nodes})
    assert status == 201
    status, started, _ = await served.ask("POST", f"{WORKFLOWS}/wide/start")
    assert status == 201
    _, graph, _ = await served.ask("GET", f"{RUNS}/{started['id']}/graph?limit=10000")
    assert len(graph["nodes"]) == 10_000 and len(graph["nodes"][-1]["after"]) == 9_998


async def test_another_namespace_sees_nothing_of_it(served: Served) -> None:
    await served.ask("POST", WORKFLOWS, json=NIGHTLY)
    _, started, _ = await served.ask("POST", f"{WORKFLOWS}/nightly/start", json={"params": {"day": 1}})
    other = served.app.store.for_namespace("tenant")
    from fusee.access.service import KeyOperations

    _, key = await KeyOperations(other.api_keys).create("theirs", "operator")
    headers = {"X-API-Key": key}
    for method, path in (
        ("GET", f"{WORKFLOWS}/nightly"),
        ("POST", f"{WORKFLOWS}/nightly/start"),
        ("GET", f"{RUNS}/{started['id']}"),
        ("GET", f"{RUNS}/{started['id']}/graph"),
        ("POST", f"{RUNS}/{started['id']}/cancel"),
        ("POST", f"{RUNS}/{started['id']}/rerun"),
    ):
        status, _, _ = await served.ask(method, path, headers=headers)
        assert status == 404, path
