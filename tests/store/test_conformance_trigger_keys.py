"""Two requests about two tasks with one idempotency key, at the same moment: no lock is common to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.errors import Conflict
from tests.store.clockwork import Clockwork, at

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_one_of_two_tasks_gets_the_key(works: Clockwork) -> None:
    await works.make("t", manual=True)
    await works.make("u", manual=True)
    other = await works.world.another()
    for n in range(5):
        key = f"k{n}"
        both: list[Any] = await asyncio.gather(
            works.store.tasks.triggers.trigger("t", idempotency_key=key),
            other.tasks.triggers.trigger("u", idempotency_key=key),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in both) == ["Conflict", "Triggered"]


async def test_one_of_two_backfills_gets_the_key(works: Clockwork) -> None:
    await works.make("t")
    await works.make("u")
    other = await works.world.another()
    for n in range(5):
        key, stretch = f"k{n}", (at(-2 * n - 2), at(-2 * n - 1))
        both: list[Any] = await asyncio.gather(
            works.store.tasks.backfills.start("t", *stretch, idempotency_key=key),
            other.tasks.backfills.start("u", *stretch, idempotency_key=key),
            return_exceptions=True,
        )
        (refused,) = (one for one in both if isinstance(one, BaseException))
        assert isinstance(refused, Conflict)
