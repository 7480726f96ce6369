"""A rate is exact over any ten seconds: real runners of several segments, in a time of their own.

The loop's clock jumps to the next timer instead of waiting for it, so nothing but the code itself can make a
start early or late: a machine that is busy cannot fail this, and cannot excuse it. The store is a stand-in
that shares concurrency and rate by the store's own functions.
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import pytest

from fusee.bulk.business import BulkContext
from fusee.bulk.execution.calls import Calls
from fusee.bulk.execution.pacer import NodeCap, Pacer, WorkerGrants
from fusee.bulk.execution.segment_runner import SegmentRunner
from fusee.bulk.model.job import BulkJob, BulkStatus
from fusee.bulk.model.pacing import HEADROOM, MICROSECONDS, SHARED_LASTS, RatePart, even_share, grant
from fusee.bulk.model.segment import BulkAnswer, Segment, SegmentProgress, SegmentState, Taken
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.model.window import Checkpoint
from fusee.bulk.sources import Placed
from fusee.bulk.sources.simple import RangeSource
from tests.unit.bulk.virtual import VirtualLoop

WINDOW = 10.0
SECONDS = 28.0
TAKES = 0.02
"""Seconds of an item, at the most."""
SETTLED = 3.0
"""Seconds after which the beginning, when each segment asks for its first part, is over."""


class Store:
    """What a checkpoint returns, by the store's own rule; it takes a while, never the same."""

    def __init__(
        self, loop: VirtualLoop, rate: float, segments: int, concurrency: int, latency: float, workers: int
    ) -> None:
        self.loop = loop
        self.rate = rate
        self.segments = segments
        self.concurrency = concurrency
        self.latency = latency
        self.rate_at = 0
        self.parts = {
            number: RatePart(pace=0.0, until=0, wants=None, worker=number % workers)
            for number in range(segments)
        }
        self.random = random.Random(4711)

    def now(self) -> int:
        return round(self.loop.time() * MICROSECONDS) + 1_000_000_000

    def answer(self, number: int, progress: SegmentProgress | None) -> BulkAnswer:
        now, given = self.now(), None
        if progress is not None:
            others = {key: part for key, part in self.parts.items() if key != number}
            first_at = max(now, self.rate_at)
            mine = replace(self.parts[number], wants=progress.wants)
            given = grant(self.rate, others, number, mine, now, first_at=first_at, latency=progress.latency)
            if progress.begin and given.pace:
                self.rate_at = first_at + ceil(progress.begin * MICROSECONDS / self.rate)
            if given.lapsed:
                for key, part in others.items():
                    if part.worker == mine.worker:
                        self.parts[key] = replace(part, pace=0.0, until=0)
            self.parts[number] = replace(mine, pace=given.pace, until=given.until)
            alive = {part.worker for part in self.parts.values() if part.until > now}
            held = sum(part.pace for part in self.parts.values() if part.worker in alive)
            assert held <= self.rate * HEADROOM
        return BulkAnswer(
            stop=self.loop.time() > SECONDS,
            share=even_share(self.concurrency, self.segments, number),
            rate=self.rate,
            grant=given,
            now=now,
            end=(number + 1) * 10**9,
            errors_left=None,
        )

    def writer(self, number: int) -> Callable[[SegmentProgress], Any]:
        async def write(progress: SegmentProgress) -> BulkAnswer:
            await asyncio.sleep(self.random.uniform(0.2, 1.0) * self.latency)
            answer = self.answer(number, progress)
            await asyncio.sleep(self.random.uniform(0.2, 1.0) * self.latency)
            return answer

        return write


def taken(number: int, store: Store, attempts: int) -> Taken:
    first, stop = number * 10**9, (number + 1) * 10**9
    spec = BulkSpec(
        name="j", business="b", source={"kind": "range", "stop": 10**10}, concurrency=store.concurrency,
        item_attempts=attempts,
    )  # fmt: skip
    job = BulkJob(
        id=1, namespace="n", spec=spec, status=BulkStatus.RUNNING, reason=None, version=1, undo_of=None,
        data=None, first=0, total=10**10, ended=0, quarantined=0, retried=0, replayed=0, rate=store.rate,
        concurrency=store.concurrency, speed=0, created_at=0, updated_at=0, started_at=0, finished_at=None,
    )  # fmt: skip
    answer = store.answer(number, None)
    segment = Segment(
        job_id=1, number=number, first=first, stop=stop, watermark=first, reached=first, ended=0,
        quarantined=0, retried=0, replayed=0, share=answer.share, state=SegmentState.OPEN, run_id=number,
    )  # fmt: skip
    return Taken(job=job, segment=segment, checkpoint=Checkpoint(first), answer=answer)


@dataclass
class Job:
    """What a test's job is like."""

    rate: float
    segments: int = 2
    concurrency: int = 0
    """0: enough for the rate."""
    latency: float = 0.03
    chunk: int | None = None
    takes: Callable[[int, float, random.Random], float] = lambda segment, now, chance: chance.uniform(
        0, TAKES
    )
    """(segment, time) → seconds that an item takes."""
    fails: float = 0.0
    """Share of items whose first try fails."""
    workers: int = 0
    """0: one for each segment."""
    dies_at: float | None = None
    """When the worker of segment 0 is lost."""
    step: int = 0
    """Rows by key, so far apart; 0: every index is an item."""


