"""A peer whose work happens in runner processes: what all four have in common."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from .contract import Peer
from .process import Process, running

__all__ = ["RunnerPeer"]

PAUSE_MS = 10  # between two enqueues of a latency measurement; the worker is idle again well before


@dataclass(frozen=True)
class RunnerPeer(Peer):
    """Adds what differs: the command, the tables to empty, and the query that finds unfinished jobs."""

    tables: tuple[str, ...] = ()
    unfinished: str = ""

    @abstractmethod
    def command(self) -> list[str]:
        """The runner's command, without its verb."""

    @abstractmethod
    def folder(self) -> Path:
        """The runner's working directory."""

    def start(self, verb: str, url: str, *rest: object) -> AbstractAsyncContextManager[Process]:
        command = [*self.command(), verb, url, *map(str, rest)]
        return running(command, self.folder(), self.settings)

    async def prepare(self, url: str) -> None:
        async with self.start("prepare", url) as runner:
            await runner.finish()

    async def enqueue(self, url: str, n: int) -> float:
        await self._empty(url)
        return await self._fill(url, n)

    async def drain(self, url: str, n: int, processes: int) -> float:
        await self._empty(url)
        await self._fill(url, n)
        connection = await asyncpg.connect(url)
        try:
            # The planner knows the table, and autovacuum finds nothing to do while the clock runs.
            for table in self.tables:
                await connection.execute(f"VACUUM (ANALYZE) {table}")
            await connection.execute("CHECKPOINT")
            return await self._drain(url, n, processes, connection)
        finally:
            await connection.close()

    async def latency(self, url: str, samples: int) -> list[float]:
        await self._empty(url)
        async with (
            self.start("listen", url) as worker,
            self.start("trickle", url, samples, PAUSE_MS) as producer,
        ):
            await worker.hear()
            await producer.hear()
            await asyncio.sleep(1)  # a worker says ready a moment before it listens
            producer.go()
            return [(await worker.hear())["latency"] / 1e9 for _ in range(samples)]

    async def _fill(self, url: str, n: int) -> float:
        async with self.start("enqueue", url, n) as runner:
            seconds: float = (await runner.hear())["seconds"]
            await runner.finish()
            return seconds

    async def _drain(self, url: str, n: int, processes: int, connection: asyncpg.Connection) -> float:
        async with AsyncExitStack() as stack:
            runners = [await stack.enter_async_context(self.start("work", url)) for _ in range(processes)]
            for runner in runners:
                await runner.hear()
            for runner in runners:
                runner.go()
            first = await _until_handled(runners, n)
            # Handled is not finished: only now is the table asked, so that asking slows nobody down.
            while await connection.fetchval(self.unfinished):  # noqa: ASYNC110 - a table has no event
                await asyncio.sleep(0.002)
            return (time.monotonic_ns() - first) / 1e9

    async def _empty(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(f"TRUNCATE {', '.join(self.tables)} CASCADE")
        await connection.close()


async def _until_handled(runners: list[Process], n: int) -> int:
    """Waits until the runners have started n jobs between them; returns when the first one started."""
    handled = dict.fromkeys(range(len(runners)), 0)
    firsts: list[int] = []
    everything = asyncio.Event()

    async def follow(index: int) -> None:
        while True:
            fact = await runners[index].hear()
            if not handled[index]:
                firsts.append(fact["first"])
            handled[index] = fact["handled"]
            if sum(handled.values()) >= n:
                everything.set()

    followers = [asyncio.ensure_future(follow(index)) for index in handled]
    done = asyncio.ensure_future(everything.wait())
    try:
        finished, _ = await asyncio.wait([done, *followers], return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    finally:
        for task in (done, *followers):
            task.cancel()
    return min(firsts)
