"""Work that asks for labels goes to workers that have them: runs, tasks and nodes of workflows."""

from __future__ import annotations

from typing import Any

import pytest

from fusee import Fusee
from tests.chaos.inside import all_ended, make_app, until, working

GPU = {"gpu": "true"}


def member(url: str, name: str, where: dict[str, list[str]], **labels: str) -> Fusee:
    """An app whose handler writes down which worker ran it."""
    app = make_app(url, worker_id=name, labels=labels)

    @app.handler("work")
    async def work(what: str) -> None:
        where.setdefault(what, []).append(name)

    return app


@pytest.mark.heavy
async def test_work_that_asks_for_labels_runs_where_they_are(database_url: str) -> None:
    where: dict[str, list[str]] = {}
    plain = member(database_url, "plain", where)
    other = member(database_url, "other", where, gpu="false", zone="a")
    able = member(database_url, "able", where, gpu="true", zone="a")
    async with working(plain), working(other, dispatcher=False):
        handles = [await plain.enqueue("work", {"what": "run"}, requires=GPU) for _ in range(10)]
        handles += [
            await plain.enqueue("work", {"what": "placed"}, requires=GPU, strategy="round_robin")
            for _ in range(10)
        ]
        each = await plain.enqueue_each(
            "work", [{"what": "each"}] * 10, requires={"zone": "a", "gpu": "true"}
        )
        await plain.tasks.create(
            {"name": "t", "handler": "work", "payload": {"what": "task"}, "requires": GPU}
        )
        await plain.tasks.trigger("t")
        await plain.workflows.create({"name": "w", "nodes": [{"name": "n", "task": "t", "payload": {}}]})
        await plain.workflows.start("w")
        free = [await plain.enqueue("work", {"what": "free"}) for _ in range(5)]
        await all_ended(plain, free)
        # What may run anywhere is done; what asks is left alone, and its queue says that nobody serves it.
        assert set(where) == {"free"}
        assert (await plain.queues.get("default")).unserved == ("work",)
        async with working(able, dispatcher=False):
            await all_ended(plain, [*handles, *each])
            await until(lambda: len(where.get("task", ())) == 2)
        run = await plain.runs.peek(handles[0].id)
        assert run.requires == GPU
    asked = {what: set(names) for what, names in where.items() if what != "free"}
    assert asked == {what: {"able"} for what in ("run", "placed", "each", "task")}


async def test_labels_are_asked_for_over_rest_and_shown(served: Any) -> None:
    run = {"handler": "greet", "requires": GPU}
    status, body, _ = await served.ask("POST", "/api/v1/runs", json=run)
    assert status == 201, body
    _, shown, _ = await served.ask("GET", f"/api/v1/runs/{body['id']}")
    assert shown["requires"] == GPU
    _, again, _ = await served.ask("POST", f"/api/v1/runs/{body['id']}/cancel")
    status, again, _ = await served.ask("POST", f"/api/v1/runs/{body['id']}/retry")
    _, shown, _ = await served.ask("GET", f"/api/v1/runs/{again['id']}")
    assert shown["requires"] == GPU, "done again, it asks for the same"
    for wrong in ({"gpu": True}, {"a": "x" * 100}):
        status, problem, _ = await served.ask("POST", "/api/v1/runs", json={**run, "requires": wrong})
        assert status == 422 and "requires" in str(problem), problem
    task = {"name": "t", "handler": "greet", "requires": GPU}
    status, body, _ = await served.ask("POST", "/api/v1/tasks", json=task)
    assert (status, body["requires"]) == (201, GPU)


def test_labels_are_asked_for_on_the_command_line(cli: Any) -> None:
    made = cli.json("task", "create", "t", "--handler", "h", "--allow-unknown", "--require", "gpu=true")
    assert made["requires"] == GPU
    edited = cli.json("task", "edit", "t", "requires.zone=1", "requires.gpu=")
    assert edited["requires"] == {"zone": "1"}
    run = cli.json("run", "submit", "h", "--allow-unknown", "--require", "gpu=true", "--require", "zone=1")
    assert cli.json("run", "show", str(run["id"]))["requires"] == {"gpu": "true", "zone": "1"}
    assert "gpu=true" in cli.text("run", "show", str(run["id"]))
