"""Fusee as one more peer, on any of its databases, and the ceiling of each database."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from bench.peers.contract import Peer
from bench.peers.process import running
from bench.peers.runner_peer import PAUSE_MS, _until_handled
from bench.tables import empty, settle
from fusee.stores import Store, open_store

__all__ = ["Engine"]

RUNNER = Path(__file__).with_name("runner.py")
UNFINISHED = "SELECT count(*) FROM fusee_runs WHERE finished_at IS NULL"


@dataclass(frozen=True)
class Engine(Peer):
    """Every figure is taken in processes of their own, timed as the peers are."""

    def install(self) -> None:
        """It is here."""

    def start(self, verb: str, url: str, *rest: object):  # type: ignore[no-untyped-def]
        command = [sys.executable, str(RUNNER), verb, url, *map(str, rest)]
        return running(command, RUNNER.parent, self.settings)

    async def prepare(self, url: str) -> None:
        async with self.start("prepare", url) as runner:
            await runner.finish()

    async def enqueue(self, url: str, n: int) -> float:
        await self._empty(url)
        return await self._fill(url, n)

    async def drain(self, url: str, n: int, processes: int) -> float:
        await self.filled(url, n)
        async with AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(self.start("work", url)) for _ in range(processes)]
            for worker in workers:
                await worker.hear()
            for worker in workers:
                worker.go()
            first = await _until_handled(workers, n)
            store = await stack.enter_async_context(_open(url))
            while await store.database.read(lambda c: c.execute(text(UNFINISHED)).scalar_one()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return (time.monotonic_ns() - first) / 1e9

    async def ceiling(self, url: str, n: int) -> float:
        """Seconds for n runs in batches of 500 without the engine, by one connection or two, the better."""
        best = float("inf")
        for connections in (1, 2):
            await self.filled(url, n)
            async with self.start("ceiling", url, connections) as runner:
                fact = await runner.hear()
                assert fact["drained"] == n, fact
                best = min(best, fact["seconds"])
        return best

    async def memory(self, url: str, n: int) -> dict[str, int]:
        await self.filled(url, n)
        async with self.start("memory", url, n) as runner:
            return await runner.hear()

    async def latency(self, url: str, samples: int) -> list[float]:
        await self._empty(url)
        async with (
            self.start("listen", url) as worker,
            self.start("trickle", url, samples, PAUSE_MS) as producer,
        ):
            await worker.hear()
            await producer.hear()
            await asyncio.sleep(1)
            producer.go()
            return [(await worker.hear())["latency"] / 1e9 for _ in range(samples)]

    async def filled(self, url: str, n: int) -> None:
        await self._empty(url)
        await self._fill(url, n)
        async with _open(url) as store:
            await settle(store)

    async def _fill(self, url: str, n: int) -> float:
        async with self.start("enqueue", url, n) as runner:
            seconds: float = (await runner.hear())["seconds"]
            await runner.finish()
            return seconds

    async def _empty(self, url: str) -> None:
        async with _open(url) as store:
            await empty(store)


class _open:
    """The store behind a URL, open for as long as the block lasts."""

    def __init__(self, url: str) -> None:
        self.store: Store = open_store(url, max_connections=3)

    async def __aenter__(self) -> Store:
        await self.store.database.open()
        return self.store

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()
