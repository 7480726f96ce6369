"""A rolling deploy: workers of two versions share the work, and each takes only what it understands."""

from __future__ import annotations

import pytest

from fusee import Fusee
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from tests.chaos.inside import all_ended, make_app, until, working

pytestmark = pytest.mark.heavy


def release(url: str, version: str, monkeypatch: pytest.MonkeyPatch, *handlers: str) -> Fusee:
    """An app as that version has it: its worker says so, and has these handlers."""
    app = make_app(url, worker_id=f"worker-{version}")
    for name in handlers:

        @app.handler(name)
        async def work() -> str:
            return version

    make = app.worker

    def worker() -> object:
        with monkeypatch.context() as patch:
            patch.setattr("fusee.app.build.__version__", version)
            return make()

    app.worker = worker  # type: ignore[method-assign, assignment]
    return app


async def test_what_only_the_new_version_knows_waits_for_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = release(database_url, "1.0", monkeypatch, "both")
    new = release(database_url, "2.0", monkeypatch, "both", "new")
    async with working(old):
        early = [await old.enqueue("new", allow_unknown=True) for _ in range(5)]
        shared = await all_ended(old, await old.enqueue_many([RunSpec(handler="both")] * 20))
        assert {run.result for run in shared} == {"1.0"}, "behind them, work goes on"
        waiting = [await old.store.runs.run(handle.id) for handle in early]
        assert {run.status for run in waiting} == {RunStatus.PENDING}
        assert {run.attempt for run in waiting} == {0}, "nobody failed it for not knowing it"
        (stats,) = [stats for stats in await old.queues.list() if stats.pending]
        assert stats.unserved == ("new",)
        async with working(new, dispatcher=False):
            runs = await all_ended(old, early)
            versions = {session.info.name: session.info.version for session in await old.workers.list()}
    assert {run.result for run in runs} == {"2.0"}
    assert versions == {"worker-1.0": "1.0", "worker-2.0": "2.0"}


async def test_one_after_the_other_is_replaced_and_nothing_is_lost(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs come all the while; the old worker is drained when the new one is there."""
    old = release(database_url, "1.0", monkeypatch, "both")
    new = release(database_url, "2.0", monkeypatch, "both", "new")
    async with old, new, working(new) as replacement:
        async with working(old, dispatcher=False) as leaving:
            handles = list(await old.enqueue_many([RunSpec(handler="both")] * 50))
            await old.workers.drain("worker-1.0")
            handles += await old.enqueue_many([RunSpec(handler="both")] * 50)
            await until(lambda: leaving.drained)
            handles += await new.enqueue_many([RunSpec(handler="new")] * 50)
            runs = await all_ended(new, handles)
        assert replacement.session is not None
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}
    assert {run.spent for run in runs} == {0}
    assert {run.result for run in runs[100:]} == {"2.0"}