def starts_of(monkeypatch: pytest.MonkeyPatch, job: Job) -> list[float]:
    """When items were started for the first time."""
    loop = VirtualLoop()
    concurrency = job.concurrency or max(8 * job.segments, round(job.rate * TAKES * 4))
    workers = job.workers or job.segments
    store = Store(loop, job.rate, job.segments, concurrency, job.latency, workers)
    grants = [WorkerGrants() for _ in range(workers)]
    starts: list[float] = []
    seen: set[int] = set()
    chance = random.Random(17)

    async def handle(item: Any) -> None:
        if job.chunk:
            starts.extend([loop.time()] * len(item))
        elif item not in seen:
            seen.add(item)
            starts.append(loop.time())
            if chance.random() < job.fails:
                raise RuntimeError("503")
        first = item[0] if job.chunk else item
        await asyncio.sleep(job.takes(first // 10**9, loop.time(), chance))

    async def work(number: int) -> None:
        context = BulkContext(job_id=1, name="j", business="b")
        calls = Calls(handle, context, chunk=job.chunk, attempts=3, backoff=0.5)
        source: Any = RangeSource({"kind": "range", "stop": 10**11})
        if job.step:
            source = Rows(job.step)
            calls = Calls(handle, context, chunk=job.chunk, attempts=3, backoff=0.5, placed=True)
        held = taken(number, store, 3)
        pacer = Pacer(NodeCap(), grants[number % workers], calls.chunk)
        runner = SegmentRunner(
            held, calls, source, store.writer(number), pacer, beat=1.0, pages=source if job.step else None
        )
        running = asyncio.ensure_future(runner.run())
        if number % workers == 0 and job.dies_at is not None:
            await asyncio.wait([running], timeout=job.dies_at)
            for task in [
                running,
                *(item_runner.task for item_runner in runner.work.runners if item_runner.task is not None),
            ]:
                task.cancel()
            runner.write = _gone
            await asyncio.gather(running, return_exceptions=True)
        else:
            await running

    async def all_of_them() -> None:
        await asyncio.gather(*(work(number) for number in range(job.segments)))

    monkeypatch.setattr(time, "monotonic", loop.time)
    try:
        loop.run_until_complete(all_of_them())
    finally:
        monkeypatch.undo()
        loop.close()
    return sorted(starts)


class Rows(RangeSource):
    """Rows whose keys have gaps."""

    def __init__(self, step: int) -> None:
        super().__init__({"kind": "range", "stop": 10**11})
        self.step = step

    async def page(self, first: int, end: int, most: int) -> list[tuple[int, Placed]]:
        await asyncio.sleep(0.01)
        keys = range(-(-first // self.step) * self.step, end, self.step)[:most]
        return [(key, Placed(key, key)) for key in keys]


async def _gone(progress: SegmentProgress) -> BulkAnswer:
    raise asyncio.CancelledError


def worst_windows(starts: list[float], settled: float = SETTLED) -> tuple[int, int]:
    """(fewest, most) starts within any ten seconds that lie between the beginning and the end."""
    counts = []
    begins = [at for at in starts if settled <= at <= SECONDS - WINDOW - 1]
    # A count can only be the lowest just behind a start, and the highest just before one.
    for at in begins:
        for edge in (at, at + 1e-9):
            counts.append(bisect_left(starts, edge + WINDOW) - bisect_left(starts, edge))
    return min(counts), max(counts)


@pytest.mark.parametrize("latency", [0.002, 0.1])
@pytest.mark.parametrize("rate", [50.0, 333.3, 1000.0])
def test_any_ten_seconds_have_the_rate(monkeypatch: pytest.MonkeyPatch, rate: float, latency: float) -> None:
    starts = starts_of(monkeypatch, Job(rate, latency=latency))
    fewest, most = worst_windows(starts)
    assert 0.98 * rate * WINDOW <= fewest <= most <= 1.02 * rate * WINDOW


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("step", [1, 3, 30_000])
@pytest.mark.parametrize("rate", [40.0, 1000.0])
def test_gaps_between_keys_take_nothing_from_the_rate(
    monkeypatch: pytest.MonkeyPatch, rate: float, step: int, chunk: int | None
) -> None:
    starts = starts_of(monkeypatch, Job(rate, step=step, chunk=chunk))
    fewest, most = worst_windows(starts)
    slack = 2 * (chunk or 0)  # a chunk starts as a whole
    assert 0.98 * rate * WINDOW - slack <= fewest <= most <= 1.02 * rate * WINDOW + slack


@pytest.mark.parametrize("segments", [1, 2, 4, 8, 32])
def test_the_rate_is_kept_with_any_number_of_segments_whose_items_take_long(
    monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    """200 a second at 0.2 s an item keep 40 of 64 busy: no segment can go at the rate of the whole job."""
    job = Job(200.0, segments=segments, concurrency=64, takes=lambda *_: 0.2)
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    assert 0.98 * 2000 <= fewest <= most <= 1.02 * 2000


def test_segments_that_can_use_more_get_what_slow_ones_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are slow: 12 runners at a second an item use 12 of the 50 a second of an even part."""
    job = Job(
        200.0,
        segments=4,
        concurrency=48,
        takes=lambda segment, now, chance: 1.0 if segment < 2 else chance.uniform(0, 0.05),
    )
    fewest, most = worst_windows(starts_of(monkeypatch, job), settled=5.0)
    assert 0.98 * 2000 <= fewest <= most <= 1.02 * 2000


@pytest.mark.parametrize("latency", [0.002, 0.05])
@pytest.mark.parametrize("dies_at", [10.0, 10.4, 10.8])
@pytest.mark.parametrize("segments", [4, 8, 32])
def test_the_rate_is_kept_while_one_of_four_workers_is_lost(
    monkeypatch: pytest.MonkeyPatch, segments: int, dies_at: float, latency: float
) -> None:
    """Ten seconds are short by less than 2 %, and are never made up for by ten that are long."""
    job = Job(
        200.0,
        segments=segments,
        workers=4,
        concurrency=64,
        takes=lambda *_: 0.2,
        latency=latency,
        dies_at=dies_at,
    )
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    assert 0.98 * 2000 <= fewest <= most <= 1.02 * 2000


@pytest.mark.parametrize(("segments", "workers"), [(4, 4), (8, 4), (32, 4), (2, 2)])
@pytest.mark.parametrize("latency", [0.25, 0.6])
def test_the_rate_is_kept_while_the_store_is_slow(
    monkeypatch: pytest.MonkeyPatch, segments: int, workers: int, latency: float
) -> None:
    """Answers take up to 1.2 seconds: grants last long enough for that."""
    job = Job(
        200.0, segments=segments, workers=workers, concurrency=64, takes=lambda *_: 0.2, latency=latency
    )
    fewest, most = worst_windows(starts_of(monkeypatch, job), settled=8.0)
    assert 0.98 * 2000 <= fewest <= most <= 1.02 * 2000


def test_half_of_the_rate_is_missed_no_longer_than_a_grant_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(400.0, segments=4, workers=2, concurrency=64, dies_at=10.0)
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    lasts = SHARED_LASTS / MICROSECONDS + 4 * job.latency
    assert 4000 - (lasts + 0.1) * 200 <= fewest <= most <= 1.02 * 4000


@pytest.mark.parametrize(("segments", "workers", "a_second"), [(8, 1, 1.1), (4, 4, 4.1), (32, 4, 1.6)])
def test_only_workers_that_share_a_rate_write_more_than_a_checkpoint_a_second(
    monkeypatch: pytest.MonkeyPatch, segments: int, workers: int, a_second: float
) -> None:
    """Each worker is heard from every quarter of a second, whichever of its segments writes."""
    asked: list[int] = []
    answer = Store.answer

    def counted(self: Store, number: int, progress: SegmentProgress | None) -> BulkAnswer:
        if self.loop.time() >= SETTLED:
            asked.append(number)
        return answer(self, number, progress)

    monkeypatch.setattr(Store, "answer", counted)
    starts_of(monkeypatch, Job(200.0, segments=segments, workers=workers))
    assert len(asked) / (SECONDS - SETTLED) / segments <= a_second


def test_items_that_wait_to_be_tried_again_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One try in a hundred fails: half a second of waiting, for which the window has room."""
    job = Job(500.0, segments=1, concurrency=32, fails=0.01)
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    assert 0.98 * 5000 <= fewest <= most <= 1.02 * 5000


def test_items_that_wait_to_be_tried_again_take_no_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten fails once: 50 a second that wait half a second each are 25 of 32."""
    job = Job(500.0, segments=1, concurrency=32, fails=0.1)
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    assert 0.98 * 5000 <= fewest <= most <= 1.02 * 5000


def test_chunks_keep_it_in_items(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = starts_of(monkeypatch, Job(500.0, chunk=20))
    fewest, most = worst_windows(starts)
    assert 0.98 * 5000 <= fewest <= most <= 1.02 * 5000


def test_what_was_not_started_in_time_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten slow seconds are not followed by ten quick ones."""
    job = Job(400.0, takes=lambda segment, now, chance: 0.5 if now < 12.0 else chance.uniform(0, TAKES))
    fewest, most = worst_windows(starts_of(monkeypatch, job))
    assert fewest < 0.5 * 4000, "it was slow indeed"
    assert most <= 1.02 * 4000


def test_this_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pacer that lets everything through three percent early is found out."""
    due = Pacer._take

    async def generous(self: Pacer, most: int) -> int:
        count = await due(self, most)
        self._extra = getattr(self, "_extra", 0.0) + count * 0.03  # type: ignore[attr-defined]
        more = int(self._extra)  # type: ignore[attr-defined]
        self._extra -= more  # type: ignore[attr-defined]
        return count + more

    monkeypatch.setattr(Pacer, "_take", generous)
    starts = starts_of(monkeypatch, Job(333.3))
    _, most = worst_windows(starts)
    assert most > 1.02 * 3333
