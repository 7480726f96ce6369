"""`python -m bench.broker`: drain and latency through RabbitMQ beside the database broker; 1, 2, 4 workers.

Real processes, one dispatcher for each broker; all in one run and interleaved, so that a slow minute of the
machine hits both alike. Figures are medians, and only their ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from bench.databases import Databases
from fusee import Fusee
from fusee.config import load
from tools import servers

ROOT = Path(__file__).resolve().parent.parent
BROKERS = ("database", "rabbitmq")
PAUSE = 0.02
UNFINISHED = "SELECT count(*) FROM fusee_runs WHERE finished_at IS NULL"

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--database", default="postgres", choices=("sqlite", "postgres", "mysql"))
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


@contextmanager
def program(env: dict[str, str], *words: str) -> Iterator[None]:
    """A process of the platform, until it is not needed any more."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", "from fusee.app.cli import main; main()", *words, "--quiet"],
            env={**os.environ, "PYTHONPATH": path, "FUSEE_LOGGING__LEVEL": "error", **env},
            cwd=folder,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@asynccontextmanager
async def platform(broker: str, url: str, rabbitmq: str, workers: int) -> AsyncIterator[Fusee]:
    """A dispatcher and so many workers; fed by messages, they are not told of the database."""
    env = {"FUSEE_BROKER__TYPE": broker, "FUSEE_BROKER__URL": rabbitmq}
    env["FUSEE_BROKER__PREFIX"] = f"bench-{secrets.token_hex(4)}"
    database = {"FUSEE_DATABASE__URL": url}
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        stack.enter_context(program(env | database, "dispatcher"))
        for _ in range(workers):
            own = env | database if broker == "database" else env
            words = ("worker", "--app", "bench.broker_jobs:app")
            stack.enter_context(program(own, *words))
        while len(await app.workers.list()) < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        # The first run makes the lanes and the queues: not what is measured.
        for handler in ("noop", "stamp"):
            await (await app.enqueue(handler, allow_unknown=True)).wait(60)
        yield app


async def drain(app: Fusee, n: int) -> float:
    """Runs a second, from the first one that is accepted to the last one that has ended."""
    began = time.monotonic()
    await app.enqueue_each("noop", [{"n": i} for i in range(n)], allow_unknown=True)
    while await app.store.database.read(lambda c: c.execute(text(UNFINISHED)).scalar_one()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return n / (time.monotonic() - began)


async def latency(app: Fusee, samples: int) -> list[float]:
    """Milliseconds from before the enqueue to the handler's first line, one run at a time."""
    found = []
    for _ in range(samples):
        asked = time.time_ns()
        handle = await app.enqueue("stamp", allow_unknown=True)
        found.append((await handle.result(30) - asked) / 1e6)
        await asyncio.sleep(PAUSE)
    return found


async def measure(asked: argparse.Namespace, databases: Databases, rabbitmq: str) -> dict[str, Any]:
    drained: dict[tuple[str, int], list[float]] = defaultdict(list)
    waited: dict[str, list[float]] = defaultdict(list)
    for nr in range(asked.rounds):
        for workers in asked.workers:
            for broker in BROKERS:
                console.print(f"[dim]round {nr + 1}: {broker}, {workers} workers[/dim]")
                url = databases.create(asked.database)
                async with platform(broker, url, rabbitmq, workers) as app:
                    drained[broker, workers].append(await drain(app, asked.runs))
                    if workers == 1:
                        waited[broker] += await latency(app, asked.samples)
    return {
        "drain": {f"{b}, {w}": round(median(rates)) for (b, w), rates in drained.items()},
        "latency": {
            broker: {"p50": round(median(ms), 2), "p99": round(quantiles(ms, n=100)[98], 2)}
            for broker, ms in waited.items()
        },
    }


def show(asked: argparse.Namespace, figures: dict[str, Any]) -> None:
    table = Table(title=f"{asked.database}: {asked.runs} runs, medians of {asked.rounds}")
    table.add_column("broker")
    for workers in asked.workers:
        table.add_column(f"{workers} workers, runs/s", justify="right")
    table.add_column("latency p50 (p99), ms", justify="right")
    for broker in BROKERS:
        rates = [f"{figures['drain'][f'{broker}, {workers}']:,}" for workers in asked.workers]
        wait = figures["latency"].get(broker)
        table.add_row(broker, *rates, "" if wait is None else f"{wait['p50']} ({wait['p99']})")
    console.print(table)


async def main() -> None:
    asked = arguments()
    with Databases.opened([asked.database]) as databases, servers.rabbitmq() as rabbitmq:
        figures = await measure(asked, databases, rabbitmq.url)
    show(asked, figures)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
