"""Bulk jobs from `@app.bulk` to their end, with a real worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fusee import Abandon, Fusee, Retry, Skip
from fusee.bulk.business import BulkContext, ChunkFailed, SelfStart
from fusee.bulk.model.job import BulkStatus
from fusee.errors import Conflict, FuseeError, Invalid, RunFailed
from tests.flow.bulk import at_rest, bulk_app, seen_in, working


async def test_every_item_of_a_range_is_handled_once(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), Counter[int]()

    @app.bulk("count")
    async def count(item: int) -> None:
        seen[item] += 1

    async with working(app):
        job, new = await app.bulk_jobs.create(
            {"name": "count", "business": "count", "source": range(10, 5010)}, start=True
        )
        assert new
        job = await at_rest(app, job)
    assert (job.status, job.done, job.total) == (BulkStatus.FINISHED, 5000, 5000)
    assert set(seen) == set(range(10, 5010))
    assert set(seen.values()) == {1}


async def test_items_of_a_list_with_index_and_job(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), dict[int, Any]()

    @app.bulk("greet")
    async def greet(name: str, index: int, job: BulkContext) -> None:
        await asyncio.sleep(0)
        seen[index] = (name, job.data, job.idempotency_key(index))

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "g", "business": "greet", "source": ["ada", "bob"]}, data={"hello": 1}, start=True
        )
        await at_rest(app, job)
    assert seen == {
        0: ("ada", {"hello": 1}, f"fusee-bulk-{job.id}-0"),
        1: ("bob", {"hello": 1}, f"fusee-bulk-{job.id}-1"),
    }


async def test_a_sync_handler_runs_in_threads(tmp_path: Path) -> None:
    app, seen, names = bulk_app(tmp_path), Counter[int](), set[str]()

    @app.bulk(concurrency=4)
    def slow(item: int) -> None:
        names.add(threading.current_thread().name)
        time.sleep(0.001)
        seen[item] += 1

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "s", "business": "slow", "source": 100}, start=True)
        job = await at_rest(app, job)
    assert job.spec.concurrency == 4
    assert len(seen) == 100
    assert all(name.startswith("fusee-bulk") for name in names)


async def test_chunks_cover_everything_and_are_as_large_as_asked_for(tmp_path: Path) -> None:
    app, seen, sizes = bulk_app(tmp_path), Counter[int](), Counter[int]()

    @app.bulk("chunks", chunk=100)
    async def chunks(items: Sequence[int]) -> None:
        sizes[len(items)] += 1
        seen.update(items)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "c", "business": "chunks", "source": 10_050}, start=True)
        job = await at_rest(app, job)
    assert job.ended == 10_050
    assert set(seen) == set(range(10_050)) and set(seen.values()) == {1}
    assert sizes[100] == 100 and sizes[50] == 1


# --- errors -----------------------------------------------------------------------------------------


async def test_an_item_is_tried_again_in_place_and_then_quarantined(tmp_path: Path) -> None:
    app, tries = bulk_app(tmp_path), Counter[int]()

    @app.bulk("shaky", item_backoff=0.001)
    async def shaky(item: int) -> None:
        tries[item] += 1
        if item == 7 or (item == 3 and tries[item] < 3):
            raise RuntimeError(f"no luck with {item}")
        if item == 8:
            raise Abandon("never")
        if item == 9:
            raise Skip("not needed")
        if item == 10 and tries[item] == 1:
            raise Retry(after=0.002)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "s", "business": "shaky", "source": 20}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
    assert (job.status, job.done, job.quarantined, job.retried) == (BulkStatus.FINISHED, 18, 2, 5)
    assert [(item.index, item.attempts, item.error, item.item) for item in bad] == [
        (7, 3, "RuntimeError: no luck with 7", "7"),
        (8, 1, "Abandon: never", "8"),
    ]
    assert (tries[3], tries[7], tries[8], tries[9], tries[10]) == (3, 3, 1, 1, 2)


@pytest.mark.parametrize("how", ["raised", "returned", "listed"])
async def test_a_chunk_tells_which_of_its_items_failed(tmp_path: Path, how: str) -> None:
    app, tries = bulk_app(tmp_path), Counter[int]()

    @app.bulk("parts", chunk=10, item_backoff=0.001)
    async def parts(items: Sequence[int]) -> Any:
        tries.update(items)
        bad = {nr: ValueError(f"bad {item}") for nr, item in enumerate(items) if item in (4, 15)}
        if how == "listed":
            return [bad.get(nr) for nr in range(len(items))]
        if bad and how == "raised":
            raise ChunkFailed(bad)
        return ChunkFailed(bad) if bad else None

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "p", "business": "parts", "source": 30}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
    assert [(item.index, item.attempts) for item in bad] == [(4, 3), (15, 3)]
    assert bad[0].error == "ValueError: bad 4"
    assert tries == Counter({item: 3 if item in (4, 15) else 1 for item in range(30)})


async def test_a_bad_item_does_not_take_its_chunk_along(tmp_path: Path) -> None:
    app, done = bulk_app(tmp_path), set[int]()

    @app.bulk("whole", chunk=10, item_backoff=0.001)
    async def whole(items: Sequence[int]) -> None:
        if 13 in items:
            raise RuntimeError("something in here is bad")
        done.update(items)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "w", "business": "whole", "source": 30}, start=True)
        job = await at_rest(app, job)
        bad = await app.bulk_jobs.quarantine(job.id)
    assert [item.index for item in bad] == [13]
    assert done == set(range(30)) - {13}


async def test_too_many_errors_fail_the_job_early(tmp_path: Path) -> None:
    app, tried = bulk_app(tmp_path), Counter[int]()

    @app.bulk("bad", item_attempts=1, error_budget=10)
    async def bad(item: int) -> None:
        await asyncio.sleep(0.001)
        tried[item] += 1
        raise RuntimeError("no")

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "b", "business": "bad", "source": 100_000}, start=True)
        job = await at_rest(app, job)
    assert job.status is BulkStatus.FAILED
    assert job.reason is not None and "error budget" in job.reason
    assert 10 < job.quarantined < 5000
    assert len(tried) <= job.quarantined + job.spec.concurrency, "it went on after it was told to stop"


async def test_the_quarantine_is_run_again_as_a_new_job(tmp_path: Path) -> None:
    app, broken, seen = bulk_app(tmp_path), [True], Counter[str]()

    @app.bulk("fix", item_attempts=1)
    async def fix(item: str) -> None:
        if broken[0] and item in ("b", "d"):
            raise RuntimeError("broken")
        seen[item] += 1

    async with working(app):
        job, _ = await app.bulk_jobs.create(
            {"name": "f", "business": "fix", "source": list("abcde")}, start=True
        )
        job = await at_rest(app, job)
        assert [item.index async for item in app.bulk_jobs.quarantined(job.id)] == [1, 3]
        broken[0] = False
        again = await app.bulk_jobs.rerun_quarantine(job.id, start=True)
        again = await at_rest(app, again)
        assert (again.status, again.total, again.done) == (BulkStatus.FINISHED, 2, 2)
        with pytest.raises(Conflict, match="no quarantined items"):
            await app.bulk_jobs.rerun_quarantine(again.id)
    assert seen == Counter("abcde")


# --- stop, resume, live settings --------------------------------------------------------------------


async def test_stop_lets_what_is_under_way_end_and_resume_goes_on_there(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), Counter[int]()

    @app.bulk("calm", concurrency=8)
    async def calm(item: int) -> None:
        await asyncio.sleep(0.002)
        seen[item] += 1

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "c", "business": "calm", "source": 3000}, start=True)
        await seen_in(app, job, lambda j: j.ended > 100)
        asked = time.monotonic()
        await app.bulk_jobs.stop(job.id, reason="lunch")
        stopped = await at_rest(app, job)
        assert time.monotonic() - asked < 2.0
        assert (stopped.status, stopped.reason) == (BulkStatus.STOPPED, "lunch")
        assert stopped.ended == len(seen), "nothing ended that is not on record"
        await asyncio.sleep(0)
        assert len(seen) == stopped.ended
        await app.bulk_jobs.resume(job.id)
        job = await at_rest(app, job)
    assert (job.status, job.ended, job.replayed) == (BulkStatus.FINISHED, 3000, 0)
    assert set(seen.values()) == {1}, "an item was done twice"


async def test_an_item_that_does_not_end_is_cut_off_when_the_job_stops_and_started_again(
    tmp_path: Path,
) -> None:
    app, starts, free = bulk_app(tmp_path), Counter[int](), asyncio.Event()
    app.bulk_server.drain = 0.1

    @app.bulk("stuck", concurrency=2)
    async def stuck(item: int) -> None:
        starts[item] += 1
        if item == 5:
            await free.wait()

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "s", "business": "stuck", "source": 1000}, start=True)
        await seen_in(app, job, lambda j: j.ended >= 8)
        await app.bulk_jobs.stop(job.id)
        job = await at_rest(app, job)
        assert job.status is BulkStatus.STOPPED
        free.set()
        await app.bulk_jobs.resume(job.id)
        job = await at_rest(app, job)
    assert (job.status, job.replayed) == (BulkStatus.FINISHED, 1)
    assert starts[5] == 2
    assert sum(starts.values()) == 1001, "only the item that was cut off was started twice"


async def test_a_stuck_item_keeps_the_others_busy_up_to_the_window(tmp_path: Path) -> None:
    app, done, free = bulk_app(tmp_path), set[int](), asyncio.Event()

    @app.bulk("stuck", concurrency=4, window=64)
    async def stuck(item: int) -> None:
        if item == 0:
            await free.wait()
        await asyncio.sleep(0)
        done.add(item)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "s", "business": "stuck", "source": 1000}, start=True)
        await seen_in(app, job, lambda j: j.ended == 63)
        assert done == set(range(1, 64))
        (segment,) = await app.bulk_jobs.segments(job.id)
        assert (segment.watermark, segment.reached) == (0, 64)
        free.set()
        job = await at_rest(app, job)
    assert job.ended == 1000


async def test_what_lies_behind_a_slow_item_goes_to_others(tmp_path: Path) -> None:
    """Quick items make a lane take many at once; then one of them is slow."""
    app, done, free = bulk_app(tmp_path), set[int](), asyncio.Event()

    @app.bulk("trap", concurrency=4, window=4000)
    async def trap(item: int) -> None:
        if item == 20_000:
            await free.wait()
        done.add(item)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "t", "business": "trap", "source": 100_000}, start=True)
        await seen_in(app, job, lambda j: j.ended == 20_000 + 3999)
        assert done == set(range(24_000)) - {20_000}
        free.set()
        job = await at_rest(app, job)
    assert job.ended == 100_000


async def test_concurrency_is_kept_and_changed_live(tmp_path: Path) -> None:
    app, running, most = bulk_app(tmp_path), [0], [0]

    @app.bulk("busy", concurrency=3)
    async def busy(item: int) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001)
        running[0] -= 1

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "b", "business": "busy", "source": 10**9}, start=True)
        await seen_in(app, job, lambda j: j.ended > 100)
        assert most[0] == 3
        await app.bulk_jobs.adjust(job.id, concurrency=10)
        await seen_in(app, job, lambda _: most[0] >= 10)
        assert most[0] == 10
        await app.bulk_jobs.adjust(job.id, concurrency=2)
        await seen_in(app, job, lambda _: running[0] <= 2)
        await asyncio.sleep(0.2)
        most[0] = 0
        before = (await app.bulk_jobs.get(job.id)).ended
        await seen_in(app, job, lambda j: j.ended > before + 100)
        assert most[0] == 2
        await app.bulk_jobs.stop(job.id)
        await at_rest(app, job)


async def test_the_segments_are_shared_among_workers_and_split_when_one_is_idle(tmp_path: Path) -> None:
    app, seen = bulk_app(tmp_path), Counter[int]()

    @app.bulk("many", concurrency=8, segments=1)
    async def many(item: int) -> None:
        await asyncio.sleep(0.002)
        seen[item] += 1

    async with working(app, workers=3):
        job, _ = await app.bulk_jobs.create({"name": "m", "business": "many", "source": 6_000}, start=True)
        job = await at_rest(app, job, 60)
        segments = await app.bulk_jobs.segments(job.id)
    assert job.status is BulkStatus.FINISHED
    assert len(segments) > 1
    assert [s.first for s in segments[1:]] == [s.stop for s in segments[:-1]]
    assert len(seen) == 6_000 and set(seen.values()) == {1}


# --- the business -----------------------------------------------------------------------------------


async def test_the_callbacks_of_a_business_are_called_in_turn(tmp_path: Path) -> None:
    app, told = bulk_app(tmp_path), list[str]()
    finished = asyncio.Event()

    async def check(job: BulkContext) -> None:
        told.append(f"create {job.data}")
        if job.data is None:
            raise ValueError("a template is missing")

    def prepare(job: BulkContext) -> None:
        told.append("before")

    async def stopped(job: BulkContext) -> None:
        told.append("stop")
        finished.set()

    async def ended() -> None:
        told.append("finish")
        finished.set()

    @app.bulk("mail", rate=100, on_create=check, before_run=prepare, on_stop=stopped, on_finish=ended)
    async def mail(item: int) -> None:
        told.append("item")

    async with working(app):
        with pytest.raises(Invalid, match="refuses the job: a template is missing"):
            await app.bulk_jobs.create({"name": "m", "business": "mail", "source": 5})
        job, _ = await app.bulk_jobs.create(
            {"name": "m", "business": "mail", "source": 1000, "concurrency": 1}, data="t1", start=True
        )
        await seen_in(app, job, lambda j: j.ended > 0)
        await app.bulk_jobs.stop(job.id)
        await at_rest(app, job)
        await asyncio.wait_for(finished.wait(), 10)
        assert [what for what in told if what != "item"] == ["create None", "create t1", "before", "stop"]
        finished.clear()
        await app.bulk_jobs.adjust(job.id, rate="unlimited")
        await app.bulk_jobs.resume(job.id)
        await asyncio.wait_for(finished.wait(), 10)
        assert [what for what in told if what != "item"][4:] == ["before", "finish"]
    assert told.count("item") == 1000


async def served_by(app: Fusee, handler: str) -> None:
    """Wait until a worker has said that it serves this."""
    async with asyncio.timeout(20):
        while handler not in await app.store.sessions.known_handlers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_business_that_only_workers_have_is_asked_before_a_job_is_accepted(tmp_path: Path) -> None:
    """The usual layout: the server has no app, and the business is on a worker."""
    app, server, asked, seen = bulk_app(tmp_path), bulk_app(tmp_path), list[tuple[int, Any]](), list[int]()

    async def check(job: BulkContext) -> None:
        asked.append((job.job_id, job.data))
        if not job.data:
            raise ValueError("it has no template")

    @app.bulk("mail", on_create=check)
    async def mail(item: int) -> None:
        seen.append(item)

    fields = {"name": "m", "business": "mail", "source": 3}
    async with working(app), server:
        await served_by(server, "bulk.mail")
        with pytest.raises(Invalid, match="business 'mail' refuses the job: it has no template"):
            await server.bulk_jobs.create(fields, start=True)
        assert await server.bulk_jobs.list() == [], "what was refused leaves nothing"
        job, new = await server.bulk_jobs.create(fields, data="t1", start=True)
        assert (new, job.checking) == (True, False)
        done = await at_rest(server, job)
    assert done.status is BulkStatus.FINISHED
    assert asked == [(asked[0][0], None), (job.id, "t1")] and asked[0][0] > 0, "it sees the job's number"
    assert sorted(seen) == [0, 1, 2]


async def test_a_business_is_asked_also_when_its_worker_has_gone_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, server = bulk_app(tmp_path), bulk_app(tmp_path)
    monkeypatch.setattr("fusee.bulk.service.jobs.CHECK_WITHIN", 0.0)

    async def check() -> None:
        raise ValueError("never")

    @app.bulk("mail", on_create=check)
    async def mail(item: int) -> None: ...

    async with working(app):
        await served_by(app, "bulk.mail")
    async with server:
        fields = {"name": "m", "business": "mail", "source": 3}
        job, _ = await server.bulk_jobs.create(fields, start=True)
        assert (job.status, job.checking) == (BulkStatus.CREATED, True)
        async with working(app):
            assert (await at_rest(server, job)).reason == "business 'mail' refuses the job: never"


@pytest.mark.parametrize(("budget", "kept"), [("100%", None), ("2%", 0.02), ("0%", 0.0), ("3", 3.0)])
async def test_a_budget_of_all_items_is_no_budget(tmp_path: Path, budget: str, kept: float | None) -> None:
    app = bulk_app(tmp_path)

    @app.bulk("mail")
    async def mail(item: int) -> None: ...

    async with app:
        fields = {"name": "m", "business": "mail", "source": 3}
        job, _ = await app.bulk_jobs.create({**fields, "error_budget": budget})
        assert job.spec.error_budget == kept
        with pytest.raises(Invalid, match="error_budget must be a number or a share such as 2%"):
            await app.bulk_jobs.create({**fields, "error_budget": "200%"})
        with pytest.raises(Invalid, match="error_budget must be a number or a share such as 2%"):
            await app.bulk_jobs.adjust(job.id, error_budget="200%")


async def test_a_job_waits_for_its_business_to_be_asked_and_starts_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, server, go = bulk_app(tmp_path), bulk_app(tmp_path), asyncio.Event()
    monkeypatch.setattr("fusee.bulk.service.jobs.CHECK_WITHIN", 0.0)

    async def check(job: BulkContext) -> None:
        await go.wait()
        if job.data == "bad":
            raise ValueError("not that one")

    @app.bulk("mail", on_create=check)
    async def mail(item: int) -> None: ...

    fields = {"name": "m", "business": "mail", "source": 3}
    async with working(app), server:
        await served_by(server, "bulk.mail")
        good, _ = await server.bulk_jobs.create(fields, data="good", start=True)
        bad, _ = await server.bulk_jobs.create(fields, data="bad", start=True)
        assert [(job.status, job.checking) for job in (good, bad)] == [(BulkStatus.CREATED, True)] * 2
        assert not (await server.bulk_jobs.start(good.id)).changed, "it is to be started already"
        go.set()
        good, bad = await at_rest(server, good), await at_rest(server, bad)
        assert (good.status, good.checking) == (BulkStatus.FINISHED, False)
        assert (bad.status, bad.reason) == (
            BulkStatus.FAILED,
            "business 'mail' refuses the job: not that one",
        )
        with pytest.raises(Conflict, match=r"was refused .*: create another one"):
            await server.bulk_jobs.start(bad.id)


async def test_a_business_that_starts_the_job_itself(tmp_path: Path) -> None:
    app, asked, seen = bulk_app(tmp_path), list[int](), list[int]()

    async def later(job: BulkContext) -> SelfStart:
        asked.append(job.job_id)
        return SelfStart()

    @app.bulk("own", before_run=later)
    async def own(item: int, job: BulkContext) -> None:
        seen.append(job.data)

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "o", "business": "own", "source": 3}, start=True)
        job = await at_rest(app, job)
        assert job.status is BulkStatus.WAITING_BUSINESS
        assert seen == []
        await app.bulk_jobs.set_data(job.id, 17)
        await app.bulk_jobs.log(job.id, "downloaded 3 rows", who="own")
        await app.bulk_jobs.start(job.id, by_business=True)
        job = await seen_in(app, job, lambda j: j.status == "finished")
        logs = await app.bulk_jobs.logs(job.id, kind="data")
    assert asked == [job.id], "it is not asked again when it starts the job itself"
    assert seen == [17, 17, 17]
    assert [(log.who, log.text) for log in logs] == [("own", "downloaded 3 rows")]


async def test_a_business_that_cannot_prepare_itself_stops_the_job(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)

    async def prepare() -> None:
        raise Abandon("the file is not there")

    @app.bulk("own", before_run=prepare)
    async def own(item: int) -> None:
        raise AssertionError("never called")

    async with working(app):
        job, _ = await app.bulk_jobs.create({"name": "o", "business": "own", "source": 3}, start=True)
        job = await at_rest(app, job)
    assert job.status is BulkStatus.STOPPED
    assert job.reason is not None and "the file is not there" in job.reason


# --- started by a run -------------------------------------------------------------------------------


async def test_a_run_starts_a_job_and_waits_for_its_end(tmp_path: Path) -> None:
    """`fusee.bulk` is what a task's trigger runs."""
    app, seen = bulk_app(tmp_path), Counter[int]()

    @app.bulk("count", item_attempts=1, error_budget=0)
    async def count(item: int) -> None:
        seen[item] += 1
        if item == 13:
            raise RuntimeError("unlucky")

    async with working(app):
        run = await app.enqueue("fusee.bulk", {"job": {"name": "c", "business": "count", "source": 10}})
        told = await run.result()
        assert (told["status"], told["ended"], told["quarantined"]) == ("finished", 10, 0)
        bad = await app.enqueue("fusee.bulk", {"job": {"name": "c", "business": "count", "source": 20}})
        with pytest.raises(RunFailed, match="ended failed: error budget"):
            await bad.result()
        unknown = await app.enqueue("fusee.bulk", {"job": {"name": "c", "business": "none", "source": 20}})
        with pytest.raises(RunFailed, match="no worker knows business"):
            await unknown.result()
    assert len(seen) == 20


