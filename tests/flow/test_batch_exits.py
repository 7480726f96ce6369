"""The exit code of `fusee batch … --wait` follows the status of the batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from fusee.batches.cli.look import GOOD, SOME_UNDONE, settled
from fusee.batches.operation import Target
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.options import Shared, WaitOption
from fusee.surfaces.cli.output import Out

BATCH = {"batch_name": "brighter", "batch_type": "set", "target_type": "lamp"}
LAMPS = [{"target_id": str(n), "after": {"level": n}} for n in range(4)]


@pytest_asyncio.fixture
async def app(serving: Any) -> AsyncIterator[Any]:
    lit: set[str] = set()
    async with serving() as served:

        @served.app.operation("lamp", "set", params=dict[str, int])
        class Set:
            async def finished(self, target: Target) -> bool:
                return target.id in lit

            async def apply(self, target: Target) -> None:
                lit.add(target.id)

            async def undo(self, target: Target) -> None:
                lit.discard(target.id)

        async with served.app.running():
            yield served.app


async def exit_of(app: Any, batch_id: int, good: tuple[str, ...] = GOOD) -> int:
    out = Out(Shared(json=True, quiet=True))
    batch = await app.batches.get(batch_id)
    return (await settled(app.batches, out, batch, WaitOption(30), good)).exit


async def test_a_partial_rollback_is_no_success_unless_it_was_asked_for(app: Any) -> None:
    batch, _ = await app.batches.create(BATCH, LAMPS, apply=True)
    assert await exit_of(app, batch.id) == Exit.OK
    await app.batches.roll_back(batch.id, targets=["1", "2"])
    assert await exit_of(app, batch.id, SOME_UNDONE) == Exit.OK
    assert await exit_of(app, batch.id) == Exit.UNSUCCESSFUL
    shown = await app.batches.get(batch.id)
    assert (shown.status, shown.left_applied) == ("partial_rollback", 2)
    await app.batches.roll_back(batch.id)
    assert await exit_of(app, batch.id) == Exit.OK
