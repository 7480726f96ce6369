"""procrastinate: batch_defer_async() in bulk, one worker with many jobs at once, psycopg under uvloop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from procrastinate import App, PsycopgConnector
from protocol import SETTINGS, OnJob, in_lanes, serve
from psycopg import AsyncConnection

# The default level renders two log lines a job; a production worker would not.
logging.getLogger("procrastinate").setLevel(logging.WARNING)


async def one_statement_is_one_transaction(connection: AsyncConnection) -> None:
    """Saves the BEGIN and COMMIT that psycopg sends around each of procrastinate's single statements."""
    await connection.set_autocommit(True)


def make_app(url: str) -> App:
    size = SETTINGS["pool"]
    configure = one_statement_is_one_transaction if SETTINGS["autocommit"] else None
    return App(connector=PsycopgConnector(conninfo=url, min_size=size, max_size=size, configure=configure))


class ProcrastinateProducer:
    def __init__(self, app: App) -> None:
        self.app = app
        self.task = app.configure_task("noop")

    async def bulk(self, n: int) -> None:
        async def send(start: int, end: int) -> None:
            await self.task.batch_defer_async(*({"sent": 0} for _ in range(start, end)))

        await in_lanes(n, SETTINGS["chunk"], SETTINGS["lanes"], send)

    async def one(self, now: Callable[[], int]) -> None:
        await self.task.defer_async(sent=now())

    async def close(self) -> None:
        await self.app.close_async()


class ProcrastinateRunner:
    async def prepare(self, url: str) -> None:
        app = make_app(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def producer(self, url: str) -> ProcrastinateProducer:
        app = make_app(url)
        await app.open_async()
        return ProcrastinateProducer(app)

    async def work(self, url: str, on_job: OnJob) -> None:
        app = make_app(url)

        @app.task(name="noop")
        async def noop(sent: int) -> None:
            on_job(sent)

        async with app.open_async():
            await app.run_worker_async(
                concurrency=SETTINGS["concurrency"],
                delete_jobs=SETTINGS["delete_jobs"],
                install_signal_handlers=False,
            )


if __name__ == "__main__":
    serve(ProcrastinateRunner())
