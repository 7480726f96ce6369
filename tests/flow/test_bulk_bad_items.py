"""One bad item does not stop a bulk job: what hangs, what raises, what cannot be stopped."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fusee.bulk.model.job import BulkStatus
from tests.flow.bulk import at_rest, bulk_app, seen_in, working


def _cancelled() -> None:
    raise asyncio.CancelledError


def _exit() -> None:
    sys.exit(3)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _generator_exit() -> None:
    raise GeneratorExit


class Rude(BaseException):
    pass


def _rude() -> None:
    raise Rude("none of your business")


def _stop_iteration() -> None:
    next(iter(()))


RAISES = {
    "CancelledError": _cancelled,
    "SystemExit: 3": _exit,
    "KeyboardInterrupt": _interrupt,
    "GeneratorExit": _generator_exit,
    "Rude: none of your business": _rude,
    "RuntimeError: ": _stop_iteration,
}


@pytest.mark.parametrize("kind", ["async", "sync", "chunk"])
@pytest.mark.parametrize(("error", "bad"), RAISES.items(), ids=[text.split(":")[0] for text in RAISES])
async def test_whatever_an_item_raises_is_its_own_failure(
    tmp_path: Path, error: str, bad: Callable[[], None], kind: str
) -> None:
    app, tries = bulk_app(tmp_path), Counter[int]()
    if kind == "async":

        @app.bulk("shaky", item_backoff=0.001)
        async def shaky(item: int) -> None:
            tries[item] += 1
            if item == 5:
                bad()
            await asyncio.sleep(0)

    elif kind == "sync":

        @app.bulk("shaky", item_backoff=0.001, concurrency=4)
        def shaky_sync(item: int) -> None:
            tries[item] += 1
            if item == 5:
                bad()

    else:

        @app.bulk("shaky", item_backoff=0.001, chunk=4)
        async def shaky_chunk(items: Sequence[int]) -> None:
            tries.update(items)
            if 5 in items:
                bad()

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "s", "business": "shaky", "source": 200}, start=True)
        job = await at_rest(app, job)
        quarantined = await app.bulk_jobs.quarantine(job.id)
    assert (job.status, job.done, job.quarantined) == (BulkStatus.FINISHED, 199, 1)
    assert [(item.index, item.attempts) for item in quarantined] == [(5, 3)]
    assert quarantined[0].error.startswith(error)
    assert tries[5] == 3
    if kind != "chunk":
        assert {tries[item] for item in range(200) if item != 5} == {1}


async def test_an_item_that_hangs_is_cancelled_and_tried_again(tmp_path: Path) -> None:
    app, tries, ended = bulk_app(tmp_path), Counter[int](), list[int]()

    @app.bulk("hangs", item_backoff=0.001, item_timeout=0.2, concurrency=4, item_attempts=2)
    async def hangs(item: int) -> None:
        tries[item] += 1
        if item == 5 or (item == 9 and tries[item] == 1):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(item)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "h", "business": "hangs", "source": 5000}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
    assert (job.status, job.done, job.quarantined) == (BulkStatus.FINISHED, 4999, 1)
    assert [(item.index, item.attempts) for item in bad] == [(5, 2)]
    assert "item_timeout" in bad[0].error and "0.2" in bad[0].error
    assert sorted(ended) == [5, 5, 9] and tries[9] == 2
    assert {tries[item] for item in range(5000) if item not in (5, 9)} == {1}


async def test_a_chunk_that_hangs_loses_only_the_item_at_fault(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)

    @app.bulk("hangs", item_backoff=0.001, item_timeout=0.2, chunk=5, concurrency=2, item_attempts=2)
    async def hangs(items: Sequence[int]) -> None:
        if 7 in items:
            await asyncio.Event().wait()

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "h", "business": "hangs", "source": 40}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
    assert (job.status, job.done) == (BulkStatus.FINISHED, 39)
    assert [(item.index, item.attempts) for item in bad] == [(7, 2)]


async def test_an_item_that_swallows_its_cancellation_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.bulk.execution.watch.GIVE_UP", 0.2)
    app, tries, free = bulk_app(tmp_path), Counter[int](), asyncio.Event()

    @app.bulk("deaf", item_timeout=0.1, concurrency=2, item_backoff=0.001)
    async def deaf(item: int) -> None:
        tries[item] += 1
        while item == 5 and not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                pass

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "d", "business": "deaf", "source": 500}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
        free.set()
    assert (job.status, job.done) == (BulkStatus.FINISHED, 499)
    assert [(item.index, item.attempts) for item in bad] == [(5, 1)]
    assert "still" in bad[0].error and tries[5] == 1


async def test_an_item_that_hangs_in_a_thread_fails_and_the_others_go_on(tmp_path: Path) -> None:
    app, tries, free = bulk_app(tmp_path), Counter[int](), threading.Event()

    @app.bulk("hangs", item_timeout=0.2, concurrency=2, item_backoff=0.001)
    def hangs(item: int) -> None:
        tries[item] += 1
        if item == 5:
            free.wait()

    try:
        async with working(app):
            job, _ = await app.bulk_jobs.create({"name": "h", "business": "hangs", "source": 300}, start=True)
            job = await at_rest(app, job)
            bad = await app.bulk_jobs.quarantine(job.id)
    finally:
        free.set()
    assert (job.status, job.done) == (BulkStatus.FINISHED, 299)
    assert [(item.index, item.attempts) for item in bad] == [(5, 1)]
    assert "thread" in bad[0].error and tries[5] == 1, "it is not started again beside itself"


async def test_a_job_whose_threads_all_hang_fails_and_says_why(tmp_path: Path) -> None:
    app, free = bulk_app(tmp_path), threading.Event()

    @app.bulk("hangs", item_timeout=0.1, concurrency=2)
    def hangs(item: int) -> None:
        free.wait()

    try:
        async with working(app):
            job, _ = await app.bulk_jobs.create({"name": "h", "business": "hangs", "source": 300}, start=True)
            job = await at_rest(app, job)
    finally:
        free.set()
    assert job.status is BulkStatus.FAILED and job.ended == 2
    assert job.reason is not None and "cannot be stopped" in job.reason


@pytest.mark.parametrize("kind", ["thread", "deaf", "chunk"])
async def test_what_still_hangs_is_not_started_again_beside_itself_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("fusee.bulk.execution.watch.GIVE_UP", 0.2)
    app, tries, free, inside = bulk_app(tmp_path), Counter[int](), threading.Event(), list[int]()
    app.bulk_server.drain = 0.2
    most = 0

    def begin(item: int) -> None:
        nonlocal most
        tries[item] += 1
        if item == 5:
            inside.append(item)
            most = max(most, len(inside))

    if kind == "thread":

        @app.bulk("hangs", concurrency=2)
        def hangs(item: int) -> None:
            begin(item)
            if item == 5:
                free.wait()
                inside.remove(item)

    elif kind == "chunk":

        @app.bulk("hangs", concurrency=2, chunk=4)
        def hangs_chunk(items: Sequence[int]) -> None:
            for item in items:
                begin(item)
            if 5 in items:
                free.wait()
                inside.remove(5)

    else:

        @app.bulk("hangs", concurrency=2)
        async def deaf(item: int) -> None:
            begin(item)
            while item == 5 and not free.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass
            if item == 5:
                inside.remove(item)

    try:
        async with working(app):
            fields = {"name": "h", "business": "hangs", "source": 300, "window": 1000}
            job, _ = await app.bulk_jobs.create(fields, start=True)
            await seen_in(app, job, lambda seen: bool(inside))
            await app.bulk_jobs.stop(job.id)
            job = await at_rest(app, job)
            assert job.status is BulkStatus.STOPPED and inside == [5]
            await app.bulk_jobs.resume(job.id)
            await seen_in(app, job, lambda seen: seen.ended >= 100)
            assert inside == [5]
            free.set()
            job = await at_rest(app, job)
    finally:
        free.set()
    assert (job.status, job.done) == (BulkStatus.FINISHED, 300)
    assert most == 1
