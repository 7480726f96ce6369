"""Workflows through the whole platform: handlers, parameters, tasks that start them, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fusee import Fusee, Retry, RetryPolicy, RunContext, Skip
from fusee.config import load
from fusee.errors import FuseeError, Invalid
from fusee.testing import TestKit
from fusee.values.params import Param
from fusee.workflows.model.workflow import NodeSpec, WorkflowSpec


class Log(list[Any]):
    """What handlers were called with, in order."""


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def app(log: Log) -> Iterator[Fusee]:
    app = Fusee(config=load(env={}, overrides={"database": {"url": "sqlite://"}}))
    equip(app, log)
    yield app


def equip(app: Fusee, log: Log) -> None:
    @app.handler()
    async def note(what: Any = None) -> Any:
        log.append(what)
        return what

    @app.handler(retry=RetryPolicy(max_attempts=1))
    async def fail() -> None:
        raise RuntimeError("no luck")

    @app.handler()
    async def flaky(run: RunContext) -> int:
        if run.attempt < 3:
            raise Retry("not yet", after=1)
        return run.attempt

    @app.handler()
    async def nothing() -> None:
        raise Skip("there was nothing to do")


def steps(*nodes: dict[str, Any], name: str = "nightly", **params: Any) -> dict[str, Any]:
    return {"name": name, "params": params, "nodes": list(nodes)}


async def test_parameters_reach_the_handlers_with_their_types(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(
            steps(
                {"name": "a", "handler": "note", "payload": {"what": "{{param.days}}"}},
                {
                    "name": "b",
                    "after": "a",
                    "handler": "note",
                    "payload": {"what": "{{node}} of {{param.n}}"},
                },
                days={},
                n={"default": 7},
            )
        )
        started = await app.workflows.start("nightly", {"days": [1, 2]})
        await kit.run_until_idle()
        assert log == [[1, 2], "b of 7"]
        assert (await app.workflows.run(started.id)).status == "succeeded"


async def test_a_workflow_as_python_objects(app: Fusee, log: Log) -> None:
    spec = WorkflowSpec(
        name="nightly",
        params={"day": Param()},
        nodes=(
            NodeSpec(name="a", handler="note", payload={"what": "{{param.day}}"}),
            NodeSpec(name="b", handler="note", after=("a",)),
        ),
    )
    async with TestKit(app) as kit:
        await app.workflows.create(spec)
        assert (await app.workflows.apply(spec))[1] == "unchanged"
        await app.workflows.start("nightly", {"day": "Monday"})
        await kit.run_until_idle()
        assert log == ["Monday", None]


async def test_a_retried_node_delays_what_waits_for_it(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(
            steps({"name": "a", "handler": "flaky"}, {"name": "b", "after": "a", "handler": "note"})
        )
        started = await app.workflows.start("nightly")
        for _ in range(2):
            await kit.run_until_idle()
            assert log == []
            kit.clock.tick(seconds=2)
        await kit.run_until_idle()
        assert log == [None] and (await app.workflows.run(started.id)).status == "succeeded"


async def test_failure_skips_and_cleaning_up_runs_all_the_same(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(
            steps(
                {"name": "a", "handler": "fail"},
                {"name": "b", "after": "a", "handler": "note", "payload": {"what": "never"}},
                {
                    "name": "tidy",
                    "after": "b",
                    "handler": "note",
                    "payload": {"what": "tidy"},
                    "trigger_rule": "all_done",
                },
            )
        )
        started = await app.workflows.start("nightly")
        await kit.run_until_idle()
        run = await app.workflows.run(started.id)
        assert log == ["tidy"] and (run.status, run.reason) == ("failed", "node a failed")


async def test_nothing_to_do_is_no_failure(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(
            steps({"name": "a", "handler": "nothing"}, {"name": "b", "after": "a", "handler": "note"})
        )
        started = await app.workflows.start("nightly")
        await kit.run_until_idle()
        run = await app.workflows.run(started.id)
        assert (run.status, run.skipped) == ("succeeded", 2) and log == []


# --- tasks and workflows ------------------------------------------------------------------------------


async def test_a_task_starts_a_workflow_on_time_and_ends_with_it(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        node = {"name": "a", "handler": "note", "payload": {"what": "{{param.day}}"}}
        await app.workflows.create(steps(node, {"name": "b", "after": "a", "handler": "note"}, day={}))
        await app.tasks.create(
            {"name": "at-night", "every": 60, "workflow": "nightly", "payload": {"day": "today"}}
        )
        kit.clock.tick(seconds=61)
        await kit.run_until_idle()
        assert log == ["today", None]
        task = await app.tasks.get("at-night")
        assert task.last_status == "succeeded" and task.last_run_id is not None
        run = await kit.run(task.last_run_id)
        assert run.result == {"workflow_run_id": 1, "status": "succeeded"}
        assert (await app.workflows.run(1)).parent_run == run.id


@pytest.mark.parametrize(
    ("workflow", "params", "says"),
    [
        ("none", {}, "no workflow 'none'"),
        ("nightly", {}, "day must be given"),
        ("nightly", {"day": 1, "x": 2}, "no parameter 'x'"),
    ],
)
async def test_a_task_whose_workflow_cannot_start_fails_and_says_why(
    app: Fusee, workflow: str, params: dict[str, Any], says: str
) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(steps({"name": "a", "handler": "note"}, day={}))
        await app.tasks.create({"name": "t", "workflow": workflow, "payload": params})
        fired = await app.tasks.trigger("t")
        await kit.run_until_idle()
        run = await kit.run(fired.run_ids[0])
        assert run.status == "failed" and says in (run.error or "")


async def test_canceling_the_task_run_cancels_its_workflow(app: Fusee) -> None:
    async with TestKit(app) as kit:
        await app.workflows.create(steps({"name": "a", "handler": "flaky"}))
        await app.tasks.create({"name": "t", "workflow": "nightly"})
        fired = await app.tasks.trigger("t")
        await kit.run_until_idle()  # its node waits for a retry
        assert (await kit.run(fired.run_ids[0])).status == "waiting"
        await app.runs.cancel(fired.run_ids[0], "enough")
        await kit.run_until_idle()
        run = await app.workflows.run(1)
        assert (run.status, run.canceled) == ("canceled", 1)


async def test_a_node_may_be_a_workflow_and_a_task(app: Fusee, log: Log) -> None:
    async with TestKit(app) as kit:
        inner = {"name": "x", "handler": "note", "payload": {"what": "{{param.who}}"}}
        await app.workflows.create(steps(inner, name="inner", who={}))
        await app.tasks.create({"name": "t", "handler": "note", "payload": {"what": "task"}}, enabled=False)
        await app.workflows.create(
            steps(
                {"name": "a", "workflow": "inner", "payload": {"who": "by {{node}}"}},
                {"name": "b", "after": "a", "task": "t"},
            )
        )
        started = await app.workflows.start("nightly")
        await kit.run_until_idle()
        assert log == ["by a", "task"] and (await app.workflows.run(started.id)).status == "succeeded"


async def test_what_could_never_run_is_refused_at_creation(app: Fusee) -> None:
    async with TestKit(app):
        with pytest.raises(Invalid, match="node a: no worker has a handler 'nope'"):
            await app.workflows.create(steps({"name": "a", "handler": "nope"}))
        with pytest.raises(Invalid, match="node a: the shell executor is off"):
            await app.workflows.create(steps({"name": "a", "executor": "shell", "payload": {"argv": ["x"]}}))
        await app.workflows.create(steps({"name": "a", "handler": "nope"}), allow_unknown=True)


def test_built_in_names_are_reserved(app: Fusee) -> None:
    with pytest.raises(FuseeError, match="the platform starts"):
        app.handler("fusee.mine")(lambda: None)
    assert "fusee.workflow" not in app.handlers.names()
    assert "fusee.workflow" in app.handlers.served()


# --- the real thing, on every database ----------------------------------------------------------------


async def test_a_wide_workflow_runs_through(database_url: str, log: Log) -> None:
    app = Fusee(config=load(env={}, overrides={"database": {"url": database_url}}))
    equip(app, log)
    middle = [f"n{n}" for n in range(300)]
    async with app.running():
        await app.workflows.create(
            steps(
                {"name": "first", "handler": "note", "payload": {"what": "first"}},
                *({"name": n, "after": "first", "handler": "note", "payload": {"what": n}} for n in middle),
                {"name": "last", "after": middle, "handler": "note", "payload": {"what": "last"}},
            )
        )
        started = await app.workflows.start("nightly")
        run = await app.workflows.wait(started.id, timeout=60)
        assert (run.status, run.succeeded) == ("succeeded", 302)
        assert log[0] == "first" and log[-1] == "last" and sorted(log[1:-1]) == sorted(middle)
        stats = await app.queues.list()
        assert all(not queue.unserved for queue in stats)


async def test_a_cancel_in_the_middle_ends_it(database_url: str, log: Log) -> None:
    app = Fusee(config=load(env={}, overrides={"database": {"url": database_url}}))
    equip(app, log)
    began = asyncio.Event()

    @app.handler()
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    async with app.running():
        await app.workflows.create(
            steps(
                {"name": "a", "handler": "hang"},
                *({"name": f"n{n}", "after": "a", "handler": "note"} for n in range(50)),
                {"name": "tidy", "after": "a", "handler": "note", "trigger_rule": "all_done"},
            )
        )
        await app.tasks.create({"name": "t", "workflow": "nightly"})
        fired = await app.tasks.trigger("t")
        await asyncio.wait_for(began.wait(), 30)
        (going,) = await app.workflows.runs()
        answer = await app.workflows.cancel(going.id, "wrong day")
        assert answer.run.cancel_requested_at is not None
        run = await app.workflows.wait(going.id, timeout=30)
        assert (run.status, run.canceled, run.reason) == ("canceled", 52, "wrong day")
        assert log == []
        waited = await app.runs.wait(fired.run_ids[0], timeout=30)
        assert (waited.status, waited.reason) == ("canceled", f"workflow run {going.id} was canceled")
