"""A dispatcher with the store, and workers that get their runs from the database or from RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update

from fusee import Fusee, RetryPolicy
from fusee.config import load
from fusee.engine.model.run import Run
from fusee.engine.store.tables import sessions
from fusee.engine.worker.worker import Worker
from tests.chaos.inside import Journal, all_ended, until

__all__ = ["Cluster", "WorkerNode"]

NOWHERE = "sqlite:////proc/no-such-place/fusee.db"
"""The database URL of workers without a database: opening it fails."""


@dataclass
class WorkerNode:
    """A worker that runs, in an app of its own."""

    app: Fusee
    worker: Worker
    task: asyncio.Task[None]

    def kill(self) -> None:
        """End it as a crash does: it drains nothing and does not end its session."""
        self.task.cancel()
        for slot in list(self.worker.pool.slots):
            slot.settled = True  # whatever its handlers still do is not reported
            if slot.task is not None:
                slot.task.cancel()


@dataclass
class Cluster:
    broker: str
    database_url: str
    broker_settings: dict[str, Any]
    journal: Journal = field(default_factory=Journal)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    """Runs of the handler `hang` end when this is set."""

    def __post_init__(self) -> None:
        self.app = self.make_app(self.database_url)

    def make_app(self, url: str, **worker: Any) -> Fusee:
        settings = {
            "heartbeat_interval_seconds": 0.3,
            "lease_ttl": 3.0,
            "poll_interval": 0.05,
            "grace": 0.3,
            "drain_timeout": 5.0,
            **worker,
        }
        app = Fusee(
            config=load(
                env={},
                overrides={
                    "database": {"url": url},
                    "worker": settings,
                    "dispatcher": {"recover_interval": 0.1, "schedule_interval_seconds": 0.05},
                    "broker": {"type": self.broker, **self.broker_settings},
                },
            )
        )
        self.register(app)
        return app

    def register(self, app: Fusee) -> None:
        journal, let_go = self.journal, self.let_go

        @app.handler("work", retry=RetryPolicy(max_attempts=3, base=0.01))
        async def work(value: Any = None, seconds: float = 0.0) -> Any:
            journal.start()
            if seconds:
                await asyncio.sleep(seconds)
            journal.end()
            return value

        @app.handler("flaky", retry=RetryPolicy(max_attempts=3, base=0.01))
        async def flaky(failures: int) -> str:
            journal.start()
            if len(journal.starts()) <= failures:
                raise RuntimeError("no luck")
            return "at last"

        @app.handler("hang", retry=RetryPolicy(max_attempts=3, base=0.01))
        async def hang() -> str:
            journal.start()
            try:
                await let_go.wait()
            finally:
                journal.end()
            return "let go"

    @asynccontextmanager
    async def dispatching(self, dispatchers: int = 1) -> AsyncIterator[Cluster]:
        """Open the store and run one dispatcher, or several."""
        async with self.app:
            running = self.dispatchers = [self.app.dispatcher() for _ in range(dispatchers)]
            tasks = [asyncio.create_task(dispatcher.run()) for dispatcher in running]
            try:
                yield self
            finally:
                for dispatcher in running:
                    dispatcher.stop()
                await asyncio.wait_for(asyncio.gather(*tasks), 20)

    @asynccontextmanager
    async def start_worker(
        self, name: str = "worker", *, prepare: Callable[[Fusee], None] = lambda app: None, **settings: Any
    ) -> AsyncIterator[WorkerNode]:
        """A worker in an app of its own, without a database if the broker is RabbitMQ. Leaving drains it."""
        own = self.broker == "database"
        app = self.make_app(self.database_url if own else NOWHERE, worker_id=name, **settings)
        prepare(app)
        await app.open(store=own)
        worker = app.worker()
        node = WorkerNode(app, worker, asyncio.create_task(worker.run(), name=f"worker {name}"))
        try:
            await until(lambda: worker.started.is_set() or node.task.done(), 20, "the worker's start")
            yield node
        finally:
            worker.stop()
            _, late = await asyncio.wait({node.task}, timeout=20)
            node.task.cancel()
            await asyncio.gather(node.task, return_exceptions=True)
            await app.close()
            assert not late, f"worker {name} did not stop within 20 s"

    async def ended(self, *handles: Any, seconds: float = 30.0) -> list[Run]:
        return await all_ended(self.app, handles, seconds)

    async def lose(self, name: str) -> None:
        """Let the lease of that worker expire, by the database's clock."""
        change = update(sessions).where(sessions.c.worker == name).values(expires_at=0)
        await self.app.store.database.write(lambda connection: connection.execute(change))
