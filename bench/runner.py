"""Fusee inside a process of its own, spoken to by the same protocol as its peers."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers" / "runners"))

import uvloop
from protocol import SETTINGS, OnJob, heard, in_lanes, say, serve
from tables import empty, settle

from fusee import Fusee
from fusee.config import load
from fusee.engine.store.contract import Finished, Order
from fusee.engine.worker.worker import Worker

LEAD = 2_000
"""Runs before and after those that `slices` times."""


def app_on(url: str) -> Fusee:
    return Fusee(config=load(env={}, overrides={"database": {"url": url, "migrate": False}}))


class FuseeProducer:
    def __init__(self, app: Fusee) -> None:
        self.app = app

    async def bulk(self, n: int) -> None:
        async def send(start: int, end: int) -> None:
            await self.app.enqueue_each(
                "noop", [{"sent": nr} for nr in range(start, end)], allow_unknown=True
            )

        await in_lanes(n, SETTINGS["chunk"], SETTINGS["lanes"], send)

    async def one(self, now: Callable[[], int]) -> None:
        await self.app.enqueue("noop", {"sent": now()}, allow_unknown=True)

    async def close(self) -> None:
        await self.app.close()


class FuseeRunner:
    async def prepare(self, url: str) -> None:
        async with app_on(url) as app:
            await app.store.upgrade()

    async def producer(self, url: str) -> FuseeProducer:
        app = app_on(url)
        await app.open()
        return FuseeProducer(app)

    async def work(self, url: str, on_job: OnJob) -> None:
        app = app_on(url)

        @app.handler("noop")
        async def noop(sent: int) -> None:
            on_job(sent)

        async with app:
            await app.worker().run()


async def ceiling(url: str, connections: int, batch: int = 500) -> None:
    """The same statements with no engine around them: what the database allows."""
    app = app_on(url)
    async with app:
        store = app.store
        session = await store.sessions.open_session(app.worker().info, 3600)
        await store.lanes.read_new_lanes()
        lanes = list(store.lane_map.lanes)
        numbers = itertools.count(1)
        drained = 0

        async def loop() -> None:
            nonlocal drained
            finished, used_up = Finished(), []
            while True:
                number = next(numbers)
                answer = await store.claims.exchange(session, finished, Order(batch, lanes, number, used_up))
                if not answer.claimed:
                    return
                drained += len(answer.claimed)
                finished, used_up = Finished(), [number]
                for run in answer.claimed:
                    finished.add(run.id, run.attempt, None)

        started = time.perf_counter()
        await asyncio.gather(*(loop() for _ in range(connections)))
        say(seconds=time.perf_counter() - started, drained=drained)


async def slices(url: str, length: int, size: int, times: int) -> None:
    """Whenever told to go on: drain so many slices of a queue that is as long as that, or what is left of it.

    The worker's start and end are not timed: of a short queue's drain they would be a good part.
    """
    app = app_on(url)
    handled = left = 0
    began = seconds = 0.0
    whole = LEAD + size + LEAD
    worker: Worker

    @app.handler("noop")
    async def noop(sent: int) -> None:
        nonlocal handled, began, seconds
        handled += 1
        if handled == LEAD:
            began = time.perf_counter()
        elif handled == LEAD + size:
            seconds += time.perf_counter() - began
        elif handled == whole:
            worker.stop()

    async with app:
        await app.store.upgrade()
        say(ready=True)
        while await heard():
            seconds = 0.0
            for _ in range(times):
                if left < whole:
                    left = LEAD + length + LEAD
                    await empty(app.store)
                    await FuseeProducer(app).bulk(left)
                    await settle(app.store)
                handled = 0
                worker = app.worker()
                await worker.run()
                left -= handled
            say(seconds=seconds, runs=size * times)


async def memory(url: str, n: int) -> None:
    """Drain n runs and tell the peak memory after a tenth and at the end."""
    app = app_on(url)
    done = 0
    marks: list[int] = []

    @app.handler("noop")
    async def noop(sent: int) -> None:
        nonlocal done
        done += 1
        if done in (n // 10, n):
            marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        while len(marks) < 2:  # noqa: ASYNC110 - asked rarely, so that the worker is not disturbed
            await asyncio.sleep(0.05)
        worker.stop()
        await running
    say(kib_after_a_tenth=marks[0], kib_at_the_end=marks[1])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ceiling", url, connections]:
            uvloop.run(ceiling(url, int(connections)))
        case ["slices", url, *numbers]:
            uvloop.run(slices(url, *map(int, numbers)))
        case ["memory", url, n]:
            uvloop.run(memory(url, int(n)))
        case _:
            serve(FuseeRunner())
