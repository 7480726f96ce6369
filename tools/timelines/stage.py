"""Plays scenes on the real store: a database in memory, a clock that is moved, a worker that pretends.

What is decided, by which rule and when, is the store's own doing. Only how long a run takes, and whether it
fails, comes from the scene.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, text

from fusee.clock import ManualClock
from fusee.engine.model.outcome import End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order, Settlement
from fusee.engine.store.runs import RunFilter
from fusee.engine.store.tables import lanes, metadata
from fusee.executors.http.request import Reach
from fusee.stores import Store, open_store
from fusee.tasks.model.fire import Fire
from fusee.tasks.model.task import Task, TaskStatus
from fusee.tasks.service.explain import Explanation
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.alerts import ALERT_QUEUE
from fusee.tasks.store.history import FireFilter

__all__ = ["Attempt", "Part", "Played", "Scene", "Shown", "Work", "play"]

US = 1_000_000
FOREVER = 10 * 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Work:
    """What an attempt does: for how many seconds, and whether it fails then."""

    seconds: float
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Which attempt of what is asked about; `at` is in seconds from the scene's beginning."""

    task: str
    at: float
    shard: int
    attempt: int


Act = Callable[[TaskOperations, int], Awaitable[object]]
"""Something a person does, given the scene's beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Tasks, what their runs do, and who is there when."""

    name: str
    title: str
    story: str
    """What there is to see, for those who do not see it."""
    tasks: Sequence[Mapping[str, Any]]
    lasts: Callable[[Part], Work]
    until: float
    """Seconds from `begin`."""
    begin: str = "2027-01-04T09:00:00Z"
    first: float = 0
    """Where the axis begins; seconds from `begin`."""
    tick: float = 10
    """Seconds between two labels of the axis."""
    clock: bool = False
    """Label the axis with the time of day instead of seconds."""
    away: tuple[float, float] | None = None
    """While this lasts, no dispatcher is there."""
    acts: Sequence[tuple[float, Act]] = ()
    slots: int = 1000
    """What the worker can run at once."""
    stops_in: float = 2
    """Seconds until a run that was told to stop has stopped."""
    starvation_after: float = 0
    asked: Sequence[tuple[str, float]] = ()
    """(task, seconds) to explain although nothing fired then."""

    @property
    def begin_us(self) -> int:
        return round(datetime.fromisoformat(self.begin).timestamp()) * US


@dataclass(slots=True)
class Attempt:
    number: int
    start: float
    end: float | None = None
    how: str = "running"


@dataclass(frozen=True, slots=True)
class Shown:
    """A fire (of one shard), the attempts at its run, and what `explain` says of it; seconds from the
    beginning."""

    task: str
    at: float
    fire: Fire
    attempts: Sequence[Attempt]
    status: RunStatus
    ended_at: float | None
    reason: str | None
    """Of the run: why it was skipped or canceled after it had been decided to run."""
    told: Explanation


@dataclass(frozen=True, slots=True)
class Played:
    scene: Scene
    shown: Sequence[Shown]
    alerts: Sequence[tuple[float, Mapping[str, Any]]]
    """(when, what was to be posted)."""
    answers: Sequence[tuple[float, Explanation]]
    """Of the times that the scene asked about."""
    paused_at: float | None
    """Since when a task of it has been paused."""


@dataclass(slots=True)
class _Going:
    claimed: Claimed
    attempt: Attempt
    ends: int
    fails: bool
    canceled: bool = False


