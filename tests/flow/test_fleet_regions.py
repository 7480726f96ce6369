"""Work with a region is done in that region: runs, tasks, batches and bulk jobs; work with none, anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from fusee import Fusee
from fusee.batches.operation import Target
from tests.chaos.inside import all_ended, make_app, until, working
from tests.flow.bulk import at_rest

pytestmark = pytest.mark.heavy


def member(
    url: str, region: str, where: dict[str, list[str]], dispatcher: dict[str, Any] | None = None
) -> Fusee:
    """An app whose handlers write down in which region they ran."""
    app = make_app(url, worker_id=f"worker-{region or 'none'}", region=region, dispatcher=dispatcher)

    def note(what: str) -> None:
        where.setdefault(what, []).append(region)

    @app.handler("work")
    async def work(what: str) -> None:
        note(what)

    @app.bulk("count")
    async def count(item: int) -> None:
        note("bulk")

    class Turn:
        async def finished(self, target: Target) -> bool:
            return False

        async def apply(self, target: Target) -> None:
            note("batch")

        async def undo(self, target: Target) -> None:
            note("undo")

    app.operation("dial", "turn")(Turn)
    return app


async def test_each_kind_of_work_is_done_in_its_region(database_url: str) -> None:
    where: dict[str, list[str]] = {}
    apps = [member(database_url, region, where) for region in ("", "eu", "us")]
    first, eu, us = apps
    async with working(first), working(eu, dispatcher=False), working(us, dispatcher=False):
        handles = [
            await first.enqueue("work", {"what": f"run-{region}"}, region=region)
            for region in ("eu", "us")
            for _ in range(20)
        ]
        handles += [await first.enqueue("work", {"what": "anywhere"}) for _ in range(20)]
        await first.tasks.create(
            {"name": "t", "handler": "work", "payload": {"what": "task"}, "region": "us"}
        )
        for _ in range(5):
            await first.tasks.trigger("t")
        targets = [{"target_id": str(n), "after": {"to": n}} for n in range(8)]
        batch = {"batch_name": "b", "batch_type": "turn", "target_type": "dial", "region": "eu"}
        await first.batches.create(batch, targets, apply=True)
        job, _ = await first.bulk_jobs.create(
            {"name": "j", "business": "count", "region": "us", "source": 50}, start=True
        )
        await all_ended(first, handles)
        await until(lambda: len(where.get("task", ())) == 5 and len(where.get("batch", ())) == 8)
        await at_rest(first, job)
    assert set(where["run-eu"]) == {"eu"} and set(where["run-us"]) == {"us"}
    assert (set(where["task"]), set(where["batch"]), set(where["bulk"])) == ({"us"}, {"eu"}, {"us"})
    assert len(where["anywhere"]) == 20


async def test_a_dispatcher_with_a_region_leaves_the_tasks_of_others_alone(database_url: str) -> None:
    where: dict[str, list[str]] = {}
    everywhere = member(database_url, "", where)
    eu = member(database_url, "eu", where, {"region": "eu"})
    us = member(database_url, "us", where, {"region": "us"})
    async with everywhere:
        for region in ("eu", "us"):
            task = {"name": region, "handler": "work", "payload": {"what": region}, "region": region}
            await everywhere.tasks.create({**task, "every": "1s"}, allow_unknown=True)
        async with working(eu), working(us, dispatcher=False):
            await until(lambda: len(where.get("eu", ())) >= 2)
            assert "us" not in where, "its worker is there, and nobody fires it"
            async with working(us):
                await until(lambda: where.get("us"))
    assert (set(where["eu"]), set(where["us"])) == ({"eu"}, {"us"})
