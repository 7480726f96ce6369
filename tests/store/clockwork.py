"""Short ways to say what happens to tasks, for the tests of the store.

Time is told in minutes since the world began, which is on the hour; a run is named by its task and minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select, text, update

from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed, Run
from fusee.engine.store.rows import encode
from fusee.engine.store.tables import metadata, outbox, runs
from fusee.stores import Store
from fusee.tasks.model.fire import Fire
from fusee.tasks.model.policy import Policy
from fusee.tasks.model.task import Task, TaskSpec
from fusee.tasks.store.firing import Fired
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.tables import fires, tasks
from tests.store.harness import START, ProcessClock, World

__all__ = ["MINUTE", "ONCE", "Clockwork", "at", "spec"]

MINUTE = 60_000_000
ONCE = RetryPolicy(max_attempts=1)
"""A failure ends the run."""


def at(minute: float) -> int:
    """The instant so many minutes after the world began."""
    return START + round(minute * MINUTE)


def spec(name: str = "t", **fields: Any) -> TaskSpec:
    """A task that fires every minute unless it says otherwise; policies beside the other fields."""
    policy = {key: fields.pop(key) for key in Policy.__slots__ if key in fields}
    schedule = {"cron", "every", "at", "manual", "after"} & fields.keys()
    if not schedule:
        fields["cron"] = "* * * * *"
    fields.pop("manual", None)
    return TaskSpec(**{"name": name, "handler": "work", "retry": ONCE, **fields}, policy=Policy(**policy))


class Clockwork:
    """Tasks in a world; a dispatcher that decides, and a worker that works, when they are told to."""

    def __init__(self, world: World, session: int) -> None:
        self.world = world
        self.store: Store = world.store
        self.session = session
        self.held: dict[int, Claimed] = {}

    @classmethod
    async def wind(cls, world: World) -> Clockwork:
        return cls(world, await world.session(ttl=10 * 366 * 86400.0))

    @classmethod
    async def in_memory(cls) -> Clockwork:
        """For what is about rules and not about databases; whoever asks for it closes its world."""
        world = World("sqlite://", ProcessClock())
        await (await world.another()).database.write(metadata.create_all)
        return await cls.wind(world)

    async def make(self, name: str = "t", **fields: Any) -> Task:
        return await self.store.tasks.definitions.create_task(spec(name, **fields))

    async def change(self, name: str = "t", **fields: Any) -> Task:
        """Replace it by what is given."""
        return await self.store.tasks.steering.update_task(name, spec(name, **fields), None)

    async def redefine(self, *specs: TaskSpec) -> None:
        """Behind the store's back, many at once: they are what is given from now on; their times stay."""

        def work(connection: Connection) -> None:
            for one in specs:
                text_of = encode(one.to_dict(), "the task")
                mine = update(tasks).where(tasks.c.live_name == one.name)
                connection.execute(mine.values(definition=text_of))

        await self.store.database.write(work)

    # -- time

    async def minute(self) -> float:
        return (await self.world.clock.now() - START) / MINUTE

    async def go_to(self, minute: float) -> None:
        """Let time pass; nobody does anything meanwhile."""
        await self.world.clock.tick((at(minute) - await self.world.clock.now()) / 1_000_000)

    async def fire_at(self, minute: float) -> Fired:
        """At that minute, a dispatcher hears of what has ended and then decides what is due."""
        await self.go_to(minute)
        await self.react()
        fired = await self.store.tasks.firing.fire_due()
        await self.react()
        return fired

    async def react(self, *, store: Store | None = None) -> None:
        """All that follows from what has ended."""
        while await (store or self.store).aggregation.aggregate():
            pass

    # -- runs, by task and minute

    async def claim(self) -> list[str]:
        """The worker takes whatever may start; answers what that was."""
        await self.store.ready_queue.promote()
        mine = await self.world.lane_ids(handler="work")
        claimed = await self.world.claim(self.session, lanes=mine) if mine else []
        self.held |= {run.id: run for run in claimed}
        runs = [await self.store.runs.run(run.id) for run in claimed]
        return [f"{run.task} {_minute(run.fire_time)}" for run in runs]

    async def run_of(self, name: str, minute: float, shard: int = 0) -> Run:
        return await self.store.runs.run((await self.shards_of(name, minute))[shard].run_id)

    async def shards_of(self, name: str, minute: float) -> list[Fire]:
        found = await self.store.tasks.history.fires(
            name, FireFilter(since=at(minute), until=at(minute), limit=1000)
        )
        assert found, f"{name} did not fire at {minute}: {await self.record(name)}"
        return found[::-1]

    async def succeed(self, name: str, minute: float, shard: int = 0) -> None:
        await self.world.finish(self.session, self._take((await self.run_of(name, minute, shard)).id))
        await self.react()

    async def fail(self, name: str, minute: float, shard: int = 0, *, end: End = End.FAILED) -> None:
        run = await self.run_of(name, minute, shard)
        await self.world.settle(self.session, self._take(run.id), end=end, policy=run.retry, error="broken")
        await self.react()

    async def cancel(self, name: str, minute: float, shard: int = 0) -> None:
        """By a person; one that runs stops at once."""
        run = await self.run_of(name, minute, shard)
        await self.store.runs.cancel(run.id, "no more of this")
        if run.id in self.held:
            await self.fail(name, minute, shard, end=End.CANCELED)
        await self.react()

    def _take(self, run_id: int) -> Claimed:
        return self.held.pop(run_id)

    # -- what there is to see

    async def records(self) -> dict[str, list[Any]]:
        """Task → the rows of its fires, each with its run, oldest first."""
        query = (
            select(
                tasks.c.name,
                fires,
                runs.c.status,
                runs.c.attempt,
                runs.c.started_at,
                runs.c.cancel_requested_at.label("asked"),
            )
            .join(tasks, tasks.c.id == fires.c.task_id)
            .outerjoin(runs, runs.c.id == fires.c.run_id)
            .where(tasks.c.live_name.is_not(None))
            .order_by(fires.c.fire_time, fires.c.shard)
        )
        found: dict[str, list[Any]] = {}
        for row in await self.store.database.read(lambda connection: connection.execute(query).all()):
            found.setdefault(row.name, []).append(row)
        return found

    async def record(self, name: str = "t") -> list[str]:
        """Each fire as text, oldest first: `1 run running`, `2 queue blocked (queue)`, `3 skip skipped`."""
        by_time: dict[int, list[Any]] = {}
        for row in (await self.records()).get(name, []):
            by_time.setdefault(row.fire_time, []).append(row)
        shown = []
        for time, shards in by_time.items():
            statuses = " ".join(str(fire.status) for fire in shards)
            held = next((f" ({fire.held})" for fire in shards if fire.held is not None), "")
            shown.append(f"{_minute(time)} {shards[0].decision} {statuses}{held}")
        return shown

    async def rule(self, name: str, minute: float) -> str:
        return (await self.shards_of(name, minute))[0].rule

    async def statuses(self, name: str, *minutes: float) -> list[str]:
        return [str((await self.run_of(name, minute)).status) for minute in minutes]

    async def task(self, name: str = "t") -> Task:
        return await self.store.tasks.definitions.task(name)

    async def notices(self) -> list[str]:
        """What waits for the aggregator."""
        return sorted(row.kind for row in await self.world.rows(outbox))

    async def count(self, table: Any) -> int:
        return len(await self.world.rows(table))

    async def sql(self, statement: str, **values: Any) -> None:
        await self.store.database.write(lambda c: c.execute(text(statement), values).close())


def _minute(us: int | None) -> str:
    assert us is not None
    return f"{(us - START) / MINUTE:g}"


def minutes(times: Iterable[int]) -> list[float]:
    return [(time - START) / MINUTE for time in times]
