"""What a batch knows of its targets when something went wrong, and what its rollback does (promise 9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fusee import Abandon, Fusee
from fusee.batches.model.batch import Batch, BatchStatus, BatchTask
from fusee.batches.operation import Target
from fusee.batches.store.queries import TargetFilter
from fusee.engine.model.outcome import Effect
from fusee.testing import TestKit

S = BatchStatus


class Lamp:
    """One lamp; each of its methods can be told to raise or hang, some times."""

    def __init__(self) -> None:
        self.colour = "white"
        self.trouble: dict[str, list[Any]] = {}
        self.images: list[tuple[str, Any]] = []

    async def _maybe(self, method: str, target: Target) -> None:
        self.images.append((method, target.image))
        troubles = self.trouble.get(method)
        if troubles:
            trouble = troubles.pop(0)
            if trouble == "hang":
                await asyncio.Event().wait()
            elif trouble is not None:
                raise trouble

    async def finished(self, target: Target) -> bool:
        await self._maybe("finished", target)
        return self.colour == target.after["colour"]

    async def capture(self, target: Target) -> dict[str, str]:
        await self._maybe("capture", target)
        return {"colour": self.colour}

    async def apply(self, target: Target) -> None:
        await self._maybe("before apply", target)
        self.colour = target.after["colour"]
        await self._maybe("after apply", target)

    async def undo(self, target: Target) -> None:
        self.colour = target.image["colour"]
        await self._maybe("after undo", target)

    async def undone(self, target: Target) -> bool:
        return bool(self.colour == target.image["colour"])


class Stage:
    def __init__(self) -> None:
        self.app = Fusee("sqlite://")
        self.lamp = Lamp()
        self.app.operation("lamp", "paint", timeout=0.1)(self.lamp)
        self.kit = TestKit(self.app)

    async def paint(self, colour: str = "red", **trouble: Any) -> tuple[Batch, BatchTask]:
        self.lamp.trouble = {name.replace("_", " "): list(many) for name, many in trouble.items()}
        batch, _ = await self.app.batches.create(
            {"batch_name": "paint", "batch_type": "paint", "target_type": "lamp"},
            [{"target_id": "1", "after": {"colour": colour}}],
            apply=True,
        )
        return batch, await self.settled(batch)

    async def settled(self, batch: Batch) -> BatchTask:
        while await self.kit.run_until_idle():
            self.kit.clock.tick(minutes=1)
        (task,) = await self.app.batches.tasks(batch.id, TargetFilter())
        return task

    async def roll_back(self, batch: Batch, **trouble: Any) -> BatchTask:
        self.lamp.trouble = {name.replace("_", " "): list(many) for name, many in trouble.items()}
        await self.app.batches.roll_back(batch.id)
        return await self.settled(batch)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    async with stage.kit:
        yield stage


@pytest.mark.parametrize("looked", ["finished", "capture"])
@pytest.mark.parametrize("error", [OSError("no route"), Abandon("no such lamp")])
async def test_whoever_could_not_even_look_touched_nothing(
    stage: Stage, looked: str, error: Exception
) -> None:
    _, task = await stage.paint(**{looked: [error]})
    assert (task.status, task.effect) == (S.FAIL, Effect.NONE)
    assert str(error) in (task.info or "")


async def test_a_failure_while_applying_may_have_touched_it(stage: Stage) -> None:
    _, task = await stage.paint(before_apply=[OSError("broken pipe")])
    assert (task.status, task.effect) == (S.FAIL, Effect.UNKNOWN)


async def test_an_operation_may_say_that_it_touched_nothing(stage: Stage) -> None:
    batch, task = await stage.paint(before_apply=[Abandon("locked", effect=Effect.NONE)])
    assert (task.status, task.effect, task.info) == (S.FAIL, Effect.NONE, "locked")
    with pytest.raises(Exception, match="nothing to undo"):
        await stage.app.batches.roll_back(batch.id)


async def test_an_attempt_that_found_it_done_does_not_forget_who_may_have_done_it(
    stage: Stage,
) -> None:
    batch, task = await stage.paint(after_apply=["hang"])
    assert (task.status, task.effect) == (S.SUCCESS, Effect.UNKNOWN)
    assert (await stage.roll_back(batch)).status is S.ROLLBACK_SUCCESS
    assert stage.lamp.colour == "white"


async def test_nor_does_a_retry(stage: Stage) -> None:
    batch, task = await stage.paint(after_apply=[OSError("broken pipe")])
    assert (task.status, task.effect) == (S.FAIL, Effect.UNKNOWN)
    await stage.app.batches.retry(batch.id)
    task = await stage.settled(batch)
    assert (task.status, task.effect) == (S.SUCCESS, Effect.UNKNOWN)
    assert (await stage.roll_back(batch)).status is S.ROLLBACK_SUCCESS
    assert stage.lamp.colour == "white"


async def test_without_an_image_nothing_was_touched_and_nothing_is_undone(stage: Stage) -> None:
    batch, task = await stage.paint(capture=["hang", "hang", "hang"])
    assert (task.status, task.effect, task.image) == (S.FAIL, Effect.UNKNOWN, None)
    stage.lamp.colour = "green"  # someone else's
    assert (await stage.roll_back(batch)).status is S.ROLLBACK_SUCCESS
    assert stage.lamp.colour == "green"


async def test_a_rollback_that_got_there_and_did_not_come_back_is_no_drift(stage: Stage) -> None:
    batch, _ = await stage.paint()
    task = await stage.roll_back(batch, after_undo=[OSError("broken pipe")])
    assert (task.status, stage.lamp.colour) == (S.ROLLBACK_FAIL, "white")
    assert (await stage.roll_back(batch)).status is S.ROLLBACK_SUCCESS


async def test_drift_is_seen_at_a_second_attempt_too(stage: Stage) -> None:
    batch, _ = await stage.paint()
    stage.lamp.colour = "green"
    task = await stage.roll_back(batch, finished=["hang"])
    assert task.status is S.ROLLBACK_FAIL
    assert (task.info or "").startswith("drift: ")
    assert stage.lamp.colour == "green"


async def test_a_later_attempt_knows_what_the_target_was_before_the_first(stage: Stage) -> None:
    white = {"colour": "white"}
    await stage.paint(before_apply=["hang"])
    assert stage.lamp.images == [
        ("finished", None), ("capture", None), ("before apply", white),
        ("finished", white), ("capture", white), ("before apply", white), ("after apply", white),
    ]  # fmt: skip


async def test_so_does_a_retry(stage: Stage) -> None:
    white = {"colour": "white"}
    batch, _ = await stage.paint(before_apply=[OSError("broken pipe")])
    stage.lamp.colour, stage.lamp.images = "grey", []  # half done, as it were
    await stage.app.batches.retry(batch.id)
    task = await stage.settled(batch)
    assert {image["colour"] for _, image in stage.lamp.images} == {"white"}
    assert task.image == white
