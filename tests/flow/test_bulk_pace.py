"""Bulk jobs: an exact rate, a node's cap, draining, adaptive concurrency; undo; files."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from fusee.bulk.business import BulkContext
from fusee.bulk.execution.pacer import NodeCap
from fusee.bulk.model.job import BulkStatus, HeldBy
from fusee.engine.model.states import RunStatus
from fusee.errors import Conflict, Invalid
from tests.flow.bulk import at_rest, bulk_app, seen_in, working


async def test_a_rate_is_kept_over_two_workers(tmp_path: Path) -> None:
    """In real time and with a real store, so with a machine's own hiccups: what they cost is lost, never made
    up for. That it is exact to 2 % is shown in tests/unit/bulk/test_exact_rate.py, in a time of its own."""
    app, starts = bulk_app(tmp_path, beat=1.0), list[float]()

    @app.bulk("paced", rate=500, segments=2)
    async def paced(item: int) -> None:
        starts.append(time.monotonic())

    async with working(app, workers=2):
        job, _ = await app.bulk_jobs.create({"name": "p", "business": "paced", "source": 10**6}, start=True)
        await seen_in(app, job, lambda _: len(starts) > 500)
        begin = time.monotonic()
        await seen_in(app, job, lambda _: time.monotonic() > begin + 5)
        await app.bulk_jobs.stop(job.id)
        await at_rest(app, job)
    within = sum(begin <= at < begin + 5 for at in starts)
    assert 0.75 * 2500 <= within <= 1.05 * 2500
    # Starts that are a little late come close together; any second has little more than its own.
    busiest = max(sum(at <= other < at + 1 for other in starts) for at in starts[:: len(starts) // 50])
    assert busiest <= 500 * 1.25


async def test_a_rate_is_changed_live(tmp_path: Path) -> None:
    app, starts = bulk_app(tmp_path), list[float]()

    @app.bulk("paced", rate=1)
    async def paced(item: int) -> None:
        starts.append(time.monotonic())

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "p", "business": "paced", "source": 10**6}, start=True)
        await seen_in(app, job, lambda _: len(starts) >= 2)
        assert len(starts) < 5
        await app.bulk_jobs.adjust(job.id, rate=1000)
        await seen_in(app, job, lambda _: len(starts) >= 500)
        await app.bulk_jobs.adjust(job.id, rate="unlimited")
        job = await at_rest(app, job, 60)
    assert job.ended == 10**6


async def test_a_job_on_hold_starts_nothing_and_goes_on_at_once(tmp_path: Path) -> None:
    app, starts = bulk_app(tmp_path), list[float]()

    @app.bulk("paced", concurrency=4)
    async def paced(item: int) -> None:
        starts.append(time.monotonic())
        await asyncio.sleep(0.001)

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "paced", "source": 3000, "rate": "hold"}, start=True
        )
        job = await seen_in(app, job, lambda j: j.held_by is HeldBy.RATE)
        assert not starts
        with pytest.raises(Invalid, match="unlimited for no cap, or hold"):
            await app.bulk_jobs.adjust(job.id, rate=0)
        await app.bulk_jobs.adjust(job.id, rate="unlimited")
        job = await at_rest(app, job, 60)
    assert (job.status, job.ended, len(starts)) == (BulkStatus.FINISHED, 3000, 3000)


async def test_a_job_says_why_it_is_below_its_rate(tmp_path: Path) -> None:
    app, go = bulk_app(tmp_path), asyncio.Event()

    @app.bulk("slow", concurrency=2, rate=1000)
    async def slow(item: int) -> None:
        await go.wait()

    @app.bulk("stuck", concurrency=16, window=4, rate=1000)
    async def stuck(item: int) -> None:
        if item == 0:
            await go.wait()

    async with working(app):
        jobs = {}
        for business in ("slow", "stuck"):
            job, _ = await app.bulk_jobs.create({"name": "j", "business": business, "source": 50}, start=True)
            jobs[business] = job
        await seen_in(app, jobs["slow"], lambda j: j.held_by is HeldBy.HANDLER)
        await seen_in(app, jobs["stuck"], lambda j: j.held_by is HeldBy.WINDOW)
        await app.bulk_jobs.adjust(jobs["stuck"].id, window=100)
        seen = await seen_in(app, jobs["stuck"], lambda j: j.ended == 49)
        assert seen.window == 100, "the others got past it"
        go.set()
        for job in jobs.values():
            assert (await at_rest(app, job)).held_by is None


async def test_a_job_that_does_not_fit_on_a_node_waits_as_long_as_it_takes(tmp_path: Path) -> None:
    app = bulk_app(tmp_path, worker={"bulk_rate_cap": 100.0})

    @app.bulk("one", segments=1)
    async def one(item: int) -> None: ...

    async with working(app):
        fields = {"business": "one", "source": 10**6, "rate": 80}
        big, _ = await app.bulk_jobs.create({"name": "big", **fields}, start=True)
        await seen_in(app, big, lambda j: j.ended > 0)
        other, _ = await app.bulk_jobs.create({"name": "other", **fields}, start=True)
        await seen_in(app, other, lambda j: j.held_by is HeldBy.NODE_CAP)
        (segment,) = await app.bulk_jobs.segments(other.id)
        assert segment.run_id is not None and segment.share == 0
        async with asyncio.timeout(20):
            while True:
                run = (await app.runs.get(segment.run_id)).run
                if run.status is RunStatus.DELAYED:
                    break
                await asyncio.sleep(0.005)
        assert run.spent == 0, "waiting costs no attempt"
        assert run.reason is not None and "bulk_rate_cap" in run.reason
        for job in (big, other):
            await app.bulk_jobs.stop(job.id)
            assert (await at_rest(app, job)).status is BulkStatus.STOPPED


async def test_chunks_keep_the_rate_in_items(tmp_path: Path) -> None:
    app, starts = bulk_app(tmp_path), list[tuple[float, int]]()

    @app.bulk("paced", rate=400, chunk=100)
    async def paced(items: list[int]) -> None:
        starts.append((time.monotonic(), len(items)))

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "p", "business": "paced", "source": 1200}, start=True)
        job = await at_rest(app, job)
    took = starts[-1][0] - starts[0][0]
    assert sum(size for _, size in starts) == 1200
    assert took == pytest.approx((1200 - starts[-1][1]) / 400, rel=0.1, abs=0.1)
    assert Counter(size for _, size in starts).most_common(1)[0][0] == 100


async def test_what_does_not_fit_on_a_node_is_handed_back_and_the_rest_goes_on(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path, worker={"bulk_rate_cap": 100.0}), Counter[str]()

    @app.bulk("one", segments=1)
    async def one(item: int, job: BulkContext) -> None:
        seen[job.name] += 1

    async with working(app):
        big, _ = await app.bulk_jobs.create(
            {"name": "big", "business": "one", "source": 10**6, "rate": 80}, start=True
        )
        await seen_in(app, big, lambda j: j.ended > 0)
        other, _ = await app.bulk_jobs.create(
            {"name": "other", "business": "one", "source": 10**6, "rate": 50}, start=True
        )
        small, _ = await app.bulk_jobs.create(
            {"name": "small", "business": "one", "source": 10, "rate": 10}, start=True
        )
        small = await at_rest(app, small)
        assert small.status is BulkStatus.FINISHED
        assert seen["other"] == 0
        assert (await app.bulk_jobs.get(other.id)).status is BulkStatus.RUNNING, "it waits; it did not fail"
        for job in (big, other):
            await app.bulk_jobs.stop(job.id)
            assert (await at_rest(app, job)).status is BulkStatus.STOPPED


async def test_a_nodes_cap_holds_for_jobs_without_a_rate(tmp_path: Path) -> None:
    app, starts = bulk_app(tmp_path, worker={"bulk_rate_cap": 500.0}), list[float]()

    @app.bulk("free")
    async def free(item: int) -> None:
        starts.append(time.monotonic())

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "f", "business": "free", "source": 1000}, start=True)
        await at_rest(app, job)
    assert starts[-1] - starts[0] == pytest.approx(2.0, abs=0.3)


def test_what_fits_on_a_node() -> None:
    node = NodeCap(100.0)
    assert node.admit("a", 80.0)
    assert not node.admit("b", 30.0)
    assert node.admit("c", 20.0)
    assert not node.admit("d", 0.0), "a job without a rate takes what is left, and nothing is"
    node.leave("a")
    assert node.admit("b", 30.0)
    assert node.admit("d", 0.0)
    assert node.rest == 50.0
    assert NodeCap(10.0).admit("alone", 50.0), "larger than the cap, alone it runs at the cap"


async def test_a_worker_that_drains_hands_its_segment_over_at_once(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), Counter[int]()

    @app.bulk("calm", concurrency=4)
    async def calm(item: int) -> None:
        await asyncio.sleep(0.001)
        seen[item] += 1

    async with app.running(worker=False):
        first = app.worker()
        running = asyncio.create_task(first.run())
        job, _ = await app.bulk_jobs.create({"name": "c", "business": "calm", "source": 3000}, start=True)
        await seen_in(app, job, lambda j: j.ended > 50)
        begin = time.monotonic()
        first.stop()
        await running
        assert time.monotonic() - begin < 3, "it did not wait for the end of the segment"
        before = await app.bulk_jobs.get(job.id)
        assert before.status is BulkStatus.RUNNING and before.ended == len(seen)
        second = app.worker()
        running = asyncio.create_task(second.run())
        job = await at_rest(app, job)
        second.stop()
        await running
    assert (job.status, job.replayed) == (BulkStatus.FINISHED, 0)
    assert len(seen) == 3000 and set(seen.values()) == {1}


async def test_adaptive_concurrency_backs_off_when_the_other_side_is_overloaded(tmp_path: Path) -> None:
    """A service that is quick for eight at a time, and slow for more."""
    app, running, most, refused = bulk_app(tmp_path), [0], [0], [0]

    @app.bulk("service", concurrency=200, adaptive=True, item_attempts=100, item_backoff=0.001)
    async def service(item: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            await asyncio.sleep(0.002)
            if running[0] > 20:
                refused[0] += 1
                raise RuntimeError("too many at once")
        finally:
            running[0] -= 1

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "s", "business": "service", "source": 20_000}, start=True
        )
        job = await at_rest(app, job, 60)
    assert (job.status, job.quarantined) == (BulkStatus.FINISHED, 0)
    assert 5 < most[0] < 100, "it neither stayed low nor went up to the cap"


async def test_undo_runs_backwards_over_what_is_done(tmp_path: Path) -> None:
    app, undone = bulk_app(tmp_path), list[str]()

    async def take_back(item: str, job: BulkContext) -> None:
        assert job.undo
        undone.append(item)

    @app.bulk("grant", undo=take_back, item_attempts=1)
    async def grant(item: str) -> None:
        if item == "c":
            raise RuntimeError("no")

    @app.bulk("final")
    async def final(item: int) -> None: ...

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "g", "business": "grant", "source": list("abcdef")})
        with pytest.raises(Conflict, match="nothing to undo"):
            await app.bulk_jobs.undo(job.id)
        await app.bulk_jobs.start(job.id)
        await at_rest(app, job)
        undo = await app.bulk_jobs.undo(job.id, start=True, concurrency=1)
        assert undo.undo_of == job.id
        undo = await at_rest(app, undo)
        assert (undo.status, undo.total) == (BulkStatus.FINISHED, 5)
        with pytest.raises(Conflict, match="is an undo itself"):
            await app.bulk_jobs.undo(undo.id)
        other, _ = await app.bulk_jobs.create({"name": "f", "business": "final", "source": 3}, start=True)
        await at_rest(app, other)
        with pytest.raises(Conflict, match="has no undo handler"):
            await app.bulk_jobs.undo(other.id)
    assert undone == ["f", "e", "d", "b", "a"]


async def test_a_file_is_worked_through_and_what_cannot_be_read_is_quarantined(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), Counter[int]()
    path = tmp_path / "items.jsonl"
    lines = [json.dumps({"n": n}) for n in range(5000)]
    lines[17], lines[4000] = "broken", ""
    path.write_text("\n".join(lines) + "\n")

    @app.bulk("each")
    async def each(item: dict[str, int]) -> None:
        seen[item["n"]] += 1

    @app.bulk("chunks", chunk=100)
    async def chunks(items: list[dict[str, int]]) -> None:
        seen.update(item["n"] for item in items)

    async with working(app, workers=2):
        for business in ("each", "chunks"):
            seen.clear()
            source = {"kind": "file", "path": str(path)}
            job, _ = await app.bulk_jobs.create(
                {"name": "f", "business": business, "source": source, "segments": 3}, start=True
            )
            job = await at_rest(app, job)
            assert (job.status, job.total, job.ended) == (BulkStatus.FINISHED, 5000, 5000)
            bad = await app.bulk_jobs.quarantine(job.id)
            assert [(item.index, item.attempts, item.item) for item in bad] == [(17, 1, "broken")]
            assert seen == Counter(n for n in range(5000) if n not in (17, 4000))


async def test_a_file_that_is_gone_when_the_job_starts(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)
    path = tmp_path / "items.txt"
    path.write_text("a\nb\n")

    @app.bulk("each")
    async def each(item: str) -> None: ...

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "f", "business": "each", "source": {"kind": "file", "path": str(path)}}
        )
        path.unlink()
        await app.bulk_jobs.start(job.id)
        job = await at_rest(app, job)
    assert job.status is BulkStatus.STOPPED
    assert job.reason is not None and "cannot be read" in job.reason
