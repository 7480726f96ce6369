"""A row that cannot be read: what the API, the probes, the metrics and the log say of it."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import text

from fusee import Fusee
from fusee.events import RowSetAside, TasksFired
from fusee.observe import log_events
from tests.flow.conftest import serve

TASKS = "/api/v1/tasks"


async def damage(app: Fusee, statement: str) -> None:
    await app.store.database.write(lambda connection: connection.execute(text(statement)).close())


async def test_a_task_that_cannot_be_read_is_reported_and_the_others_fire(caplog):
    caplog.set_level(logging.INFO, logger="fusee")
    async with serve(working=True) as served:
        for name in ("bad", "good"):
            task = {"name": name, "handler": "greet", "every": 1}
            status, made, _ = await served.ask("POST", TASKS, json=task)
            assert status == 201
        bad = made["id"] - 1
        await damage(served.app, "UPDATE fusee_tasks SET definition = '{ what' WHERE name = 'bad'")
        log_events(served.app.bus)
        set_aside, fired = asyncio.Event(), asyncio.Event()
        served.app.bus.subscribe(RowSetAside, lambda _: set_aside.set())
        served.app.bus.subscribe(TasksFired, lambda _: set_aside.is_set() and fired.set())
        async with asyncio.timeout(30):
            await fired.wait()
        status, page, _ = await served.ask("GET", TASKS)
        assert (status, [task["name"] for task in page["items"]]) == (200, ["good"])
        status, problem, _ = await served.ask("GET", f"{TASKS}/bad")
        assert status == 500
        assert problem["detail"].startswith(f"task {bad} cannot be read by this version of Fusee (")
        assert problem["detail"].endswith("else repair or delete it")
        status, ready, _ = await served.ask("GET", "/readyz")
        assert status == 200, "the process is fine"
        assert ready["warnings"] == [
            f"set aside, because this version cannot read them: task {bad}; the log says why"
        ]
        _, metrics, _ = await served.ask("GET", "/metrics")
        assert 'fusee_rows_set_aside{kind="task"} 1.0' in metrics
        lines = [r for r in caplog.records if r.message.startswith("a row cannot be read")]
        assert [(line.levelname, line.row) for line in lines] == [("ERROR", f"task {bad}")], "once"
        status, _, _ = await served.ask("DELETE", f"{TASKS}/bad")
        assert status == 204
