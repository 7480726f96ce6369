"""pgqueuer: list-valued enqueue(), a QueueManager with a large batch, asyncpg under uvloop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import asyncpg
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from protocol import SETTINGS, OnJob, in_lanes, serve


async def connect(url: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(url, min_size=SETTINGS["pool"], max_size=SETTINGS["pool"])


class PgqueuerProducer:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.queries = Queries(AsyncpgPoolDriver(pool))

    async def bulk(self, n: int) -> None:
        async def send(start: int, end: int) -> None:
            size = end - start
            payloads: list[bytes | None] = [b"%d" % i for i in range(start, end)]
            await self.queries.enqueue(["noop"] * size, payloads, [0] * size)

        await in_lanes(n, SETTINGS["chunk"], SETTINGS["lanes"], send)

    async def one(self, now: Callable[[], int]) -> None:
        await self.queries.enqueue("noop", b"%d" % now())

    async def close(self) -> None:
        await self.pool.close()


class PgqueuerRunner:
    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    async def producer(self, url: str) -> PgqueuerProducer:
        return PgqueuerProducer(await connect(url))

    async def work(self, url: str, on_job: OnJob) -> None:
        manager = QueueManager(Queries(AsyncpgPoolDriver(await connect(url))))

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            on_job(int(job.payload or 0))

        await manager.run(batch_size=SETTINGS["batch_size"], log_aggregation_interval=timedelta(0))


if __name__ == "__main__":
    serve(PgqueuerRunner())
