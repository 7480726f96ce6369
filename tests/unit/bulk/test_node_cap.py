"""What a node may start at all: jobs with a rate have what they were promised, the others what is left."""

from __future__ import annotations

import asyncio
import time

import pytest

from fusee.bulk.execution.pacer import NodeCap, Pacer, WorkerGrants
from fusee.bulk.model.pacing import HOLD, MICROSECONDS, UNLIMITED, Grant
from tests.unit.bulk.virtual import VirtualLoop

SECONDS = 20.0


def started(monkeypatch: pytest.MonkeyPatch, cap: float, paces: list[float]) -> list[float]:
    """Items a second of segments with these parts of a rate (0: no rate) that start as much as they may."""
    loop, counts = VirtualLoop(), [0] * len(paces)
    node = NodeCap(cap)

    async def one(number: int, pace: float) -> None:
        assert node.admit(number, pace)
        pacer = Pacer(node, WorkerGrants())
        made = Grant(pace=pace, until=10**9 * MICROSECONDS, first_at=0, fair=pace) if pace else None
        pacer.hear(pace or UNLIMITED, made, 0, 0.0, 0.0)
        while loop.time() < SECONDS:
            count = await pacer.take(5)
            counts[number] += count
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number, pace) for number, pace in enumerate(paces)))

    monkeypatch.setattr(time, "monotonic", loop.time)
    try:
        loop.run_until_complete(all_of_them())
    finally:
        monkeypatch.undo()
        loop.close()
    return [count / SECONDS for count in counts]


def test_a_job_without_a_rate_takes_nothing_from_what_others_were_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promised, free = started(monkeypatch, 100.0, [80.0, 0.0])
    assert promised == pytest.approx(80, rel=0.02)
    assert free == pytest.approx(20, rel=0.05)


def test_jobs_without_a_rate_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, promised = started(monkeypatch, 100.0, [0.0, 0.0, 50.0])
    assert promised == pytest.approx(50, rel=0.02)
    assert one == pytest.approx(25, rel=0.1)
    assert two == pytest.approx(25, rel=0.1)


def test_on_hold_nothing_starts_not_even_what_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()

    async def held() -> bool:
        pacer = Pacer(NodeCap(), WorkerGrants())
        made = Grant(pace=10_000.0, until=10**9 * MICROSECONDS, first_at=0, fair=10_000.0)
        pacer.hear(10_000.0, made, 0, 0.0, 0.0)
        await asyncio.sleep(0.3)
        pacer.hear(HOLD, None, 0, 0.3, 0.3)
        try:
            async with asyncio.timeout(60):
                await pacer.take(4096)
        except TimeoutError:
            return True
        return False

    monkeypatch.setattr(time, "monotonic", loop.time)
    try:
        assert loop.run_until_complete(held())
    finally:
        monkeypatch.undo()
        loop.close()


def test_a_job_that_is_too_large_for_the_node_runs_alone_at_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(monkeypatch, 100.0, [500.0]) == [pytest.approx(100, rel=0.02)]
