"""`python -m bench.batch`: creating a batch, what a target costs beside a plain run, and reading progress.

Batches and plain runs take turns within each round, so that a slow minute of the machine hits both alike;
only their ratio means anything. Where the database is embedded, dispatcher and worker share a process;
elsewhere the worker has one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.databases import Databases
from bench.peers.process import Process, running
from tools import servers

SIZES = {"sqlite": 60_000, "postgres": 100_000, "mysql": 30_000}
"""Targets, and plain runs, of one turn."""
LARGE, SMALL = 1_000_000, 1_000
SAMPLES = 300
RUNNER = Path(__file__).with_name("batch_runner.py")
SETTINGS = {"chunk": 5_000, "lanes": 3}
Fresh = Callable[[], AbstractAsyncContextManager[str]]
"""A new database for as long as the block lasts."""

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.batch", description=__doc__)
    parser.add_argument("--databases", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of targets")
    parser.add_argument("--only", choices=("create", "throughput"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


@asynccontextmanager
async def runner(verb: str, url: str, *rest: object) -> AsyncIterator[Process]:
    command = [sys.executable, str(RUNNER), verb, url, *map(str, rest)]
    async with running(command, RUNNER.parent, SETTINGS) as process:
        yield process


async def told(verb: str, url: str, *rest: object) -> dict[str, Any]:
    """What a runner says that ends by itself."""
    async with runner(verb, url, *rest) as process:
        fact = await process.hear()
        await process.finish()
        return fact


async def creation(url: str, scale: float) -> dict[str, Any]:
    """A million targets in: how fast, how much memory; and what it costs to see how they stand."""
    large, small = round(LARGE * scale), round(SMALL * scale)
    few = await told("create", url, small)
    many = await told("create", url, large)
    looks = {
        n: await told("look", url, fact["batch_id"], SAMPLES) for n, fact in ((small, few), (large, many))
    }
    return {
        "targets": large,
        "targets_per_s": large / many["seconds"],
        "kib_early": many["kib_early"],
        "kib_at_the_end": many["kib_at_the_end"],
        "look_ms": {n: median(fact["seconds"]) * 1000 for n, fact in looks.items()},
    }


@dataclass(frozen=True)
class Turn:
    """So many a second; and the microseconds of processor time that each cost: ours, and the server's."""

    rate: float
    ours: float
    servers: float

    @property
    def cost(self) -> float:
        return self.ours + self.servers


async def throughput(fresh: Fresh, n: int, rounds: int, server: servers.Database | None) -> dict[str, Any]:
    """Targets beside plain runs, each on a new database: what a planner has seen before would matter."""
    turns: dict[str, list[Turn]] = {"batch": [], "plain": []}
    for number in range(rounds):
        for kind in ("batch", "plain") if number % 2 else ("plain", "batch"):
            async with fresh() as url:
                await told("prepare", url)
                what = (await told("create", url, n))["batch_id"] if kind == "batch" else n
                turn = await _turn(url, "apply" if kind == "batch" else "plain", what, n, server)
            console.log(f"  {kind}: {turn.rate:,.0f} a second, {turn.ours:.1f} + {turn.servers:.1f} µs each")
            turns[kind].append(turn)
    pairs = list(zip(turns["batch"], turns["plain"], strict=True))
    return {
        **{f"{kind}_per_s": median(turn.rate for turn in found) for kind, found in turns.items()},
        **{f"{kind}_cpu_us": median(turn.cost for turn in found) for kind, found in turns.items()},
        "ratio": median(batch.rate / plain.rate for batch, plain in pairs),
        "cpu_ratio": median(plain.cost / batch.cost for batch, plain in pairs),
        "rounds": {kind: [asdict(turn) for turn in found] for kind, found in turns.items()},
    }


async def _turn(url: str, verb: str, what: int, n: int, server: servers.Database | None) -> Turn:
    async with AsyncExitStack() as stack:
        worker = None
        if server is not None:
            worker = await stack.enter_async_context(runner("work", url))
            await worker.hear()
        before = _cpu_of(server)
        fact = await told(verb, url, what, "alone" if server is None else "beside")
        theirs = _cpu_of(server) - before
        ours = fact["cpu"]
        if worker is not None:
            worker.go()
            ours += (await worker.hear())["cpu"]
    return Turn(n / fact["seconds"], ours / n * 1e6, theirs / n * 1e6)


def _cpu_of(server: servers.Database | None) -> float:
    """Seconds of processor time of the server and of all that it has started, alive or not."""
    total = 0.0
    for pid in server.pids if server is not None else ():
        for process in (leader := psutil.Process(pid), *leader.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        total += leader.cpu_times().children_user + leader.cpu_times().children_system
    return total


async def measure(asked: argparse.Namespace, databases: Databases) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for name in asked.databases:
        found: dict[str, Any] = {}
        if asked.only != "throughput":
            async with databases.fresh(name) as url:
                await told("prepare", url)
                console.log(f"{name}: creating")
                found["create"] = await creation(url, asked.scale)
        if asked.only != "create":
            console.log(f"{name}: throughput")
            found["throughput"] = await throughput(
                partial(databases.fresh, name),
                round(SIZES[name] * asked.scale),
                asked.rounds,
                databases.servers.get(name),
            )
        answer[name] = found
    return answer


def show(answer: dict[str, Any]) -> None:
    table = Table(title="Batches; medians")
    headings = (
        "",
        "created/s",
        "MiB early",
        "MiB at the end",
        "look ms",
        "targets/s",
        "plain runs/s",
        "ratio",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for name, found in answer.items():
        create, through = found.get("create"), found.get("throughput")
        table.add_row(
            name,
            *(
                (
                    f"{create['targets_per_s']:,.0f}",
                    f"{create['kib_early'] / 1024:.0f}",
                    f"{create['kib_at_the_end'] / 1024:.0f}",
                    ", ".join(f"{ms:.2f} at {n:,}" for n, ms in create["look_ms"].items()),
                )
                if create
                else ("", "", "", "")
            ),
            *(
                (
                    f"{through['batch_per_s']:,.0f}",
                    f"{through['plain_per_s']:,.0f}",
                    f"{through['ratio']:.0%}",
                    f"{through['batch_cpu_us']:.1f}",
                    f"{through['plain_cpu_us']:.1f}",
                    f"{through['cpu_ratio']:.0%}",
                )
                if through
                else ("", "", "", "", "", "")
            ),
        )
    console.print(table)


def main() -> None:
    asked = arguments()
    with Databases.opened(asked.databases) as databases:
        answer = asyncio.run(measure(asked, databases))
    show(answer)
    if asked.json:
        asked.json.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
