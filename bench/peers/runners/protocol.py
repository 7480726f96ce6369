"""What every Python runner shares; the verbs and facts are those of `protocol.mjs`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import uvloop

SETTINGS: dict[str, Any] = json.loads(os.environ.get("PEER_SETTINGS", "{}"))
OnJob = Callable[[int], None]  # given the payload's clock, 0 when it has none


class Producer(Protocol):
    """Enqueues: many at once, or one whose payload is the clock read just before the call."""

    async def bulk(self, n: int) -> None: ...
    async def one(self, now: Callable[[], int]) -> None: ...
    async def close(self) -> None: ...


class Runner(Protocol):
    """One peer, inside its own process."""

    async def prepare(self, url: str) -> None: ...
    async def producer(self, url: str) -> Producer: ...
    async def work(self, url: str, on_job: OnJob) -> None: ...


def say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


class Tally:
    """Counts handled jobs; reports at most every 10 ms, so that reporting costs the peer nothing."""

    def __init__(self) -> None:
        self.handled = 0
        self.first = 0

    def __call__(self, sent: int) -> None:
        if not self.handled:
            self.first = time.monotonic_ns()
        self.handled += 1

    async def report(self) -> None:
        reported = 0
        while True:
            await asyncio.sleep(0.01)
            if self.handled != reported:
                reported = self.handled
                say(handled=reported, first=self.first)


async def in_lanes(n: int, chunk: int, lanes: int, send: Callable[[int, int], Awaitable[Any]]) -> None:
    """Splits n jobs into chunks and keeps `lanes` chunks in flight."""
    starts = iter(range(0, n, chunk))

    async def lane() -> None:
        for start in starts:
            await send(start, min(n, start + chunk))

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def heard() -> str:
    """The next line that we are told; nothing when there will be none."""
    return await asyncio.to_thread(sys.stdin.readline)


async def _until_closed(working: asyncio.Task[None]) -> None:
    """Returns when stdin closes; raises when the worker dies first."""
    closed = asyncio.ensure_future(heard())
    await asyncio.wait({working, closed}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()


async def _work(runner: Runner, url: str) -> None:
    tally = Tally()
    say(ready=True)
    await heard()
    reporting = asyncio.create_task(tally.report())
    working = asyncio.create_task(runner.work(url, tally))
    await _until_closed(working)
    reporting.cancel()


async def _listen(runner: Runner, url: str) -> None:
    working = asyncio.create_task(runner.work(url, lambda sent: say(latency=time.monotonic_ns() - sent)))
    say(ready=True)
    await _until_closed(working)


async def _enqueue(runner: Runner, url: str, n: int) -> None:
    producer = await runner.producer(url)
    started = time.perf_counter()
    await producer.bulk(n)
    say(seconds=time.perf_counter() - started)
    await producer.close()


async def _trickle(runner: Runner, url: str, n: int, pause: float) -> None:
    producer = await runner.producer(url)
    say(ready=True)
    await heard()
    for _ in range(n):
        await producer.one(time.monotonic_ns)
        await asyncio.sleep(pause)
    await producer.close()


async def _serve(runner: Runner, verb: str, url: str, *rest: str, leave: bool) -> None:
    match verb:
        case "prepare":
            await runner.prepare(url)
        case "enqueue":
            await _enqueue(runner, url, int(rest[0]))
        case "work":
            await _work(runner, url)
        case "listen":
            await _listen(runner, url)
        case "trickle":
            await _trickle(runner, url, int(rest[0]), float(rest[1]) / 1000)
        case _:
            raise SystemExit(f"unknown verb {verb!r}")
    if leave:
        sys.stdout.flush()
        os._exit(0)


def serve(runner: Runner) -> None:
    """Serves one verb. A worker then leaves at once: its graceful shutdown is not what is measured."""
    verb = sys.argv[1]
    uvloop.run(_serve(runner, *sys.argv[1:], leave=verb in ("work", "listen")))
