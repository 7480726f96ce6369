"""A rate is exact over any ten seconds: real runners of two workers, in a time of their own.

The loop's clock jumps to the next timer instead of waiting for it, so nothing but the code itself can make a
start early or late: a machine that is busy cannot fail this, and cannot excuse it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest

from fusee.bulk import BulkContext
from fusee.bulk.calls import Calls
from fusee.bulk.pacer import NodeCap, Pacer
from fusee.bulk.runner import Runner
from fusee.bulk.sources.simple import RangeSource
from fusee.model.bulk import BulkJob, BulkSpec, BulkStatus, Segment, SegmentState
from fusee.model.pacing import MICROSECONDS, reserve
from fusee.model.window import Checkpoint
from fusee.store import BulkAnswer, Progress, Taken

WINDOW = 10.0
SECONDS = 28.0
TAKES = 0.02
"""Seconds of an item, at the most."""
SETTLED = 3.0
"""Seconds after which the beginning, when each worker asks for its first slots, is over."""


class Jumps(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: moves the time on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumps = Jumps()
        super().__init__(self.jumps)

    def time(self) -> float:
        return self.jumps.now


class Store:
    """What a checkpoint answers, by the store's own rule; it takes a while, never the same."""

    def __init__(self, loop: VirtualLoop, rate: float, segments: int, seconds: float, latency: float) -> None:
        self.loop = loop
        self.rate = rate
        self.segments = segments
        self.until = seconds
        self.latency = latency
        self.rate_at = 0
        self.random = random.Random(4711)

    def now(self) -> int:
        return round(self.loop.time() * MICROSECONDS) + 1_000_000_000

    def answer(self, end: int, want: int, share: int) -> BulkAnswer:
        now, slot = self.now(), None
        if want:
            count = max(want, round(self.rate / self.segments), 1)
            slot, self.rate_at = reserve(self.rate, self.rate_at, now, count, now + 2 * MICROSECONDS)
        over = self.loop.time() > self.until
        return BulkAnswer(
            stop=over, share=share, rate=self.rate, slot=slot, now=now, end=end, errors_left=None
        )

    def writer(self, end: int, share: int) -> Callable[[Progress], Any]:
        async def write(progress: Progress) -> BulkAnswer:
            await asyncio.sleep(self.random.uniform(0.2, 1.0) * self.latency)
            answer = self.answer(end, progress.want, share)
            await asyncio.sleep(self.random.uniform(0.2, 1.0) * self.latency)
            return answer

        return write


def taken(number: int, store: Store, share: int) -> Taken:
    first, stop = number * 10**9, (number + 1) * 10**9
    spec = BulkSpec(name="j", business="b", source={"kind": "range", "stop": 10**10}, concurrency=2 * share)
    job = BulkJob(
        id=1, namespace="n", spec=spec, status=BulkStatus.RUNNING, reason=None, version=1, undo_of=None,
        data=None, first=0, total=10**10, ended=0, quarantined=0, retried=0, replayed=0, rate=store.rate,
        concurrency=2 * share, speed=0, created_at=0, updated_at=0, started_at=0, finished_at=None,
    )  # fmt: skip
    segment = Segment(
        job_id=1, number=number, first=first, stop=stop, watermark=first, reached=first, ended=0,
        quarantined=0, retried=0, replayed=0, share=share, state=SegmentState.OPEN, run_id=number,
    )  # fmt: skip
    return Taken(job=job, segment=segment, checkpoint=Checkpoint(first), answer=store.answer(stop, 0, share))


def starts_of(
    monkeypatch: pytest.MonkeyPatch,
    rate: float,
    *,
    latency: float = 0.03,
    chunk: int | None = None,
    slow_until: float = 0.0,
) -> list[float]:
    """When items started, of two workers at that rate; before `slow_until` each takes half a second."""
    loop = VirtualLoop()
    store = Store(loop, rate, 2, SECONDS, latency)
    starts: list[float] = []
    slow = random.Random(17)

    async def handle(item: Any) -> None:
        starts.extend([loop.time()] * (len(item) if chunk else 1))
        await asyncio.sleep(0.5 if loop.time() < slow_until else slow.uniform(0, TAKES))

    async def work(number: int) -> None:
        share = max(8, round(rate * TAKES * 2))
        context = BulkContext(job_id=1, name="j", business="b")
        calls = Calls(handle, context, chunk=chunk, attempts=1, backoff=0)
        source = RangeSource({"kind": "range", "stop": 10**10})
        held = taken(number, store, share)
        runner = Runner(
            held, calls, source, store.writer(held.segment.stop, share), Pacer(NodeCap()), beat=1.0
        )
        await runner.run()

    async def both() -> None:
        await asyncio.gather(work(0), work(1))

    monkeypatch.setattr(time, "monotonic", loop.time)
    try:
        loop.run_until_complete(both())
    finally:
        monkeypatch.undo()
        loop.close()
    return sorted(starts)


def worst_windows(starts: list[float]) -> tuple[int, int]:
    """(fewest, most) starts within any ten seconds that lie between the beginning and the end."""
    counts = []
    begins = [at for at in starts if SETTLED <= at <= SECONDS - WINDOW - 1]
    # A count can only be the lowest just behind a start, and the highest just before one.
    for at in begins:
        for edge in (at, at + 1e-9):
            counts.append(bisect_left(starts, edge + WINDOW) - bisect_left(starts, edge))
    return min(counts), max(counts)


@pytest.mark.parametrize("latency", [0.002, 0.1])
@pytest.mark.parametrize("rate", [50.0, 333.3, 1000.0])
def test_any_ten_seconds_have_the_rate(monkeypatch: pytest.MonkeyPatch, rate: float, latency: float) -> None:
    starts = starts_of(monkeypatch, rate, latency=latency)
    fewest, most = worst_windows(starts)
    assert 0.98 * rate * WINDOW <= fewest <= most <= 1.02 * rate * WINDOW


def test_chunks_keep_it_in_items(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = starts_of(monkeypatch, 500.0, chunk=20)
    fewest, most = worst_windows(starts)
    assert 0.98 * 5000 <= fewest <= most <= 1.02 * 5000


def test_what_was_not_started_in_time_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten slow seconds are not followed by ten quick ones."""
    starts = starts_of(monkeypatch, 400.0, slow_until=12.0)
    fewest, most = worst_windows(starts)
    assert fewest < 0.5 * 4000, "it was slow indeed"
    assert most <= 1.02 * 4000


def test_this_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pacer that lets everything through three percent early is found out."""
    due = Pacer._take

    async def generous(self: Pacer, most: int, unit: int) -> int:
        count = await due(self, most, unit)
        self._extra = getattr(self, "_extra", 0.0) + count * 0.03  # type: ignore[attr-defined]
        more = int(self._extra)  # type: ignore[attr-defined]
        self._extra -= more  # type: ignore[attr-defined]
        return count + more

    monkeypatch.setattr(Pacer, "_take", generous)
    starts = starts_of(monkeypatch, 333.3)
    _, most = worst_windows(starts)
    assert most > 1.02 * 3333
