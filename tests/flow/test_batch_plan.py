"""A plan asks the operation about each target, on workers that have it; parameters are checked there too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusee import Fusee
from fusee.app.cli.root import cli as root
from fusee.batches.operation import Target
from fusee.batches.store.queries import TargetFilter
from fusee.config import load
from fusee.engine.store.runs import RunFilter
from fusee.errors import Conflict, Invalid
from tests.chaos.inside import until

FIELDS = {"batch_name": "b", "batch_type": "set_level", "target_type": "lamp"}


class SetLevel:
    """Lamps by their id; some hang, some are broken, some are not there yet."""

    def __init__(self, levels: dict[str, int]) -> None:
        self.levels = levels
        self.looks = self.most = self.now = 0
        self.applied: list[str] = []
        self.tokens: set[tuple[int, int]] = set()

    async def finished(self, target: Target) -> bool:
        self.tokens.add((target.run_id, target.attempt))
        self.looks += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if target.id.startswith("hangs"):
                await asyncio.Event().wait()
            if target.id.startswith("broken"):
                raise OSError("no route to lamp")
        finally:
            self.now -= 1
        return target.id != "odd" and self.levels.get(target.id) == target.after["level"]

    async def capture(self, target: Target) -> dict[str, int] | None:
        return {"level": self.levels[target.id]} if target.id in self.levels else None

    async def apply(self, target: Target) -> None:
        self.applied.append(target.id)

    async def undo(self, target: Target) -> None: ...


def app_on(url: str, lamps: SetLevel | None = None, **params: Any) -> Fusee:
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))
    if lamps is not None:
        app.operation("lamp", "set_level", **{"params": dict[str, int], "timeout": 2.0, **params})(lamps)
    return app


@asynccontextmanager
async def platform(url: str, lamps: SetLevel, **params: Any) -> AsyncIterator[Fusee]:
    """A server that has no app, on one database with a worker that has the operation."""
    worker, server = app_on(url, lamps, **params), app_on(url)
    async with worker, server, worker.running():
        await until(server.store.sessions.sessions, 30, "the worker to register")
        yield server


def lamps_of(*ids: str, level: int = 7) -> list[dict[str, Any]]:
    return [{"target_id": one, "after": {"level": level}} for one in ids]


async def planned(app: Fusee, batch_id: int, **how: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    found = await app.batches.plan(batch_id, TargetFilter(limit=1000), **{"timeout": 20.0, **how})
    return {one.task.target_id: (str(one.action), dict(one.changes)) for one in found}


async def test_a_plan_says_what_would_be_done_to_each_target_though_the_server_has_no_app(
    database_url: str,
) -> None:
    lamps = SetLevel({"low": 1, "right": 7, "odd": 7})
    async with platform(database_url, lamps) as server:
        batch, _ = await server.batches.create(FIELDS, lamps_of("low", "right", "new", "broken", "odd"))
        assert await planned(server, batch.id) == {
            "low": ("change", {"level": (1, 7)}),
            "right": ("none", {}),
            "new": ("create", {"level": (None, 7)}),
            "broken": ("unreachable", {}),
            "odd": ("change", {}),  # not finished, for a reason that its values do not show
        }
        found = await server.batches.plan(batch.id, TargetFilter(after=2, limit=1), timeout=20)
        assert [one.info for one in found] == ["no route to lamp"]
        assert lamps.applied == [], "nothing is done"
        assert lamps.tokens == {(0, 1)}, "a look is no attempt: it must not fence one off"


async def test_targets_are_looked_at_in_parallel_and_those_that_hang_do_not_hold_up_the_others(
    database_url: str,
) -> None:
    lamps = SetLevel({f"l{nr}": 1 for nr in range(60)})
    seen: list[int] = []
    async with platform(database_url, lamps, timeout=1.0) as server:
        names = [*lamps.levels, "hangs"]
        batch, _ = await server.batches.create(FIELDS, lamps_of(*names))
        found = await planned(server, batch.id, progress=seen.append)
    assert {action for name, (action, _) in found.items() if name != "hangs"} == {"change"}
    assert found["hangs"] == ("unreachable", {})
    assert lamps.most > 1
    assert seen == sorted(seen) and seen[-1] == 61, "progress is told"


async def test_what_no_worker_answers_in_time_is_unreachable_and_leaves_nothing_to_do(
    database_url: str,
) -> None:
    lamps = SetLevel({})
    async with platform(database_url, lamps, timeout=60.0) as server:
        batch, _ = await server.batches.create(FIELDS, lamps_of("hangs 1", "hangs 2"))
        found = await server.batches.plan(batch.id, TargetFilter(), timeout=0.5)
        assert {str(one.action) for one in found} == {"unreachable"}
        assert all("within 0." in (one.info or "") for one in found)

        async def all_ended() -> bool:
            return all(run.ended for run in await server.store.runs.runs(RunFilter()))

        await until(all_ended, 30, "the looks to be given up")


async def test_without_a_worker_this_process_looks_if_it_has_the_operation(database_url: str) -> None:
    async with app_on(database_url, SetLevel({"low": 1})) as app:
        batch, _ = await app.batches.create(FIELDS, lamps_of("low"))
        assert await planned(app, batch.id) == {"low": ("change", {"level": (1, 7)})}


async def test_where_nobody_can_look_the_plan_is_refused(database_url: str) -> None:
    async with app_on(database_url, SetLevel({})) as app:
        batch, _ = await app.batches.create(FIELDS, lamps_of("low"))
    async with app_on(database_url) as server:
        with pytest.raises(Conflict, match=r"no worker that has operation 'set_level'.* is alive"):
            await server.batches.plan(batch.id, TargetFilter())
        assert await server.batches.recorded_plan(batch.id, TargetFilter())
        with pytest.raises(Invalid, match="timeout must be from"):
            await server.batches.plan(batch.id, TargetFilter(), timeout=1e9)


async def test_an_operation_that_captures_nothing_is_compared_with_what_the_caller_said(
    database_url: str,
) -> None:
    class Blind:
        async def finished(self, target: Target) -> bool:
            return target.id == "right"

        async def apply(self, target: Target) -> None: ...

        async def undo(self, target: Target) -> None: ...

    app = Fusee(config=load(env={}, overrides={"database": {"url": database_url}}))
    app.operation("lamp", "set_level")(Blind)
    async with app:
        given = [{"target_id": "low", "before": {"level": 1}, "after": {"level": 7}}, "right"]
        batch, _ = await app.batches.create(FIELDS, given)
        assert await planned(app, batch.id) == {
            "low": ("change", {"level": (1, 7)}),
            "right": ("none", {}),
        }


# --- parameters


async def test_a_server_without_an_app_refuses_parameters_that_do_not_fit_the_operation(
    database_url: str,
) -> None:
    lamps = SetLevel({})
    async with platform(database_url, lamps) as server:
        wrong = [*lamps_of("a"), {"target_id": "b", "after": {"level": "bright"}}]
        with pytest.raises(Invalid, match=r"target 2: after\.level: Input should be a valid integer"):
            await server.batches.create(FIELDS, wrong, apply=True)
        assert lamps.applied == []
        batch, _ = await server.batches.create(FIELDS, lamps_of("a"))
        assert batch.id == 2 and batch.total == 1, "nothing of the refused one is left"


async def test_accepted_while_no_worker_was_there_the_target_fails_by_the_name_of_the_parameter(
    database_url: str,
) -> None:
    lamps = SetLevel({})
    async with platform(database_url, lamps):
        pass  # the operation is known from now on, and its worker is gone
    worker, server = app_on(database_url, lamps), app_on(database_url)
    async with server, worker:
        assert not await server.store.sessions.sessions()
        wrong = [{"target_id": "b", "after": {"level": "bright"}}]
        batch, _ = await server.batches.create(FIELDS, wrong, apply=True)

        async def is_done() -> bool:
            return (await server.batches.get(batch.id)).phase == "done"

        async with worker.running():
            await until(is_done, 30, "the batch to be done")
        (task,) = await server.batches.tasks(batch.id, TargetFilter())
        assert (str(task.status), str(task.effect)) == ("fail", "none")
        assert "after.level: Input should be a valid integer" in (task.info or "")
        assert lamps.looks == 0, "it was not touched, and not looked at"


async def test_the_portions_of_a_large_upload_are_each_checked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.batches.service.batches.PORTION", 3)
    monkeypatch.setattr("fusee.batches.service.asking.CHECK_AT_ONCE", 2)
    async with platform(database_url, SetLevel({})) as server:
        targets = lamps_of(*(f"l{nr}" for nr in range(8)))
        targets[7]["after"] = {"level": None}
        with pytest.raises(Invalid, match=r"target 8: after\.level"):
            await server.batches.create(FIELDS, targets)


async def test_the_command_line_plans_with_a_bar_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/fusee.db"
    monkeypatch.setenv("FUSEE_DATABASE__URL", url)
    lamps = SetLevel({"low": 1, "right": 7})

    async def run(*words: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, root, [*words])

    async with platform(url, lamps) as server:
        good, _ = await server.batches.create(FIELDS, lamps_of("low", "right"))
        bad, _ = await server.batches.create(FIELDS, lamps_of("low", "broken"))
        told = await run("batch", "plan", str(good.id))
        assert told.exit_code == 0, told.output
        assert "level: 1 → 7" in told.output and "1 change, 1 none" in told.output
        told = await run("--json", "batch", "plan", str(bad.id))
        assert told.exit_code == 5, "not all could be seen"
        plan = json.loads(told.stdout)
        assert plan["counts"] == {"change": 1, "unreachable": 1}
        assert plan["items"][1]["info"] == "no route to lamp"
        told = await run("batch", "plan", str(good.id), "--limit", "1")
        assert "the first 1 of 2 targets" in told.output