async def test_a_run_that_is_canceled_stops_the_job_that_it_started(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)

    @app.bulk("calm")
    async def calm(item: int) -> None:
        await asyncio.sleep(0.001)

    async with working(app):
        run = await app.enqueue("fusee.bulk", {"job": {"name": "c", "business": "calm", "source": 10**9}})
        while not (jobs := await app.bulk_jobs.list()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await seen_in(app, jobs[0], lambda j: j.ended > 0)
        await app.runs.cancel(run.id)
        job = await at_rest(app, jobs[0])
    assert job.status is BulkStatus.STOPPED
    assert job.reason is not None and "which started it, ended canceled" in job.reason


# --- what is refused --------------------------------------------------------------------------------


async def test_what_makes_no_sense_is_refused_with_what_to_do(tmp_path: Path) -> None:
    app = bulk_app(tmp_path)

    @app.bulk("mail")
    async def mail(item: int) -> None: ...

    async with app:
        create = app.bulk_jobs.create
        with pytest.raises(Invalid, match="no worker knows business 'male'; known are: mail"):
            await create({"name": "m", "business": "male", "source": 5})
        with pytest.raises(Invalid, match="no source of kind 'tape'; there are"):
            await create({"name": "m", "business": "mail", "source": {"kind": "tape"}})
        with pytest.raises(Invalid, match="a source of kind range has no 'end'"):
            await create({"name": "m", "business": "mail", "source": {"kind": "range", "end": 5}})
        with pytest.raises(Invalid, match="source is missing"):
            await create({"name": "m", "business": "mail"})
        with pytest.raises(Invalid, match="a bulk job has no 'speed'"):
            await create({"name": "m", "business": "mail", "source": 5, "speed": 1})
        with pytest.raises(Invalid, match="give a rate, a concurrency, a window, an item timeout, an error"):
            await app.bulk_jobs.adjust(1)
        with pytest.raises(FuseeError, match="with parentheses"):
            app.bulk(mail)  # type: ignore[arg-type]
        with pytest.raises(FuseeError, match="registered already"):
            app.bulk("mail")(mail)
        with pytest.raises(FuseeError, match="takes no item"):
            app.bulk("none")(lambda: None)


async def test_who_creates_a_job_without_the_code_has_the_defaults_of_its_business(tmp_path: Path) -> None:
    app, elsewhere = bulk_app(tmp_path), bulk_app(tmp_path)

    @app.bulk("count", concurrency=7, item_attempts=2)
    async def count(item: int) -> None:
        pass

    async with working(app), elsewhere:
        while not await elsewhere.store.sessions.sessions():  # noqa: ASYNC110 - until the worker is known
            await asyncio.sleep(0.01)
        fields = {"name": "all", "business": "count", "source": 10, "item_attempts": 4}
        job, _ = await elsewhere.bulk_jobs.create(fields, start=True)
        assert (job.spec.concurrency, job.spec.item_attempts) == (7, 4)
        assert (await at_rest(elsewhere, job)).status == "finished"
