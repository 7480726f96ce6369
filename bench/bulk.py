"""`python -m bench.bulk`: items a second of bulk jobs, beside a bare asyncio loop that does the same.

The bare loop is 32 tasks that take one index (or chunk) after the other and await the handler: no store, no
window, no checkpoint. Both are measured in one process and in turn; figures are medians, and their ratios are
what counts. The handler of items does nothing; that of chunks looks at each of its items once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from fusee import Fusee
from fusee.bulk.model.job import BulkJob
from fusee.config import load

CHUNK = 1000
BILLIONS = 10_000_000_000


def make(url: str) -> Fusee:
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))

    @app.bulk("item")
    async def item(index: int) -> None:
        pass

    @app.bulk("chunk", chunk=CHUNK)
    async def chunk(items: Sequence[int]) -> None:
        for _ in items:
            pass

    @app.bulk("empty", chunk=CHUNK)
    async def empty(items: Sequence[int]) -> None:
        pass

    @app.bulk("slow", concurrency=100)
    async def slow(index: int) -> None:
        await asyncio.sleep(0.01)

    return app


async def bare(function: Callable[..., Awaitable[Any]], items: int, chunk: int | None) -> float:
    """Items a second without any engine."""
    indexes = iter(range(items)) if chunk is None else iter(range(0, items, chunk))

    async def lane() -> None:
        if chunk is None:
            for index in indexes:
                await function(index)
        else:
            for index in indexes:
                await function(range(index, min(items, index + chunk)))

    begin = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(32)))
    return items / (time.perf_counter() - begin)


async def job_of(app: Fusee, business: str, source: range, **fields: Any) -> tuple[BulkJob, float]:
    """A job to its end; (the job, seconds from its start to its end as a caller sees them)."""
    begin = time.perf_counter()
    job, _ = await app.bulk_jobs.create(
        {"name": business, "business": business, "source": source, **fields}, start=True
    )
    while (job := await app.bulk_jobs.get(job.id)).status == "running":  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert (job.status, job.ended) == ("finished", len(source)), job
    return job, time.perf_counter() - begin


async def one_worker(app: Fusee, rounds: int, items: dict[str, int]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for business, many in items.items():
        handler = app.businesses.get(business)
        assert handler is not None
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(await bare(handler.function, many, handler.chunk))
            ours.append(many / (await job_of(app, business, range(many)))[1])
        answer[business] = {
            "bare_per_s": median(theirs),
            "bulk_per_s": median(ours),
            "share": median(mine / other for mine, other in zip(ours, theirs, strict=True)),
        }
    return answer


async def far_away(app: Fusee) -> dict[str, float]:
    """The last million of ten billion, against the first million of one."""
    process = psutil.Process()
    figures: dict[str, float] = {}
    for name, source in {
        "first": range(1_000_000),
        "last": range(BILLIONS - 1_000_000, BILLIONS),
    }.items():
        times = [(await job_of(app, "item", source))[1] for _ in range(5)]
        figures[f"{name}_million_s"] = median(times)
        figures[f"{name}_million_rss_mb"] = process.memory_info().rss / 2**20
    return figures


async def writes(app: Fusee, items: int) -> dict[str, float]:
    """Checkpoints a second, when items are quick and when they are slow."""
    real, count = app.bulk_server.store, [0]

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(real(), name)

        async def checkpoint(self, *given: Any) -> Any:
            count[0] += 1
            return await real().checkpoint(*given)

    counting: Any = Counting()
    app.bulk_server.store = lambda: counting
    figures = {}
    try:
        for business, many in (("item", items), ("slow", 50_000)):
            count[0] = 0
            _, took = await job_of(app, business, range(many), segments=1)
            figures[f"{business}_items_per_s"] = many / took
            figures[f"{business}_checkpoints_per_s"] = count[0] / took
    finally:
        app.bulk_server.store = real
    return figures


async def two_workers(folder: Path, rounds: int, items: dict[str, int]) -> dict[str, float]:
    """Two worker processes; this one only asks."""
    url = f"sqlite:///{folder}/two.db"
    app = make(url)
    async with app.running(worker=False):
        command = [sys.executable, "-m", "bench.bulk", "--work", url]
        workers = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
        try:
            while len(await app.store.sessions.sessions()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return {
                business: median(
                    [many / (await job_of(app, business, range(many)))[1] for _ in range(rounds)]
                )
                for business, many in items.items()
            }
        finally:
            for worker in workers:
                worker.terminate()
                await worker.wait()


async def work(url: str) -> None:
    app = make(url)
    async with app:
        worker = app.worker()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


async def measure(rounds: int, scale: float) -> dict[str, Any]:
    items = {name: int(many * scale) for name, many in (("item", 10_000_000), ("chunk", 100_000_000))}
    items["empty"] = int(4_000_000_000 * scale)
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fusee-bench-") as name:
        folder = Path(name)
        app = make(f"sqlite:///{folder}/one.db")
        async with app.running():
            answer["one worker"] = await one_worker(app, rounds, items)
            answer["far away"] = await far_away(app)
            answer["store writes"] = await writes(app, items["item"])
        del items["empty"]
        answer["two workers"] = await two_workers(folder, rounds, items)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bulk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of items")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        _run(work(asked.work))
        return
    answer = _run(measure(asked.rounds, asked.scale))
    text = json.dumps(answer, indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


def _run(what: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(what)
    return uvloop.run(what)


if __name__ == "__main__":
    main()
