"""The engine inside the test's own process: a journal that handlers write, bounded waits."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, update

from fusee import Fusee, current_run
from fusee.config import load
from fusee.engine.model.run import Run
from fusee.engine.store.runs import _run as run_from
from fusee.engine.store.tables import runs, sessions
from fusee.engine.worker.claims import Pace
from fusee.engine.worker.worker import Worker
from fusee.events import Bus, Event
from fusee.runs.handle import RunHandle
from fusee.stores import Store

__all__ = [
    "FixedPace",
    "Journal",
    "Seen",
    "all_ended",
    "lose_lease",
    "make_app",
    "read_runs",
    "until",
    "working",
]

T = TypeVar("T")
E = TypeVar("E", bound=Event)


def part_with(store: Store, name: str) -> Any:
    """The part of the store that has this method; a worker calls it there."""
    (part,) = {id(part): part for part in vars(store).values() if hasattr(type(part), name)}.values()
    return part


def make_app(
    url: str,
    *,
    dispatcher: dict[str, Any] | None = None,
    database: dict[str, Any] | None = None,
    **worker: Any,
) -> Fusee:
    """An app that looks around often; further keywords are settings of the worker.

    Its lease outlives the slowest machine: a test of what happens without one asks for a shorter.
    """
    settings = {
        "heartbeat_interval_seconds": 0.3,
        "lease_ttl": 30.0,
        "poll_interval": 0.05,
        "grace": 0.3,
        "drain_timeout": 10.0,
        **worker,
    }
    return Fusee(
        config=load(
            env={},
            overrides={
                "database": {"url": url, **(database or {})},
                "worker": settings,
                "dispatcher": {
                    "recover_interval": 0.1,
                    "schedule_interval_seconds": 0.05,
                    **(dispatcher or {}),
                },
                "executors": {"shell": {"enabled": True}},
            },
        )
    )


@asynccontextmanager
async def working(app: Fusee, *, dispatcher: bool = True) -> AsyncIterator[Worker]:
    """A worker (and a dispatcher) of this app; a crash of either fails the test."""
    async with app:
        worker = app.worker()
        parts: list[Any] = [worker, app.dispatcher()] if dispatcher else [worker]
        tasks = [asyncio.create_task(part.run()) for part in parts]
        try:
            await until(lambda: worker.started.is_set() or any(task.done() for task in tasks))
            yield worker
        finally:
            for part in parts:
                part.stop()
            done, stuck = await asyncio.wait(tasks, timeout=30)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
        for task in done:
            task.result()
        assert not stuck, "a part of the engine did not stop"


async def until(
    condition: Callable[[], T | Awaitable[T]], seconds: float = 15.0, what: str = "the condition"
) -> T:
    """Ask again and again until the answer is true; a failure after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
        await asyncio.sleep(0.01)


async def lose_lease(app: Fusee, session: int) -> None:
    """The database's clock passes the session's end, while its worker believes that it renews."""
    told = asyncio.Event()

    async def believed(*_: object) -> None:
        told.set()

    app.store.sessions.renew = believed  # type: ignore[method-assign]
    await told.wait()  # so no real renewal is on its way
    passed = update(sessions).where(sessions.c.id == session).values(expires_at=1)
    await app.store.database.write(lambda connection: connection.execute(passed))


async def read_runs(store: Store, ids: Sequence[int]) -> list[Run]:
    """Whole, in this order; many in one query."""

    def work(connection: Connection) -> dict[int, Run]:
        parts = (ids[start : start + 500] for start in range(0, len(ids), 500))
        queries = (store.runs._select().where(runs.c.id.in_(part)) for part in parts)
        return {row.id: run_from(row) for query in queries for row in connection.execute(query)}

    found = await store.database.read(work)
    return [found[run_id] for run_id in ids]


async def all_ended(app: Fusee, handles: Iterable[RunHandle], seconds: float = 30.0) -> list[Run]:
    """All these runs, once every one has ended."""
    ids = [handle.id for handle in handles]

    async def ended() -> bool:
        for start in range(0, len(ids), 500):
            part = ids[start : start + 500]
            if len(await app.store.runs.ended(part)) < len(part):
                return False
        return True

    try:
        await until(ended, seconds)
    except AssertionError:
        left = [run for run in await read_runs(app.store, ids) if not run.ended]
        raise AssertionError(f"{len(left)} runs had not ended after {seconds:g} s: {left[:3]}") from None
    return await read_runs(app.store, ids)


@dataclass(frozen=True)
class Line:
    run: int
    attempt: int
    what: str
    at: float


@dataclass
class Journal:
    """What handlers really did, in their own words; the judge of every test here."""

    lines: list[Line] = field(default_factory=list)

    def write(self, what: str) -> None:
        run = current_run()
        self.lines.append(Line(run.run_id, run.attempt, what, time.monotonic()))

    def start(self) -> None:
        self.write("start")

    def end(self) -> None:
        self.write("end")

    def of(self, run: RunHandle | int, what: str | None = None) -> list[Line]:
        return [line for line in self.lines if line.run == int(run) and what in (None, line.what)]

    def starts(self, run: RunHandle | int | None = None) -> list[Line]:
        return [line for line in self.lines if line.what == "start" and run in (None, line.run)]

    def started(self, run: RunHandle | int) -> bool:
        return bool(self.of(run, "start"))

    @property
    def started_twice(self) -> list[tuple[int, int]]:
        counts = Counter((line.run, line.attempt) for line in self.starts())
        return [pair for pair, count in counts.items() if count > 1]

    def most_at_once(self) -> int:
        """The most handlers that were between start and end at the same moment."""
        now = most = 0
        for line in sorted(self.lines, key=lambda line: (line.at, line.what)):  # an end before a start
            if line.what in ("start", "end"):
                now += 1 if line.what == "start" else -1
                most = max(most, now)
        return most


class Seen:
    """Events of some kinds, in order."""

    def __init__(self, bus: Bus, *kinds: type[Event]) -> None:
        self.events: list[Event] = []
        for kind in kinds:
            bus.subscribe(kind, self.events.append)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


class FixedPace(Pace):
    """Claims so many runs ahead, whatever was measured."""

    def __init__(self, ahead: int) -> None:
        super().__init__(0.0)
        self._fixed = ahead

    @property
    def ahead(self) -> int:
        return self._fixed
