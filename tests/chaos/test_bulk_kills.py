"""SIGKILL of workers in the middle of a bulk job: nothing is left out, and nothing recorded is done again."""

from __future__ import annotations

import asyncio
import os
import random
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fusee.bulk.model.job import BulkJob, BulkStatus
from fusee.bulk.model.segment import Segment
from fusee.errors import StoreUnavailable
from tests.chaos.bulk_crew import BAD, MARK, WRITTEN, make
from tests.chaos.harness import Fleet, Journal

CONCURRENCY = 96


@dataclass
class Kill:
    """What was on record just after a worker died, and how long each journal was then."""

    pid: int
    done: list[tuple[int, int]]
    lengths: dict[int, int]


@dataclass
class Story:
    items: int
    folder: Path
    kills: list[Kill] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)

    def journal(self, pid: int, what: str) -> array[int]:
        found = array("Q")
        path = self.folder / f"{pid}.{what}"
        data = path.read_bytes() if path.exists() else b""
        found.frombytes(data[: len(data) // 8 * 8])
        return found

    def pids(self) -> list[int]:
        return sorted({int(path.stem) for path in self.folder.glob("*.starts")})

    def lengths(self) -> dict[int, int]:
        return {int(path.stem): path.stat().st_size // 8 for path in self.folder.glob("*.starts")}

    def started(self) -> int:
        return sum(self.lengths().values())


@asynccontextmanager
async def crew_of(url: str, folder: Path, workers: int) -> AsyncIterator[Fleet]:
    seed = int(os.environ.get("FUSEE_CHAOS_SEED", time.time_ns() % 10**6))
    print(f"chaos seed {seed} (FUSEE_CHAOS_SEED={seed} repeats it)")
    notes = folder / "journals"
    notes.mkdir()
    journal = Journal.__new__(Journal)
    journal.path = notes  # a folder: each worker has files of its own
    app = make(url, str(notes), {"database": {"migrate": True}})
    async with app:
        crew = Fleet(app, url, journal, folder, seed, random.Random(seed), module="tests.chaos.bulk_crew")
        try:
            for role, count in (("worker", workers), ("dispatcher", 1)):
                for _ in range(count):
                    crew.start(role)
            await crew.ready()
            yield crew
        finally:
            crew.end()


async def under_fire(crew: Fleet, items: int, kills: int) -> tuple[Story, BulkJob]:
    story = Story(items, crew.journal.path)
    jobs = crew.app.bulk_jobs
    job, _ = await jobs.create(
        {"name": "all", "business": "journal", "source": items, "concurrency": CONCURRENCY}, start=True
    )
    watch = asyncio.create_task(_watch(crew, job, story))
    try:
        for _ in range(kills):
            goal = story.started() + crew.chance.randrange(items // (2 * kills), items // kills)
            await crew.until(lambda at=goal: watch.done() or story.started() >= at, 60)  # type: ignore[misc]
            victim = crew.chance.choice(crew.of("worker"))
            crew.kill(victim)
            done = await crew.app.store.bulk.queries.done_ranges(job.id)
            story.kills.append(Kill(victim.pid, done, story.lengths()))
            crew.start("worker")
        deadline = time.monotonic() + 240
        while (job := await jobs.get(job.id)).status not in ("finished", "failed", "stopped"):
            assert time.monotonic() < deadline, f"seed {crew.seed}: never ended: {job}"
            assert not crew.crashed(), f"seed {crew.seed}: {crew.crashed()[0]}"
            await asyncio.sleep(0.1)
    finally:
        watch.cancel()
    if watch.done() and not watch.cancelled():
        watch.result()
    return story, job


async def _watch(crew: Fleet, job: BulkJob, story: Story) -> None:
    """A watermark never moves back, and the job's sum is that of its segments."""
    while True:
        try:
            for segment in await crew.app.bulk_jobs.segments(job.id):
                before = story.marks.get(segment.number, segment.first)
                assert segment.watermark >= before, f"seed {crew.seed}: {segment} was at {before}"
                story.marks[segment.number] = segment.watermark
        except StoreUnavailable:
            pass
        await asyncio.sleep(0.02)


async def judge(crew: Fleet, story: Story, job: BulkJob) -> Counter[str]:
    why, items = f"seed {crew.seed}", story.items
    segments = await crew.app.bulk_jobs.segments(job.id)
    assert job.status is BulkStatus.FINISHED, f"{why}: {job}"
    assert job.ended == job.total == items == sum(s.ended for s in segments), why
    assert [s.first for s in segments] == [0, *(s.stop for s in segments[:-1])], f"{why}: a gap or overlap"

    starts = {pid: story.journal(pid, "starts") for pid in story.pids()}
    times, ended = bytearray(items), bytearray(items)
    for pid, journal in starts.items():
        for item in journal:
            if item < MARK:
                times[item] = min(255, times[item] + 1)
        for item in story.journal(pid, "ends"):
            ended[item] = 1
    bad = {quarantined.index async for quarantined in crew.app.bulk_jobs.quarantined(job.id)}
    assert bad == set(range(0, items, BAD)), f"{why}: the quarantine is not what failed"
    assert job.quarantined == len(bad), why
    left_out = [item for item in range(items) if not ended[item] and item not in bad]
    assert not left_out, f"{why}: never done: {left_out[:5]}"

    _nothing_on_record_again(why, items, story, starts)
    twice = {item for item in range(items) if times[item] > 1}
    replays = _replays(why, story, starts, twice, segments)
    total = sum(1 for journal in starts.values() for item in journal if item < MARK)
    # A machine under load loses leases too: what such a worker held is started again like a killed one's.
    sessions = await crew.app.store.sessions.sessions(all_states=True)
    killed = {kill.pid for kill in story.kills}
    late = [session for session in sessions if session.state == "lost" and session.info.pid not in killed]
    if late:
        assert total - items >= sum(replays), why
    else:
        assert total - items == sum(replays), f"{why}: started twice for another reason than a kill"
    return Counter(
        items=items,
        kills=len(story.kills),
        replays=sum(replays),
        most=max(replays),
        segments=len(segments),
        lost_without_a_kill=len(late),
    )


def _nothing_on_record_again(why: str, items: int, story: Story, starts: dict[int, array[int]]) -> None:
    """What a checkpoint told to be done when a worker died was never started after that."""
    done = bytearray(items)
    for kill, after in zip(story.kills, [*story.kills[1:], None], strict=True):
        for first, end in kill.done:
            done[first:end] = b"\x01" * (end - first)
        for pid, journal in starts.items():
            upto = len(journal) if after is None else after.lengths.get(pid, 0)
            for item in journal[kill.lengths.get(pid, 0) : upto]:
                assert item >= MARK or not done[item], f"{why}: item {item} was on record, and started again"


def _replays(
    why: str, story: Story, starts: dict[int, array[int]], twice: set[int], segments: Sequence[Segment]
) -> list[int]:
    """For each kill: how many items were started again; none but those under way or not on record yet.

    Each segment has checkpoints of its own; where none was written yet, all that was started may come again.
    """
    stops = [segment.stop for segment in segments]  # by place; their numbers tell in which order they came up
    places: dict[int, list[tuple[int, int]]] = {item: [] for item in twice}
    for pid, journal in starts.items():
        for at, item in enumerate(journal):
            if item in places:
                places[item].append((pid, at))
    found = []
    for kill in story.kills:
        journal = starts.get(kill.pid, array("Q"))
        made: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, item in enumerate(journal):
            if item >= MARK + WRITTEN:
                segment = item - MARK - WRITTEN
                last[segment] = made[segment]
            elif item >= MARK:
                made[item - MARK] = at
        mine = [(item, at) for item in twice for pid, at in places[item] if pid == kill.pid]
        again = [
            (item, at)
            for item, at in mine
            if any(pid != kill.pid and there >= kill.lengths.get(pid, 0) for pid, there in places[item])
        ]
        early = [item for item, at in again if at < last.get(segments[bisect_right(stops, item)].number, 0)]
        assert len(early) <= CONCURRENCY, f"{why}: {len(early)} items were replayed from before a checkpoint"
        found.append(len(again))
    return found


async def test_a_few_kills_in_a_bulk_job(database_url: str, tmp_path: Path) -> None:
    async with crew_of(database_url, tmp_path, 2) as crew:
        story, job = await under_fire(crew, 60_000, 3)
        print(await judge(crew, story, job))


@pytest.mark.chaos
async def test_fifty_kills_in_a_bulk_job_of_two_million_items(database_url: str, tmp_path: Path) -> None:
    async with crew_of(database_url, tmp_path, 3) as crew:
        story, job = await under_fire(crew, 2_000_000, 50)
        told = await judge(crew, story, job)
    print(told)
    assert told["kills"] == 50
    assert told["replays"] > 0, "no kill hit anything: the test was too kind"
