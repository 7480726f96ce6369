"""`app.enqueue_each`: one handler over many payloads, all or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee, RetryPolicy
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.runs import RunFilter
from fusee.errors import Invalid, UnknownHandler
from fusee.events import RunsEnqueued
from tests.chaos.inside import Seen, all_ended, make_app, working


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Fusee]:
    app = make_app(f"sqlite:///{tmp_path}/fusee.db")

    @app.handler("double")
    async def double(n: int = 0) -> int:
        return 2 * n

    async with app:
        yield app


async def count(app: Fusee) -> int:
    return len(await app.store.runs.runs(RunFilter(limit=1000)))


async def test_each_payload_becomes_a_run_and_handles_keep_their_order(database_url: str) -> None:
    app = make_app(database_url)

    @app.handler("double")
    async def double(n: int = 0) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async with working(app):
        handles = await app.enqueue_each(double, ({"n": n} for n in range(300)))
        runs = await all_ended(app, handles)
        assert await handles[7].result() == 14
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert [run.result for run in runs] == [2 * n for n in range(300)]
    assert all(handle.created for handle in handles)


async def test_options_hold_for_all(app: Fusee) -> None:
    policy = RetryPolicy(max_attempts=2)
    handles = await app.enqueue_each(
        "double", [{"n": 1}, None], queue="mail", region="eu", priority=5, timeout=9, retry=policy
    )
    for handle in handles:
        run = (await app.runs.get(handle.id)).run
        assert (run.queue, run.region, run.priority, run.timeout, run.retry) == ("mail", "eu", 5, 9, policy)
        assert (run.handler, run.executor, run.status) == ("double", "python", RunStatus.PENDING)


async def test_nothing_in_nothing_out(app: Fusee) -> None:
    seen = Seen(app.bus, RunsEnqueued)
    assert list(await app.enqueue_each("double", [])) == []
    assert not seen.events


async def test_one_event_counts_them_all(app: Fusee) -> None:
    seen = Seen(app.bus, RunsEnqueued)
    await app.enqueue_each("double", [{"n": n} for n in range(5)], queue="mail")
    assert [(e.queue, e.handler, e.count) for e in seen.of(RunsEnqueued)] == [("mail", "double", 5)]


async def test_a_handler_that_nobody_has_is_refused_unless_allowed(app: Fusee) -> None:
    with pytest.raises(UnknownHandler, match="Did you mean 'double'"):
        await app.enqueue_each("dubble", [{"n": 1}])
    assert await count(app) == 0
    assert len(await app.enqueue_each("dubble", [{"n": 1}], allow_unknown=True)) == 1


@pytest.mark.parametrize("wrong", [[1], "n=1", 7, b"{}"], ids=["list", "text", "number", "bytes"])
async def test_what_is_no_object_is_refused_by_its_index(app: Fusee, wrong: Any) -> None:
    with pytest.raises(Invalid, match="payload 2 must be an object") as caught:
        await app.enqueue_each("double", [{"n": 1}, None, wrong, {"n": 2}])
    assert caught.value.field == "payload"
    assert await count(app) == 0


async def test_what_is_no_json_is_refused_by_its_index(app: Fusee) -> None:
    with pytest.raises(Invalid, match="payload 1 cannot be written as JSON"):
        await app.enqueue_each("double", [{"n": 1}, {"n": object()}])
    assert await count(app) == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"priority": 5000}, "priority"), ({"timeout": -1}, "timeout"), ({"executor": "perl"}, "executor")],
)
async def test_a_wrong_option_is_refused_as_by_enqueue(
    app: Fusee, options: dict[str, Any], complaint: str
) -> None:
    for call in (app.enqueue("double", **options), app.enqueue_each("double", [{"n": 1}], **options)):
        with pytest.raises(ValueError, match=f"^{complaint} must be"):
            await call
    assert await count(app) == 0


async def test_an_executor_judges_every_payload(app: Fusee) -> None:
    good, bad = {"argv": ["echo", "hello"]}, {"argv": "echo hello"}
    with pytest.raises(Invalid, match="payload 1: argv is a list") as caught:
        await app.enqueue_each("shell", [good, bad], executor="shell")
    assert caught.value.field == "payload"
    assert await count(app) == 0
    assert len(await app.enqueue_each("shell", [good, good], executor="shell")) == 2


@pytest.mark.parametrize(
    "own", [{"idempotency_key": "once"}, {"delay": 5}, {"due_at": 1}, {"payload": {"n": 1}}], ids=str
)
async def test_a_template_holds_nothing_that_belongs_to_one_run(app: Fusee, own: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="use `submit`"):
        await app.runs.submit_each(RunSpec(handler="double", **own), [{"n": 1}])
    assert await count(app) == 0
