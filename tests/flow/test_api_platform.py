"""Queues, workers, probes, metrics, and the API's description of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusee.access.service import KeyOperations
from fusee.engine.model.run import RunSpec
from fusee.events import LoopFailed, QueuesStalled, RunsFinished
from fusee.runs.service.runs import RunOperations
from fusee.surfaces.rest.problems import KINDS

RUNS = "/api/v1/runs"
HANDLERS = ["fail", "fusee.batch", "fusee.bulk", "fusee.bulk_http", "fusee.workflow", "greet", "hang"]
DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_queues(served):
    await served.ask("POST", RUNS, json=[{"handler": "greet", "queue": "mail"}] * 2)
    await served.ask("POST", RUNS, json={"handler": "greet", "queue": "mail", "delay": 60})
    _, page, _ = await served.ask("GET", "/api/v1/queues")
    (queue,) = page["items"]
    assert (queue["name"], queue["pending"], queue["delayed"], queue["paused"]) == ("mail", 2, 1, False)
    assert queue["unserved"] == ["greet"] and queue["oldest_pending_at"].endswith("Z")

    limits = {"concurrency": 4, "rate": 2.5, "burst": 10}
    status, queue, _ = await served.ask("PUT", "/api/v1/queues/mail", json=limits)
    assert status == 200 and limits.items() <= queue.items()
    _, queue, _ = await served.ask("POST", "/api/v1/queues/mail/pause")
    assert queue["paused"] and limits.items() <= queue.items()
    _, queue, _ = await served.ask("POST", "/api/v1/queues/mail/resume")
    assert not queue["paused"] and limits.items() <= queue.items()
    _, queue, _ = await served.ask("PUT", "/api/v1/queues/mail", json={})
    assert queue["concurrency"] is None and queue["rate"] is None


async def test_a_queue_has_a_strategy_beside_its_limits(served):
    _, queue, _ = await served.ask("PUT", "/api/v1/queues/mail", json={"concurrency": 4})
    assert queue["strategy"] == "shared"
    status, queue, _ = await served.ask(
        "PUT", "/api/v1/queues/mail/strategy", json={"strategy": "least_loaded"}
    )
    assert (status, queue["strategy"], queue["concurrency"]) == (200, "least_loaded", 4)
    _, queue, _ = await served.ask("PUT", "/api/v1/queues/mail", json={})
    assert (queue["strategy"], queue["concurrency"]) == ("least_loaded", None)
    status, problem, _ = await served.ask("PUT", "/api/v1/queues/mail/strategy", json={"strategy": "best"})
    assert status == 422 and "shared, round_robin, least_loaded" in problem["detail"]
    _, queue, _ = await served.ask("PUT", "/api/v1/queues/mail/strategy", json={"strategy": "shared"})
    assert queue["strategy"] == "shared"


async def test_a_run_says_which_worker_it_wants(served):
    wanted = {"handler": "greet", "strategy": "affinity", "cpu": 1.5, "memory": "1GiB", "region": "eu"}
    status, run, _ = await served.ask("POST", RUNS, json=wanted)
    assert status == 201, run
    _, run, _ = await served.ask("GET", f"{RUNS}/{run['id']}")
    assert (run["strategy"], run["cpu"], run["memory"], run["region"]) == ("affinity", 1.5, 2**30, "eu")
    for bad, says in (
        ({"strategy": "best"}, "strategy must be one of"),
        ({"memory": "much"}, "memory must be a size"),
        ({"cpu": -1}, "cpu must be a number of cores"),
        ({"cpu": 1, "strategy": "shared"}, "not shared"),
    ):
        status, problem, _ = await served.ask("POST", RUNS, json={"handler": "greet", **bad})
        assert status == 422 and says in problem["detail"], bad


async def test_a_queue_may_have_slashes(served):
    await served.ask("POST", "/api/v1/queues/mail/eu/pause")
    _, queue, _ = await served.ask("GET", "/api/v1/queues/mail/eu")
    assert (queue["name"], queue["paused"]) == ("mail/eu", True)


async def test_workers(working):
    await working.ask("GET", f"{RUNS}/{(await working.app.enqueue('greet')).id}/wait")
    _, page, _ = await working.ask("GET", "/api/v1/workers")
    (worker,) = page["items"]
    assert worker["state"] == "alive" and worker["handlers"] == HANDLERS
    await working.app.store.sessions.end_session(worker["id"])
    assert (await working.ask("GET", "/api/v1/workers"))[1]["items"] == []
    _, page, _ = await working.ask("GET", "/api/v1/workers?all=true")
    assert page["items"][0]["state"] == "ended"


async def test_workers_are_found_by_what_they_have(working):
    await working.ask("GET", f"{RUNS}/{(await working.app.enqueue('greet')).id}/wait")
    for query, many in (
        ("state=alive", 1),
        ("state=down", 0),
        ("handler=greet&queue=mail", 1),
        ("handler=none", 0),
        ("region=eu", 0),
        ("label=gpu=yes", 0),
    ):
        _, page, _ = await working.ask("GET", f"/api/v1/workers?{query}")
        assert len(page["items"]) == many, query
    status, problem, _ = await working.ask("GET", "/api/v1/workers?label=gpu")
    assert status == 422 and "name=value" in problem["detail"]


async def test_a_worker_is_asked_to_leave(working):
    (worker,) = (await working.ask("GET", "/api/v1/workers"))[1]["items"]
    name = worker["name"]
    status, page, _ = await working.ask("POST", f"/api/v1/workers/{name}/drain")
    assert status == 202
    assert [(one["name"], one["state"]) for one in page["items"]] == [(name, "draining")]
    assert page["items"][0]["drain_asked_at"].endswith("Z")
    await working.app.workers.wait_until_down([await working.app.workers.get(name)], 10)
    _, worker, _ = await working.ask("GET", f"/api/v1/workers/{name}")
    assert worker["state"] == "ended"
    for method, path in (("GET", "/api/v1/workers/nobody"), ("POST", f"/api/v1/workers/{name}/drain")):
        assert (await working.ask(method, path))[0] == 404


async def test_ready_until_a_loop_keeps_failing(served):
    assert (await served.ask("GET", "/readyz"))[1] == {"ready": True, "reasons": [], "warnings": []}
    for _ in range(3):
        served.app.bus.emit(LoopFailed(loop="recover", error=RuntimeError("x"), failures=1))
    served.server.services.health.__self__._answer = ([], float("-inf"))  # do not wait a second for it
    status, body, headers = await served.ask("GET", "/readyz")
    assert (status, body["reasons"], headers["Retry-After"]) == (
        503,
        ["the recover loop keeps failing"],
        "2",
    )
    assert (await served.ask("GET", "/healthz"))[1]["status"] == "ok"


async def test_a_stalled_queue_is_a_warning_and_no_reason_to_be_taken_out(served):
    served.app.bus.emit(QueuesStalled(waiting={("default", "mail"): 400.0}, new=()))
    status, body, _ = await served.ask("GET", "/readyz")
    assert status == 200
    assert body["warnings"] == [
        "1 queue has stalled: ask with an API key, or see `fusee queue list`, for which"
    ]
    _, text, _ = await served.ask("GET", "/metrics")
    assert 'fusee_queue_stalled_seconds{queue="mail"} 400.0' in text


async def test_a_namespace_learns_nothing_of_another(served):
    """Neither who has no key, nor a key of one namespace, is told names of another."""
    other = served.server.services.of("acme")
    await other[RunOperations].submit([RunSpec(handler="greet", queue="theirs")], allow_unknown=True)
    waiting = {("default", "mail"): 400.0, ("acme", "theirs"): 500.0}
    served.app.bus.emit(QueuesStalled(waiting=waiting, new=()))
    await served.app.enqueue("greet", queue="ours")
    ours = (await served.app.keys.create("ada", "viewer"))[1]
    theirs = (await other[KeyOperations].create("bob", "viewer"))[1]

    async def shown(path: str, key: str | None) -> str:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        status, body, _ = await served.ask("GET", path, headers=headers)
        assert status == 200
        return str(body)

    ready = await shown("/readyz", None)
    assert "2 queues have stalled" in ready and not re.search("mail|theirs|acme", ready)
    assert "queue mail of default" in (ready := await shown("/readyz", ours)) and "theirs" not in ready
    assert "queue theirs of acme" in (ready := await shown("/readyz", theirs)) and "mail" not in ready
    assert (await served.ask("GET", "/readyz", headers={"X-API-Key": "fusee_wrong"}))[0] == 401

    for key in (None, ours):
        text = await shown("/metrics", key)
        assert "theirs" not in text
        assert 'fusee_queue_stalled_seconds{queue="(other namespaces)"} 500.0' in text
        assert (
            'fusee_runs_enqueued_total{handler="(other namespaces)",queue="(other namespaces)"} 1.0' in text
        )
        assert 'fusee_queue_depth{queue="ours",status="pending"} 1.0' in text
    text = await shown("/metrics", theirs)
    assert 'fusee_queue_depth{queue="theirs",status="pending"} 1.0' in text
    for not_theirs in ("ours", "mail", "greet", "process_", "fusee_loop_failures"):
        assert not_theirs not in text


async def test_metrics(working):
    run = await working.app.enqueue("greet")
    await working.ask("GET", f"{RUNS}/{run.id}/wait")
    status, text, headers = await working.ask("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'fusee_runs_enqueued_total{handler="greet",queue="default"} 1.0' in text
    assert 'fusee_runs_finished_total{handler="greet",status="succeeded"} 1.0' in text
    assert 'fusee_run_duration_seconds_count{handler="greet"} 1.0' in text
    assert "fusee_worker_slots 32.0" in text


async def test_metrics_that_are_off_listen_to_nothing(serving):
    async with serving(metrics={"enabled": False}) as served:
        assert not served.app.bus.wants(RunsFinished)
        assert (await served.ask("GET", "/metrics"))[0] == 404


async def test_the_description_is_whole(served):
    _, document, _ = await served.ask("GET", "/openapi.json")
    text = str(document)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]
    for name in re.findall(r"#/components/responses/([\w-]+)", text):
        assert name in document["components"]["responses"]
    assert "$defs" not in text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"422", "503"} <= operation["responses"].keys(), (method, path)
            # It would allow any answer at all.
            assert "default" not in operation["responses"], (method, path)


async def test_the_docs_page_needs_nobody_else(served):
    status, page, headers = await served.ask("GET", "/docs")
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http" not in page.replace("http-equiv", "")


async def test_every_route_and_problem_is_documented(served):
    page = (DOCS / "rest.md").read_text()
    _, document, _ = await served.ask("GET", "/openapi.json")
    for path, methods in document["paths"].items():
        for method in methods:
            shown = path.replace("{run_id}", "{id}").replace("{key_id}", "{id}")
            assert f"`{method.upper()} {shown}`" in page, f"{method.upper()} {shown}"
    for status, (kind, _) in KINDS.items():
        assert re.search(rf"\| {status} \| `{kind}` \|", page), kind


async def test_every_metric_is_documented(working):
    page = (DOCS / "observability.md").read_text()
    run = await working.app.enqueue("greet")
    await run.result()
    _, text, _ = await working.ask("GET", "/metrics")
    for name in re.findall(r"^# TYPE (fusee_\w+)", text, re.M):
        assert f"`{name}" in page, name


@pytest.mark.parametrize("name", ["rest.md", "observability.md"])
def test_the_pages_name_no_machine(name):
    assert not re.search(r"/(?:root|home|work)/", (DOCS / name).read_text())
