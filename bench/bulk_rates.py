"""`python -m bench.bulk_rates`: how exactly a bulk job keeps its rate, by segments and workers.

Each worker is a process of its own; its handler writes down when items start. Items take 0.2 s, so that no
segment could keep the rate of the whole job alone. A figure is what was started in twenty (or `--seconds`)
seconds, after a while of settling, over what the rate allows; the last column kills one of the workers in the
middle.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.databases import Databases
from fusee import Fusee
from fusee.bulk.model.job import BulkStatus
from fusee.config import load

RATE = 200.0
CONCURRENCY = 64
ITEM = 0.2
SETTLE = 5.0


def make(url: str, journal: Path | None = None, name: str | None = None) -> Fusee:
    worker = {"worker_id": name, "heartbeat_interval_seconds": 1.0, "lease_ttl": 5.0}
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}, "worker": worker}))
    written = journal.open("a", buffering=1) if journal is not None else None

    @app.bulk("paced", concurrency=CONCURRENCY, rate=RATE)
    async def paced(item: int) -> None:
        if written is not None:
            written.write(f"{time.time():.6f}\n")
        await asyncio.sleep(ITEM)

    return app


async def work(url: str, journal: Path, name: str) -> None:
    app = make(url, journal, name)
    async with app:
        worker = app.worker()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def started(url: str, journal: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "bench.bulk_rates", "--work", url, str(journal), journal.name]
    return subprocess.Popen(words)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def measure(
    url: str, folder: Path, segments: int, workers: int, seconds: float, *, kill: bool
) -> float:
    """Started over allowed, within these seconds."""
    journals = [folder / f"{segments}-{workers}-{number}" for number in range(workers)]
    processes = [started(url, journal) for journal in journals]
    try:
        app = make(url)
        async with app.running(worker=False):

            async def all_there() -> bool:
                return len(await app.workers.list()) == workers

            await until(all_there)
            fields = {"name": "r", "business": "paced", "source": 10**6, "segments": segments}
            job, _ = await app.bulk_jobs.create(fields, start=True)

            async def at_work() -> bool:
                return (await app.bulk_jobs.get(job.id)).ended > 0

            await until(at_work)
            await asyncio.sleep(SETTLE)
            begin = time.time()
            if kill:
                await asyncio.sleep(seconds / 2)
                processes[0].kill()
            await asyncio.sleep(begin + seconds - time.time())
            await app.bulk_jobs.stop(job.id)

            async def stopped() -> bool:
                return (await app.bulk_jobs.get(job.id)).status is BulkStatus.STOPPED

            await until(stopped)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
    starts = [float(line) for journal in journals for line in journal.read_text().split()]
    return sum(begin <= at < begin + seconds for at in starts) / (RATE * seconds)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bulk_rates", description=__doc__.split("\n")[0])
    parser.add_argument("--database", default="postgres", choices=("sqlite", "postgres", "mysql"))
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--work", nargs=3, metavar=("URL", "JOURNAL", "NAME"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        await work(asked.work[0], Path(asked.work[1]), asked.work[2])
        return
    print(f"{RATE:g} items a second of {ITEM:g} s each, concurrency {CONCURRENCY}, over {asked.seconds:g} s"
          f" on {asked.database}; load of the machine {os.getloadavg()[0]:.1f}")  # fmt: skip
    killed = max(asked.workers) if max(asked.workers) > 1 else 0
    print("segments" + "".join(f"{f'{w} workers':>12}" for w in asked.workers)
          + (f"{f'{killed}, one lost':>16}" if killed else ""))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Databases.opened([asked.database]) as databases:
        url = databases.create(asked.database)
        for segments in asked.segments:
            row = f"{segments:>8}"
            for workers in asked.workers:
                row += (
                    f"{await measure(url, Path(folder), segments, workers, asked.seconds, kill=False):>12.1%}"
                )
            if killed and segments >= killed:
                lost = await measure(url, Path(folder), segments, killed, asked.seconds, kill=True)
                row += f"{lost:>16.1%}"
            print(f"{row}   load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
