"""Rows of a query whose keys have gaps: rows are counted, started and shown, and gaps are not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fusee import BulkContext, Fusee
from fusee.bulk.model.job import UNKNOWN, BulkStatus
from fusee.bulk.sources.sql import SqlSource
from tests.flow.bulk import at_rest, bulk_app, seen_in, working
from tests.flow.tables import Table

FAR = 4_194_304_000
"""Between the ids of one second, when the upper bits of an id are its time."""


@pytest_asyncio.fixture
async def table(database_url: str) -> AsyncIterator[Table]:
    table = Table(database_url)
    await table.make()
    yield table
    await table.close()


@pytest.fixture
def app(tmp_path: Path) -> Fusee:
    folder = tmp_path / "platform"
    folder.mkdir()
    return bulk_app(folder)


async def test_gaps_between_keys_are_no_items(app: Fusee, table: Table) -> None:
    seen: Counter[int] = Counter()
    totals: list[int | None] = []

    @app.bulk("people")
    async def people(row: Any, index: int) -> None:
        assert row == {"id": index, "name": f"name {index}"}
        seen[index] += 1

    @app.bulk("watched", concurrency=1)
    async def watched(row: Any, index: int) -> None:
        totals.append((await app.bulk_jobs.list())[0].total)

    ids = range(1, 299, 3)
    await table.add(ids)
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source}, start=True
        )
        job = await at_rest(app, job)
        assert (job.status, job.total, job.done, job.ended) == (BulkStatus.FINISHED, 100, 100, 100)
        assert (job.first, job.stop, job.absent, job.progress) == (1, 299, 198, 1.0)
        (segment,) = await app.bulk_jobs.segments(job.id)
        assert (segment.first, segment.stop, segment.ended, segment.absent) == (1, 299, 100, 198)
        other, _ = await app.bulk_jobs.create(
            {"name": "w", "business": "watched", "source": table.source}, start=True
        )
        await at_rest(app, other)
    assert seen == Counter(ids)
    assert totals == [100] * 100, "rows are counted before the first one starts"


async def test_keys_that_lie_very_far_apart_keep_the_concurrency_busy(app: Fusee, table: Table) -> None:
    seen: Counter[int] = Counter()
    now, most = 0, 0

    @app.bulk("people", concurrency=16)
    async def people(row: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        seen[row["id"]] += 1

    ids = [FAR * n + 7 for n in range(1500)]
    await table.add(ids)
    async with working(app, workers=2):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source, "segments": 1}, start=True
        )
        job = await at_rest(app, job)
    assert (job.status, job.total, job.done) == (BulkStatus.FINISHED, 1500, 1500)
    assert seen == Counter(ids)
    assert most == 16


async def test_what_is_done_beyond_a_stuck_row_is_not_done_again(app: Fusee, table: Table) -> None:
    starts: Counter[int] = Counter()
    free = asyncio.Event()
    app.bulk_server.drain = 0.1

    @app.bulk("people", concurrency=4)
    async def people(row: Any) -> None:
        starts[row["id"]] += 1
        if row["id"] == 5 * FAR:
            await free.wait()

    ids = [FAR * n for n in range(1, 1001)]
    await table.add(ids)
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source, "window": 64}, start=True
        )
        await seen_in(app, job, lambda j: j.ended == 4 + 63)
        await app.bulk_jobs.stop(job.id)
        job = await at_rest(app, job)
        assert (job.status, job.ended) == (BulkStatus.STOPPED, 67)
        await table.take_away(20 * FAR)  # rows come and go beneath what is done
        await table.add([20 * FAR + 1])
        free.set()
        await app.bulk_jobs.resume(job.id)
        job = await at_rest(app, job)
    assert (job.status, job.done, job.total, job.replayed) == (BulkStatus.FINISHED, 1001, 1001, 2)
    assert starts.pop(5 * FAR) == 2
    assert set(starts.values()) == {1}
    assert set(starts) == {*ids, 20 * FAR + 1} - {5 * FAR}


async def test_chunks_are_full_whatever_the_gaps(app: Fusee, table: Table) -> None:
    chunks: list[list[int]] = []

    @app.bulk("people", chunk=10, concurrency=1)
    async def people(rows: list[Any], index: list[int]) -> None:
        assert [row["id"] for row in rows] == list(index)
        chunks.append(list(index))

    await table.add(range(0, 700, 7))
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source}, start=True
        )
        assert (await at_rest(app, job)).done == 100
    assert sorted(key for chunk in chunks for key in chunk) == list(range(0, 700, 7))
    assert {len(chunk) for chunk in chunks} == {10}


async def test_quarantine_rerun_and_undo_go_by_the_key(app: Fusee, table: Table) -> None:
    undone: list[int] = []
    done: list[int] = []
    broken = True

    async def undo(row: Any, index: int) -> None:
        assert row["id"] == index
        undone.append(index)

    @app.bulk("people", undo=undo, item_attempts=1, concurrency=1)
    async def people(row: Any, index: int) -> None:
        if broken and index % 2000 == 0:
            raise ValueError("no such address")
        done.append(index)

    ids = [n * 1000 for n in range(1, 101)]
    await table.add(ids)
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source}, start=True
        )
        job = await at_rest(app, job)
        assert (job.done, job.quarantined, job.total) == (50, 50, 100)
        bad = await app.bulk_jobs.quarantine(job.id)
        assert [(item.index, item.place) for item in bad] == [(n, n) for n in ids if n % 2000 == 0]
        back = await at_rest(app, await app.bulk_jobs.undo(job.id, start=True))
        assert (back.status, back.total, back.done) == (BulkStatus.FINISHED, 50, 50)
        assert undone == [n for n in reversed(ids) if n % 2000]
        broken = False
        again = await at_rest(app, await app.bulk_jobs.rerun_quarantine(job.id, start=True))
        assert (again.status, again.total, again.done) == (BulkStatus.FINISHED, 50, 50)
    assert sorted(done) == ids


async def test_a_key_that_is_not_unique_fails_the_job_and_says_so(app: Fusee, table: Table) -> None:
    @app.bulk("people")
    async def people(row: Any) -> None: ...

    await table.add(range(1, 11))
    query = "SELECT id, name FROM people UNION ALL SELECT id, name FROM people WHERE id = 7"
    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": {**table.source, "query": query}}, start=True
        )
        job = await at_rest(app, job)
    assert job.status is BulkStatus.FAILED
    assert "key id is not unique: 7 is there more than once" in str(job.reason)


async def test_rows_that_take_too_long_to_count_are_not_counted(
    app: Fusee, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {
        "sqlite": "(SELECT count(*) FROM people a, people b, people c, people d) > 0",
        "postgresql": "pg_sleep(0.1 + id * 0) IS NOT NULL",
        "mysql": "SLEEP(0.1 + id * 0) = 0",
    }
    kind = str(table.source["url"]).partition(":")[0].partition("+")[0].replace("mariadb", "mysql")
    await table.add(range(200))
    monkeypatch.setattr("fusee.bulk.sources.sql.COUNT_WITHIN", 0.3)
    query = f"SELECT id, name FROM people WHERE {slow[kind]}"
    source = app.sources.make({**table.source, "query": query})
    async with asyncio.timeout(10):
        assert await source.count(0, 200) == UNKNOWN

    async def not_counted(self: SqlSource, first: int, stop: int) -> int:
        return UNKNOWN

    monkeypatch.setattr(SqlSource, "count", not_counted)
    totals: list[int | None] = []

    @app.bulk("people", concurrency=1)
    async def people(row: Any, job: BulkContext) -> None:
        totals.append(job.total)

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "p", "business": "people", "source": table.source}, start=True
        )
        job = await at_rest(app, job)
    assert totals == [None] * 200
    assert (job.status, job.total, job.done) == (BulkStatus.FINISHED, 200, 200)
