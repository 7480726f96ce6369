"""Handlers that only the platform starts cannot be called directly, over any surface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fusee import Fusee, FuseeError, RunSpec
from fusee.batches.operation import Target
from fusee.errors import Invalid
from fusee.tasks.model.task import TaskSpec
from tests.flow.conftest import Cli, Served

HANDLERS = {
    "fusee.workflow": {"workflow": "w"},
    "fusee.batch": {"batch": {"batch_type": "light", "target_type": "lamp", "targets": [{"id": "1"}]}},
    "fusee.bulk_http": {"job": 1, "callback": "finish"},
    "fusee.anything": {},
    "batch.lamp.light": {"batch_id": 1, "position": 0, "target_id": "1"},
    "look.lamp.light": {"targets": [{"id": "1"}]},
    "bulk.mail": {"job": 1, "callback": "finish"},
}


@pytest_asyncio.fixture
async def touched(serving: Any) -> AsyncIterator[tuple[Served, list[str]]]:
    """A platform with an operation, a business and a worker; the list says what of them was called."""
    calls: list[str] = []
    async with serving() as served:

        @served.app.operation("lamp", "light")
        class Light:
            async def finished(self, target: Target) -> bool:
                calls.append("finished")
                return False

            async def apply(self, target: Target) -> None:
                calls.append("apply")

            async def undo(self, target: Target) -> None:
                calls.append("undo")

        @served.app.bulk(
            "mail", on_finish=lambda: calls.append("finish"), on_create=lambda: calls.append("create")
        )
        async def mail(item: int) -> None:
            calls.append(f"mail {item}")

        async with served.app.running():
            yield served, calls


@pytest.mark.parametrize("handler", HANDLERS)
async def test_over_rest_and_in_code(touched: tuple[Served, list[str]], handler: str) -> None:
    served, calls = touched
    payload = HANDLERS[handler]
    before = await served.count()
    given: dict[str, Any] = {"handler": handler, "payload": payload, "allow_unknown": True}
    told = []
    for path, body in (
        ("/api/v1/runs", given),
        ("/api/v1/tasks", {"name": "t", "handler": handler, "payload": payload, "allow_unknown": True}),
        (
            "/api/v1/workflows",
            {
                "name": "w",
                "nodes": [{"name": "a", "handler": handler, "payload": payload}],
                "allow_unknown": True,
            },
        ),
    ):
        for known in (True, False):
            body = {name: value for name, value in body.items() if not known or name != "allow_unknown"}
            status, problem, _ = await served.ask("POST", path, json=body)
            assert status == 422, (path, problem)
            told.append(problem["detail"])
    assert f"handler {handler!r} is one that only the platform starts:" in told[0]
    app = served.app
    for refused in (
        app.enqueue(handler, payload, allow_unknown=True),
        app.enqueue_each(handler, [payload], allow_unknown=True),
        app.runs.submit([RunSpec(handler=handler, payload=payload)], allow_unknown=True),
        app.tasks.create(TaskSpec(name="t", handler=handler, payload=payload), allow_unknown=True),
    ):
        with pytest.raises(Invalid, match="only the platform starts"):
            await refused
    assert (await served.count(), calls) == (before, [])


def test_over_the_command_line(cli: Cli) -> None:
    cli.text("db", "upgrade")
    for handler in HANDLERS:
        assert "only the platform starts" in cli.refused("run", "submit", handler, "--allow-unknown")
        words = ("task", "create", "t", "--handler", handler, "--allow-unknown")
        assert "only the platform starts" in cli.refused(*words) or handler in (
            "fusee.workflow",
            "fusee.batch",
        )


async def test_a_run_that_is_in_the_store_all_the_same_calls_nothing(
    touched: tuple[Served, list[str]],
) -> None:
    """As one that an older server accepted: the worker refuses what was not started by a batch or a job."""
    served, calls = touched
    for handler, payload in (
        ("batch.lamp.light", HANDLERS["batch.lamp.light"]),
        ("bulk.mail", {"job": 1, "check": True}),
        ("bulk.mail", {"job": 1, "launch": "ask"}),
        ("bulk.mail", {"job": 1, "segment": 0}),
    ):
        (accepted,) = await served.app.store.run_writer.enqueue([RunSpec(handler=handler, payload=payload)])
        _, run, _ = await served.ask("GET", f"/api/v1/runs/{accepted.id}/wait")
        assert (run["status"], run["effect"]) == ("failed", "none"), run
        assert "as part of a b" in run["error"]
    assert calls == []


async def test_the_starter_of_bulk_jobs_is_for_everyone(touched: tuple[Served, list[str]]) -> None:
    served, calls = touched
    job = {"name": "j", "business": "mail", "source": 2}
    _, accepted, _ = await served.ask(
        "POST", "/api/v1/runs", json={"handler": "fusee.bulk", "payload": {"job": job}}
    )
    _, run, _ = await served.ask("GET", f"/api/v1/runs/{accepted['id']}/wait?timeout=20")
    assert run["status"] == "succeeded", run
    assert {"create", "mail 0", "mail 1"} <= set(calls)


@pytest.mark.parametrize("name", ["fusee.mine", "batch.mine", "bulk.mine", "look.mine"])
def test_no_handler_of_yours_has_such_a_name(name: str) -> None:
    with pytest.raises(FuseeError, match="are for handlers that the platform starts; give it another name"):
        Fusee("sqlite://").handler(name)(lambda: None)
