"""Attempt numbers of fires that stood in line are those of the moment at which they start."""

from __future__ import annotations

import pytest

from fusee.tasks.model.policy import FailureAction
from tests.store.clockwork import Clockwork, at

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def numbers(works: Clockwork, failing: tuple[int, ...], **fields: object) -> dict[int, int]:
    """Minute → the number under which the fire of that minute ran; all but the first stood in line."""
    await works.make("t", **fields)
    for minute in range(1, 7):
        await works.fire_at(minute)
        await works.claim()
    seen: dict[int, int] = {}
    while works.held:
        (run_id,) = works.held
        fire = await works.store.tasks.history.fire_of(run_id)
        assert fire is not None
        minute = (fire.fire_time - at(0)) // 60_000_000
        seen[minute] = works.held[run_id].attempt
        await (works.fail if minute in failing else works.succeed)("t", minute)
        await works.claim()
    return seen


async def test_retry_counts_on_for_fires_that_stood_in_line(works: Clockwork) -> None:
    seen = await numbers(works, (1, 2, 3, 5), failure=FailureAction.RETRY)
    assert seen == {1: 1, 2: 2, 3: 3, 4: 4, 5: 1, 6: 2}


async def test_skip_counts_the_skipped_one_of_the_line(works: Clockwork) -> None:
    seen = await numbers(works, (1, 3), failure=FailureAction.SKIP)
    assert seen == {1: 1, 3: 3, 5: 5, 6: 1}
    assert (await works.record())[1] == "2 skip skipped"
    assert (await works.record())[3] == "4 skip skipped"


async def test_run_new_starts_from_one_in_line_too(works: Clockwork) -> None:
    assert set((await numbers(works, (1, 2, 3), failure=FailureAction.RUN_NEW)).values()) == {1}


async def test_the_shards_of_a_fire_in_line_share_their_number(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.RETRY, shards=2)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.succeed("t", 1, 0)
    await works.fail("t", 1, 1)
    assert await works.claim() == ["t 2", "t 2"]
    assert {run.attempt for run in works.held.values()} == {2}
