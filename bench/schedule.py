"""`python -m bench.schedule`: what a tick of the scan costs, and how late fires are decided.

A tick decides 100 due tasks out of 1k, 100k and 1M: the sizes take turns within each round, so that a slow
minute of the machine hits all alike, and only their ratio means anything. Lateness is measured with a
dispatcher and a worker running while 1,000 tasks are due every second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, insert, select, text, update

from bench.databases import Databases
from fusee import Fusee
from fusee.config import load
from fusee.stores import Store, open_store
from fusee.tasks.model.task import TaskSpec
from fusee.tasks.store.tables import fires, tasks

SIZES = (1_000, 100_000, 1_000_000)
DUE = 100
TICKS = 5
FAR = 10**15
HOUR = 3_600_000_000

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.schedule", description=__doc__)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres", "mysql"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30, help="how long lateness is measured")
    parser.add_argument("--tasks", type=int, default=1_000, help="tasks due every second")
    parser.add_argument("--only", choices=("tick", "lateness"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


async def ticks(databases: Databases, name: str, rounds: int) -> dict[int, float]:
    """Size → the median cost of a tick, in milliseconds."""
    stores: dict[int, Store] = {}
    for size in SIZES:
        stores[size] = open_store(databases.create(name))
        await stores[size].open()
        await stores[size].upgrade()
        console.log(f"{name}: {size:,} tasks")
        await _fill(stores[size], size)
        await _tick(stores[size])  # plans, caches
    costs: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(rounds):
        for size in (*SIZES[number % 3 :], *SIZES[: number % 3]):
            costs[size] += [await _tick(stores[size]) for _ in range(TICKS)]
    for store in stores.values():
        await store.close()
    return {size: median(found) * 1000 for size, found in costs.items()}


async def _fill(store: Store, size: int) -> None:
    """Tasks that sleep; the first hundred will be woken."""
    now = await store.database.read(store.context.now)

    def work(connection: Connection, begin: int) -> None:
        rows = [
            {
                "namespace": "default",
                "name": f"task-{n}",
                "live_name": f"task-{n}",
                "status": "enabled",
                "version": 1,
                "definition": json.dumps(
                    TaskSpec(name=f"task-{n}", cron="0 * * * *", handler="work").to_dict()
                )
                if n < DUE
                else '{"name": "asleep", "cron": "0 0 0 1 1 *", "handler": "work"}',
                # Each another time, as a million tasks have.
                "next_fire_at": now + FAR + n,
                "anchor": now - 10 * HOUR,
                "failure_skipped": False,
                "created_at": now,
                "updated_at": now,
            }
            for n in range(begin, min(begin + 5000, size))
        ]
        for start in range(0, len(rows), 500):
            connection.execute(insert(tasks), rows[start : start + 500])

    for begin in range(0, size, 5000):
        await store.database.write(lambda connection, begin=begin: work(connection, begin))  # type: ignore[misc]
    if store.database.capabilities.notify:
        await store.database.write(lambda connection: connection.execute(text("ANALYZE fusee_tasks")).close())


async def _tick(store: Store) -> float:
    def wake(connection: Connection) -> None:
        now = store.context.now(connection)
        ids = select(tasks.c.id).where(tasks.c.live_name.in_([f"task-{n}" for n in range(DUE)]))
        found = list(connection.execute(ids).scalars())
        connection.execute(
            update(tasks)
            .where(tasks.c.id.in_(found))
            .values(next_fire_at=now // HOUR * HOUR, last_fire_at=None, last_status=None)
        )
        connection.execute(fires.delete())

    await store.database.write(wake)
    began = time.perf_counter()
    fired = await store.tasks.firing.fire_due()
    seconds = time.perf_counter() - began
    assert fired.tasks == DUE, fired
    return seconds


async def lateness(url: str, count: int, seconds: int) -> dict[str, float]:
    """Milliseconds between the time of a fire and its decision, and its start."""
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))

    @app.handler("work")
    async def work() -> None:
        return None

    async with app:
        for n in range(count):
            await app.tasks.create({"name": f"every-second-{n}", "cron": "* * * * * *", "handler": "work"})
    async with app.running():
        await asyncio.sleep(seconds)
        since = await app.store.database.read(app.store.context.now) - round((seconds - 5) * 1e6)

        def read(connection: Connection) -> list[float]:
            query = select(fires.c.decided_at - fires.c.fire_time).where(fires.c.decided_at > since)
            return [late / 1000 for late in connection.execute(query).scalars()]

        late = await app.store.database.read(read)
    cuts = quantiles(late, n=100)
    return {"fires": len(late), "p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(late)}


def show(answer: dict[str, Any]) -> None:
    if found := {name: one["tick_ms"] for name, one in answer.items() if "tick_ms" in one}:
        table = Table(title=f"A tick that decides {DUE} tasks, milliseconds (medians)")
        for heading in ("", *(f"{size:,} tasks" for size in SIZES), "1M / 1k"):
            table.add_column(heading, justify="right")
        for name, cost in found.items():
            ratio = cost[SIZES[-1]] / cost[SIZES[0]]
            table.add_row(name, *(f"{cost[size]:.1f}" for size in SIZES), f"{ratio:.2f}")
        console.print(table)
    for name, one in answer.items():
        if late := one.get("lateness"):
            console.print(
                f"{name}: {late['fires']:,.0f} fires; decided p50 {late['p50_ms']:.0f} ms,"
                f" p99 {late['p99_ms']:.0f} ms, at most {late['max_ms']:.0f} ms after their time"
            )


async def main() -> None:
    asked = arguments()
    answer: dict[str, Any] = {}
    with Databases.opened(asked.databases) as databases:
        for name in asked.databases:
            answer[name] = {}
            if asked.only != "lateness":
                answer[name]["tick_ms"] = await ticks(databases, name, asked.rounds)
            if asked.only != "tick":
                console.log(f"{name}: lateness with {asked.tasks:,} tasks due every second")
                answer[name]["lateness"] = await lateness(databases.create(name), asked.tasks, asked.seconds)
    show(answer)
    if asked.json:
        asked.json.write_text(json.dumps(answer, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
