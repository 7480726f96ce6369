"""Sources that change under a bulk job: growth keeps the bounds of the job, a replacement is refused."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.bulk.model.job import BulkJob, BulkStatus
from fusee.errors import Conflict
from tests.flow.bulk import at_rest, bulk_app, seen_in, working
from tests.flow.tables import Table

LINES = 300


class Desk:
    """A business that stops behind its first items until it may go on."""

    def __init__(self, app: Fusee) -> None:
        self.seen: Counter[str] = Counter()
        self.undone: list[str] = []
        self.open = asyncio.Event()

        async def undo(item: Any) -> None:
            self.undone.append(item)

        @app.bulk("desk", concurrency=4, undo=undo, item_attempts=1)
        async def desk(item: Any) -> None:
            text = str(item["id"]) if isinstance(item, Mapping) else item
            if self.seen.total() >= 50:
                await self.open.wait()
            if text.startswith("bad"):
                raise ValueError("bad")
            self.seen[text] += 1


async def stopped_half_way(app: Fusee, desk: Desk, source: Mapping[str, Any], **fields: Any) -> BulkJob:
    app.bulk_server.drain = 0.1
    job, _ = await app.bulk_jobs.create(
        {"name": "d", "business": "desk", "source": source, **fields}, start=True
    )
    await seen_in(app, job, lambda j: j.done >= 50)
    await app.bulk_jobs.stop(job.id)
    job = await at_rest(app, job)
    assert job.status is BulkStatus.STOPPED
    desk.open.set()
    return job


def write(path: Path, word: str, lines: int = LINES) -> None:
    path.write_text("".join(f"{word} {n:04}\n" for n in range(lines)))


async def test_a_file_that_grew_is_resumed_within_the_bounds_it_had(tmp_path: Path) -> None:
    app, path = bulk_app(tmp_path), tmp_path / "x.txt"
    desk = Desk(app)
    write(path, "old")
    async with working(app):
        job = await stopped_half_way(app, desk, {"kind": "file", "path": str(path)})
        write(path, "old", LINES + 40)
        await app.bulk_jobs.resume(job.id)
        job = await at_rest(app, job)
    assert (job.status, job.reason, job.total, job.done) == (BulkStatus.FINISHED, None, LINES, LINES)
    assert set(desk.seen) == {f"old {n:04}" for n in range(LINES)}


async def test_a_file_replaced_by_one_with_as_many_lines_is_refused_with_both_values(tmp_path: Path) -> None:
    app, path = bulk_app(tmp_path), tmp_path / "x.txt"
    desk = Desk(app)
    write(path, "old")
    async with working(app):
        job = await stopped_half_way(app, desk, {"kind": "file", "path": str(path)})
        before = path.stat()
        write(path, "new")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await app.bulk_jobs.resume(job.id)
        refused = await at_rest(app, job)
        assert refused.status is BulkStatus.STOPPED
        assert "it had 2700 bytes" in str(refused.reason) and "it has 2700 bytes" in str(refused.reason)
        assert "restore the former content and resume the job, or create a new job" in str(refused.reason)
        assert not any(text.startswith("new") for text in desk.seen)
        write(path, "old")  # of another time, and the same content
        await app.bulk_jobs.resume(job.id)
        job = await at_rest(app, job)
    assert (job.status, job.done) == (BulkStatus.FINISHED, LINES)


async def test_a_file_that_is_replaced_while_a_segment_waits_for_a_worker_is_noticed(tmp_path: Path) -> None:
    app, path = bulk_app(tmp_path), tmp_path / "x.txt"
    desk = Desk(app)
    desk.open.set()
    write(path, "old")
    take = type(app.store.bulk.checkpoints).take_segment

    async def replaced_first(*args: Any, **named: Any) -> Any:
        write(path, "new")
        return await take(*args, **named)

    async with working(app):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(app.store.bulk.checkpoints), "take_segment", replaced_first)
            job, _ = await app.bulk_jobs.create(
                {"name": "d", "business": "desk", "source": {"kind": "file", "path": str(path)}}, start=True
            )
            job = await at_rest(app, job)
    assert (job.status, job.ended) == (BulkStatus.FAILED, 0)
    assert "changed since the job was launched" in str(job.reason)
    assert not desk.seen


async def test_a_job_over_items_of_another_reads_no_other_file_than_that_one_did(tmp_path: Path) -> None:
    app, path = bulk_app(tmp_path), tmp_path / "x.txt"
    desk = Desk(app)
    desk.open.set()
    path.write_text("good 1\nbad 2\ngood 3\n")
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "d", "business": "desk", "source": {"kind": "file", "path": str(path)}}, start=True
        )
        assert (await at_rest(app, job)).quarantined == 1
        path.write_text("evil 1\nevl 2\nevil 3\n")
        for follow_up in (app.bulk_jobs.rerun_quarantine, app.bulk_jobs.undo):
            made = await at_rest(app, await follow_up(job.id, start=True))
            assert made.status is BulkStatus.STOPPED
            assert "changed since the job was launched" in str(made.reason)
    assert desk.undone == []


async def test_a_table_that_grew_is_resumed_within_the_keys_it_had_and_extended(
    tmp_path: Path, database_url: str
) -> None:
    folder = tmp_path / "platform"
    folder.mkdir()
    app = bulk_app(folder)
    desk = Desk(app)
    table = Table(database_url)
    await table.make(range(1, LINES + 1))
    try:
        async with working(app):
            job = await stopped_half_way(app, desk, table.source)
            await table.add(range(LINES + 1, LINES + 41))
            await table.take_away(LINES)
            await app.bulk_jobs.resume(job.id)
            job = await at_rest(app, job)
            assert (job.status, job.reason) == (BulkStatus.FINISHED, None)
            assert set(desk.seen) == {str(n) for n in range(1, LINES)}
            await app.bulk_jobs.extend(job.id, start=True)
            job = await at_rest(app, job)
            assert job.status is BulkStatus.FINISHED
            assert set(desk.seen) == {str(n) for n in range(1, LINES + 41) if n != LINES}
    finally:
        await table.close()


@pytest.mark.parametrize("finished", [True, False])
async def test_extend_adds_what_came_to_a_file_and_the_job_starts_again(
    tmp_path: Path, finished: bool
) -> None:
    app, path = bulk_app(tmp_path), tmp_path / "x.txt"
    desk = Desk(app)
    write(path, "old")
    async with working(app):
        job = await stopped_half_way(app, desk, {"kind": "file", "path": str(path)})
        with pytest.raises(Conflict, match="has no items beyond those of bulk job"):
            await app.bulk_jobs.extend(job.id)
        if finished:
            await app.bulk_jobs.resume(job.id)
            assert (await at_rest(app, job)).status is BulkStatus.FINISHED
        write(path, "old", LINES + 40)
        job = await app.bulk_jobs.extend(job.id)
        assert (job.status, job.total) == (BulkStatus.STOPPED, LINES + 40)
        await app.bulk_jobs.start(job.id)
        job = await at_rest(app, job)
        assert (job.status, job.done) == (BulkStatus.FINISHED, LINES + 40)
        assert set(desk.seen) == {f"old {n:04}" for n in range(LINES + 40)}
        texts = [line.text for line in await app.bulk_jobs.logs(job.id, kind="operator")]
        assert "extended by 40 items: from 300 to 339" in texts
        write(path, "new", LINES + 80)
        with pytest.raises(Conflict, match="changed since the job was launched"):
            await app.bulk_jobs.extend(job.id)
        assert (await app.bulk_jobs.get(job.id)).status is BulkStatus.FINISHED


async def test_extend_is_refused_where_it_makes_no_sense(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)
    desk = Desk(app)
    desk.open.set()
    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "d", "business": "desk", "source": ["a", "bad"]})
        with pytest.raises(Conflict, match="is created: it takes all items of its source when it is started"):
            await app.bulk_jobs.extend(job.id)
        await app.bulk_jobs.start(job.id)
        await at_rest(app, job)
        again = await at_rest(app, await app.bulk_jobs.rerun_quarantine(job.id, start=True))
        with pytest.raises(Conflict, match="works on items of bulk job"):
            await app.bulk_jobs.extend(again.id)
