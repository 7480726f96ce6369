"""An item that kills its worker is found and quarantined: real runners that "die" with all they had."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fusee.bulk.business import BulkContext
from fusee.bulk.execution.calls import Calls
from fusee.bulk.execution.careful import Turns
from fusee.bulk.execution.pacer import NodeCap, Pacer, WorkerGrants
from fusee.bulk.execution.segment_runner import SegmentRunner
from fusee.bulk.model.done_map import decode_done
from fusee.bulk.model.job import BulkJob, BulkStatus, Quarantined
from fusee.bulk.model.pacing import UNLIMITED
from fusee.bulk.model.segment import (
    BulkAnswer,
    Caution,
    Segment,
    SegmentProgress,
    SegmentState,
    Taken,
    after_loss,
)
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.model.window import Checkpoint
from fusee.bulk.sources import Placed
from fusee.bulk.sources.simple import RangeSource


class Segments:
    """One segment of a store that keeps what a checkpoint says."""

    def __init__(self, items: int, concurrency: int, attempts: int, step: int = 0) -> None:
        self.items = items * (step or 1)
        self.step = step
        self.concurrency = concurrency
        self.attempts = attempts
        self.progress = SegmentProgress(checkpoint=Checkpoint(0), reached=0, ended=0)
        self.caution: Caution | None = None
        self.quarantine: list[Quarantined] = []
        self.writes = 0
        self.dead = False

    def answer(self) -> BulkAnswer:
        return BulkAnswer(
            stop=False, share=self.concurrency, rate=UNLIMITED, grant=None, now=0, end=self.items,
            errors_left=None,
        )  # fmt: skip

    async def write(self, progress: SegmentProgress) -> BulkAnswer:
        if self.dead:
            await asyncio.Event().wait()
        self.progress, self.caution = progress, progress.caution
        self.quarantine += progress.new
        self.writes += 1
        return self.answer()

    def lose(self) -> None:
        at = self.progress
        self.caution = after_loss(
            self.caution,
            watermark=at.checkpoint.watermark,
            done=b"" if self.step else decode_done(at.checkpoint.done),
            reached=at.reached,
            stop=self.items,
            speed=40.0 * self.concurrency,  # items of a beat, which is what it means to a beat of a second
            attempts=self.attempts,
            spread=4 * self.step or 1,
        )

    def taken(self) -> Taken:
        spec = BulkSpec(
            name="j", business="b", source={"kind": "range", "stop": self.items},
            concurrency=self.concurrency, item_attempts=self.attempts,
        )  # fmt: skip
        job = BulkJob(
            id=1, namespace="n", spec=spec, status=BulkStatus.RUNNING, reason=None, version=1, undo_of=None,
            data=None, first=0, total=self.items, ended=0, quarantined=0, retried=0, replayed=0,
            rate=UNLIMITED, concurrency=self.concurrency, speed=0, created_at=0, updated_at=0, started_at=0,
            finished_at=None,
        )  # fmt: skip
        at = self.progress
        segment = Segment(
            job_id=1, number=0, first=0, stop=self.items, watermark=at.checkpoint.watermark,
            reached=at.reached, ended=at.ended, absent=at.absent, quarantined=at.quarantined,
            retried=at.retried, replayed=at.replayed, share=self.concurrency, state=SegmentState.OPEN,
            run_id=1,
        )  # fmt: skip
        answer = self.answer()
        return Taken(job=job, segment=segment, checkpoint=at.checkpoint, answer=answer, caution=self.caution)


class Rows(RangeSource):
    """Rows whose keys lie so far apart; their items are 0, 1, 2 and so on."""

    def __init__(self, step: int) -> None:
        super().__init__({"kind": "range", "stop": 10**18})
        self.step = step

    async def page(self, first: int, end: int, most: int) -> list[tuple[int, Placed]]:
        keys = range(-(-first // self.step) * self.step, end, self.step)[:most]
        return [(key, Placed(key, key // self.step)) for key in keys]


class World:
    """Workers that die of some items, one after the other, until the job is done."""

    def __init__(
        self, items: int, killers: Iterable[int], *, concurrency: int = 8, attempts: int = 3, step: int = 0
    ) -> None:
        self.step = step
        self.store = Segments(items, concurrency, attempts, step)
        self.killers = set(killers)
        self.deaths = 0
        self.tries: Counter[int] = Counter()
        self.under_way: set[int] = set()
        self.beside: list[set[int]] = []
        """What else was under way at each death."""

    async def run(self, *, most: int, chunk: int | None = None) -> None:
        while not await self.one_life(chunk):
            self.deaths += 1
            assert self.deaths <= most, f"{self.deaths} workers died: {self.store.caution}"
            self.store.lose()

    async def one_life(self, chunk: int | None) -> bool:
        """Whether the segment was done before the worker died."""
        died = asyncio.Event()
        self.under_way.clear()
        self.store.dead = False

        async def handle(given: Any) -> None:
            items: Sequence[int] = given if chunk else [given]
            self.tries.update(items)
            self.under_way.update(items)
            await asyncio.sleep(0.0005)
            if self.killers & set(items) or self.store.dead:
                if not self.store.dead:
                    self.beside.append(self.under_way - self.killers)
                self.store.dead = True
                died.set()
                await asyncio.Event().wait()
            self.under_way.difference_update(items)

        context = BulkContext(job_id=1, name="j", business="b")
        calls = Calls(handle, context, chunk=chunk, attempts=self.store.attempts, backoff=0.001)
        source = RangeSource({"kind": "range", "stop": self.store.items})
        if self.step:
            source = Rows(self.step)
            calls = Calls(
                handle, context, chunk=chunk, attempts=self.store.attempts, backoff=0.001, placed=True
            )
        pacer = Pacer(NodeCap(), WorkerGrants(), calls.chunk)
        runner = SegmentRunner(
            self.store.taken(), calls, source, self.store.write, pacer, turns=Turns(), beat=0.02,
            pages=source if self.step else None,
        )  # fmt: skip
        running = asyncio.ensure_future(runner.run())
        death = asyncio.ensure_future(died.wait())
        await asyncio.wait([running, death], return_when=asyncio.FIRST_COMPLETED)
        if not died.is_set():
            death.cancel()
            return running.result()
        tasks = [
            running,
            *(item_runner.task for item_runner in runner.work.runners if item_runner.task is not None),
        ]
        while not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.05)
        return False


@pytest.mark.parametrize("attempts", [1, 3, 5])
async def test_an_item_that_kills_its_worker_is_quarantined_after_its_attempts(attempts: int) -> None:
    world = World(400, {123}, attempts=attempts)
    async with asyncio.timeout(60):
        await world.run(most=max(3, attempts))
    (bad,) = world.store.quarantine
    assert bad.index == 123 and bad.item == "123" and bad.attempts == max(3, attempts)
    assert "workers were lost" in bad.error
    assert world.tries[123] == max(3, attempts)
    assert world.beside[-1] == set(), "the last time it was alone"
    assert world.store.progress.ended == 400 and world.store.progress.quarantined == 1
    assert world.store.caution is None


@pytest.mark.parametrize("chunk", [None, 10])
async def test_several_killers_are_found_one_after_the_other(chunk: int | None) -> None:
    world = World(600, {0, 7, 300, 599}, concurrency=4)
    async with asyncio.timeout(60):
        await world.run(most=20, chunk=chunk)
    assert sorted(bad.index for bad in world.store.quarantine) == [0, 7, 300, 599]
    assert world.store.progress.ended == 600


@pytest.mark.parametrize("chunk", [None, 10])
@pytest.mark.parametrize("step", [3, 10**12])
async def test_a_row_by_key_that_kills_its_worker_is_found_whatever_the_gaps(
    step: int, chunk: int | None
) -> None:
    world = World(600, {0, 300, 599}, concurrency=4, step=step)
    async with asyncio.timeout(60):
        await world.run(most=20, chunk=chunk)
    assert sorted(bad.index // step for bad in world.store.quarantine) == [0, 300, 599]
    assert (world.store.progress.ended, world.store.progress.absent) == (600, 600 * (step - 1))
    assert world.store.caution is None


async def test_many_suspects_are_narrowed_down_in_groups() -> None:
    """Of 1,000 at once nobody wants to wait for a thousand, one after the other."""
    world = World(5000, {2500}, concurrency=1000)
    async with asyncio.timeout(60):
        await world.run(most=5)
    assert [bad.index for bad in world.store.quarantine] == [2500]


async def test_losses_that_no_item_is_at_fault_for_quarantine_nothing() -> None:
    world = World(400, {123})
    assert not await world.one_life(None)
    world.store.lose()
    assert not await world.one_life(None)
    world.store.lose()
    assert world.store.caution is not None and world.store.caution.width == 1
    world.killers.clear()
    async with asyncio.timeout(60):
        assert await world.one_life(None)
    assert world.store.quarantine == [] and world.store.progress.ended == 400
    assert world.store.caution is None, "all suspects ended well: the segment is trusted again"


def test_a_worker_that_is_lost_with_nothing_under_way_blames_nobody() -> None:
    caution = Caution(upto=100, reach=10, width=1, losses=2)
    after = after_loss(caution, watermark=10, done=b"", reached=10, stop=1000, speed=0, attempts=3)
    assert after == caution
    after = after_loss(
        replace(caution, reach=11), watermark=10, done=b"", reached=11, stop=1000, speed=0, attempts=3
    )
    assert after.blamed and after.losses == 3


def test_segments_in_small_groups_work_alone() -> None:
    turns = Turns()
    assert turns.enter("a", alone=False) and turns.enter("b", alone=False)
    assert not turns.enter("c", alone=True)
    turns.leave("a"), turns.leave("b")
    assert turns.enter("c", alone=True) and turns.enter("c", alone=True)
    assert not turns.enter("d", alone=True) and not turns.enter("a", alone=False)
    turns.leave("c")
    assert turns.enter("d", alone=True)