@dataclass(slots=True)
class _Stage:
    scene: Scene
    store: Store
    clock: ManualClock
    session: int = 0
    going: list[_Going] = field(default_factory=list)
    attempts: dict[int, list[Attempt]] = field(default_factory=dict)
    receipts: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    tasks: list[Task] = field(default_factory=list)
    dispatchers_sleep: list[float | None] = field(default_factory=list)

    @property
    def operations(self) -> TaskOperations:
        return TaskOperations(self.store.tasks, _anything_goes, Reach(()), now_us=self.clock.now_us)

    def seconds(self, us: int) -> float:
        return (us - self.scene.begin_us) / US

    async def set_up(self) -> None:
        info = WorkerInfo(
            name="stage", host="here", pid=1, version="0", capacity=self.scene.slots, executors=("python",),
            handlers=(), queues=("default",), region="", labels={}, policies={},
        )  # fmt: skip
        self.session = await self.store.sessions.open_session(info, FOREVER)
        for fields in self.scene.tasks:
            self.tasks.append(await self.operations.create({"handler": "work", **fields}, allow_unknown=True))

    async def run(self) -> None:
        """From one instant at which something happens to the next."""
        end = self.scene.begin_us + round(self.scene.until * US)
        acts = [(self.scene.begin_us + round(at * US), act) for at, act in self.scene.acts]
        while (now := self.clock.now_us()) <= end:
            await self.end_what_ends(now)
            while acts and acts[0][0] <= now:
                await acts.pop(0)[1](self.operations, self.scene.begin_us)
            while await self.dispatch(now) or await self.work(now):
                pass
            upcoming = [going.ends for going in self.going] + [at for at, _ in acts]
            upcoming += self.dispatchers_next(now)
            if not upcoming or min(upcoming) > end:
                break
            self.clock.tick(seconds=(min(upcoming) - now) / US)

    def is_away(self, now: int) -> bool:
        away = self.scene.away
        return away is not None and away[0] <= self.seconds(now) < away[1]

    async def dispatch(self, now: int) -> bool:
        if self.is_away(now):
            return False
        fired, promoted = await self.store.tasks.firing.fire_due(), await self.store.ready_queue.promote()
        lifted = (
            await self.store.aging.lift(self.scene.starvation_after) if self.scene.starvation_after else 0
        )
        self.dispatchers_sleep = [fired.next_in, promoted.next_in]
        return bool(fired) | bool(promoted) | bool(await self.store.aggregation.aggregate()) | bool(lifted)

    def dispatchers_next(self, now: int) -> list[int]:
        if self.is_away(now):
            assert self.scene.away is not None
            return [self.scene.begin_us + round(self.scene.away[1] * US)]
        # They look for starved runs every second in truth; this is fine enough to be drawn.
        sleeps = [*self.dispatchers_sleep, 10.0 if self.scene.starvation_after else None]
        return [now + round(seconds * US) for seconds in sleeps if seconds is not None]

    async def work(self, now: int) -> bool:
        """Claim what there is room for, and heed cancels."""
        running = [one.claimed.id for one in self.going]
        asked = await self.store.runs.cancel_requests(self.session, running) if running else []
        for one in self.going:
            if not one.canceled and (one.claimed.id, one.claimed.attempt) in asked:
                one.canceled, one.ends = True, min(one.ends, now + round(self.scene.stops_in * US))
        mine = select(lanes.c.id).where(lanes.c.executor == "python").order_by(lanes.c.id)
        served = await self.store.database.read(lambda connection: connection.execute(mine).scalars().all())
        room = self.scene.slots - len(self.going)
        order = Order(room, list(served), next(self.receipts))
        claimed = (await self.store.claims.exchange(self.session, Finished(), order)).claimed if room else []
        for run in claimed:
            self.start(run, now)
        return bool(claimed)

    def start(self, run: Claimed, now: int) -> None:
        options = json.loads(run.options or "{}")
        at = self.seconds(options["fire_time"])
        part = Part(options["task"], at, options.get("shard_index", 0), run.attempt)
        work = self.scene.lasts(part)
        attempt = Attempt(run.attempt, self.seconds(now))
        self.attempts.setdefault(run.id, []).append(attempt)
        self.going.append(_Going(run, attempt, now + round(work.seconds * US), work.fails))

    async def end_what_ends(self, now: int) -> None:
        for one in sorted((one for one in self.going if one.ends <= now), key=lambda one: one.ends):
            self.going.remove(one)
            one.attempt.end = self.seconds(now)
            if not (one.fails or one.canceled):
                one.attempt.how = "succeeded"
                finished = Finished()
                finished.add(one.claimed.id, one.claimed.attempt, None, one.claimed.receipt, one.claimed.kind)
                await self.store.claims.exchange(self.session, finished, Order())
                continue
            end = End.CANCELED if one.canceled else End.FAILED
            one.attempt.how = str(end)
            ended = Ended(end, error="the warehouse is closed")
            verdict = decide(ended, self.policy_of(one.claimed), one.claimed.spent)
            report = Settlement(one.claimed.id, one.claimed.attempt, ended, verdict, one.claimed.receipt)
            await self.store.outcomes.settle(self.session, [report])

    def policy_of(self, run: Claimed) -> RetryPolicy:
        return RetryPolicy.from_dict(json.loads(run.options or "{}").get("retry", {}))

    async def played(self) -> Played:
        shown: list[Shown] = []
        for task in self.tasks:
            for fire in reversed(await self.store.tasks.history.fires(task.id, FireFilter(limit=1000))):
                told = await self.operations.explain(task.id, fire.fire_time)
                run = await self.store.runs.run(fire.run_id)
                ended_at = None if run.finished_at is None else self.seconds(run.finished_at)
                attempts = self.attempts.get(fire.run_id, [])
                at = self.seconds(fire.fire_time)
                shown.append(Shown(task.name, at, fire, attempts, run.status, ended_at, run.reason, told))
        listed = await self.store.runs.runs(RunFilter(queue=ALERT_QUEUE, limit=1000))
        posted = [await self.store.runs.run(run.id) for run in reversed(listed)]
        alerts = [(self.seconds(run.created_at), (run.payload or {})["body"]) for run in posted]
        answers = []
        for name, at in self.scene.asked:
            told = await self.operations.explain(name, self.scene.begin_us + round(at * US))
            answers.append((at, told))
        now = [await self.store.tasks.definitions.task(task.id) for task in self.tasks]
        paused = [self.seconds(task.updated_at) for task in now if task.status is TaskStatus.PAUSED]
        return Played(self.scene, shown, alerts, answers, min(paused, default=None))


async def play(scenes: Iterable[Scene]) -> list[Played]:
    """Each on an empty database with numbers from 1 on, so that no scene changes another."""
    clock = ManualClock()
    first = open_store("sqlite://", clock=clock, max_connections=1)
    await first.open()
    played: list[Played] = []
    try:
        await first.upgrade()
        for scene in scenes:
            await first.database.write(_sweep)
            clock.tick(seconds=(scene.begin_us - clock.now_us()) / US)
            stage = _Stage(scene, Store(first.database), clock)
            await stage.set_up()
            await stage.run()
            played.append(await stage.played())
    finally:
        await first.close()
    return played


def _sweep(connection: Connection) -> None:
    for table in metadata.sorted_tables:
        connection.execute(table.delete())
    connection.execute(text("DELETE FROM sqlite_sequence"))


async def _anything_goes(_: RunSpec) -> None:
    """No worker has to know the handlers of a scene."""
