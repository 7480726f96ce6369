"""A batch inside processes of their own: who works, who creates, who applies; spoken to in JSON lines."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers" / "runners"))

import uvloop
from protocol import SETTINGS, in_lanes, say
from sqlalchemy import text

from fusee import Fusee
from fusee.batches.model.batch import BatchPhase
from fusee.batches.operation import Target
from fusee.config import load

WAITING = "SELECT count(*) FROM (SELECT 1 FROM fusee_ready LIMIT 1) AS head"
UNFINISHED = "SELECT count(*) FROM fusee_runs WHERE finished_at IS NULL"


class Nothing:
    """An operation that has nothing to do, and says that it did it."""

    async def finished(self, target: Target) -> bool:
        return False

    async def apply(self, target: Target) -> None: ...

    async def undo(self, target: Target) -> None: ...


def app_on(url: str) -> Fusee:
    app = Fusee(config=load(env={}, overrides={"database": {"url": url, "migrate": False}}))
    app.operation("nothing", "noop")(Nothing)

    @app.handler("noop")
    async def noop(**_: Any) -> None: ...

    return app


def _targets(n: int) -> Iterator[dict[str, Any]]:
    for nr in range(n):
        yield {"target_id": str(nr), "before": {"cpu": 1}, "after": {"cpu": 2}}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def prepare(url: str) -> None:
    async with app_on(url) as app:
        await app.store.upgrade()
    say(ready=True)


async def create(url: str, n: int) -> None:
    """Upload n targets as they are made; the peak of memory after a hundredth and at the end."""
    async with app_on(url) as app:
        fields = {"batch_name": "bench", "batch_type": "noop", "target_type": "nothing", "concurrency": 0}
        await app.batches.create(fields, _targets(max(1, n // 100)))
        early, started = _peak(), time.perf_counter()
        batch, _ = await app.batches.create(fields, _targets(n))
        seconds = time.perf_counter() - started
        say(batch_id=batch.id, seconds=seconds, kib_early=early, kib_at_the_end=_peak())


async def look(url: str, batch_id: int, samples: int) -> None:
    """How long a read of the progress takes, in seconds."""
    async with app_on(url) as app:
        await app.batches.get(batch_id)
        found = []
        for _ in range(samples):
            started = time.perf_counter()
            await app.batches.get(batch_id)
            found.append(time.perf_counter() - started)
        say(seconds=found)


@asynccontextmanager
async def _platform(app: Fusee, *, worker: bool) -> AsyncIterator[None]:
    """A dispatcher; and a worker, where the database is embedded and everything lives in one process."""
    async with app.running(worker=worker):
        yield


async def apply(url: str, batch_id: int, alone: bool) -> None:
    """From the word to the end of the last target."""
    app = app_on(url)
    async with _platform(app, worker=alone):
        await asyncio.sleep(0.5)
        before, started = time.process_time(), time.perf_counter()
        await app.batches.apply(batch_id)
        while (await app.batches.get(batch_id)).phase is not BatchPhase.DONE:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        say(seconds=time.perf_counter() - started, cpu=time.process_time() - before)


async def plain(url: str, n: int, alone: bool) -> None:
    """The same number of runs that are nobody's: from the first that is accepted to the end of the last."""
    app = app_on(url)
    payloads = [
        {"batch_id": 1, "position": nr, "target_id": str(nr), "before": {"cpu": 1}, "after": {"cpu": 2}}
        for nr in range(n)
    ]
    async with _platform(app, worker=alone):
        await asyncio.sleep(0.5)

        async def send(start: int, end: int) -> None:
            await app.enqueue_each("noop", payloads[start:end])

        async def ask(query: str) -> int:
            return int(await app.store.database.read(lambda c: c.execute(text(query)).scalar_one()))

        before, started = time.process_time(), time.perf_counter()
        await in_lanes(n, SETTINGS["chunk"], SETTINGS["lanes"], send)
        # Counted when the line is empty: the whole table is read for it.
        while (await ask(WAITING)) or (await ask(UNFINISHED)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        say(seconds=time.perf_counter() - started, cpu=time.process_time() - before)


async def work(url: str) -> None:
    app = app_on(url)
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        before = time.process_time()
        say(ready=True)
        await asyncio.to_thread(sys.stdin.readline)
        say(cpu=time.process_time() - before)
        worker.stop()
        await working


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prepare", url]:
            uvloop.run(prepare(url))
        case ["create", url, n]:
            uvloop.run(create(url, int(n)))
        case ["look", url, batch_id, samples]:
            uvloop.run(look(url, int(batch_id), int(samples)))
        case ["apply", url, batch_id, alone]:
            uvloop.run(apply(url, int(batch_id), alone == "alone"))
        case ["plain", url, n, alone]:
            uvloop.run(plain(url, int(n), alone == "alone"))
        case ["work", url]:
            uvloop.run(work(url))
        case other:
            raise SystemExit(f"unknown: {other}")
