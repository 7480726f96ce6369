"""One process of the platform under test: `python -m tests.chaos.crew worker URL JOURNAL`.

Its handlers write a line when they start and one when they end, each with a single O_APPEND write: what
stands in that file is what happened, whatever the platform says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from fusee import Fusee, RetryPolicy, current_run
from fusee.clock import SystemClock
from fusee.config import load
from fusee.contrib import cdc

__all__ = ["SHELL", "make"]

# As many attempts as there may be kills: what is judged is that nothing is lost, not that it gives up.
STUBBORN = RetryPolicy(max_attempts=1000, backoff="fixed", base=0.01, jitter=0)

SHELL = (
    'echo "$FUSEE_RUN_ID $FUSEE_ATTEMPT $$ start" >> "$0"; echo "$FUSEE_RUN_ID $FUSEE_ATTEMPT $$ end" >> "$0"'
)


class WrongClock(SystemClock):
    """A machine whose clock is off by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.off = round(seconds * 1_000_000)

    def now_us(self) -> int:
        return super().now_us() + self.off


def make(url: str, journal: str, overrides: dict[str, Any] | None = None) -> Fusee:
    given = overrides or {}
    app = Fusee(
        clock=WrongClock(given.get("clock_off_by", 0)),
        config=load(
            env={},
            overrides={
                "database": {"url": url, "migrate": False, **given.get("database", {})},
                "worker": {
                    "heartbeat_interval_seconds": 0.4,
                    "lease_ttl": 1.6,
                    "poll_interval": 0.1,
                    "max_concurrent_tasks": 8,
                    "grace": 1.0,
                    **given.get("worker", {}),
                },
                "dispatcher": {
                    "recover_interval": 0.2,
                    "schedule_interval_seconds": 0.1,
                    **given.get("dispatcher", {}),
                },
                "executors": {"shell": {"enabled": True}},
            },
        ),
    )
    if plane := given.get("cdc"):  # the control plane's URL
        cdc.register(app, cdc.ControlPlaneDriver(plane))
    line = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str) -> None:
        run = current_run()
        os.write(line, f"{run.run_id} {run.attempt} {os.getpid()} {what}\n".encode())

    @app.handler("quick", retry=STUBBORN)
    async def quick() -> None:
        write("start")
        write("end")

    @app.handler("waits", retry=STUBBORN)
    async def waits(ms: float) -> None:
        write("start")
        await asyncio.sleep(ms / 1000)
        write("end")

    @app.handler("thread", retry=STUBBORN)
    def thread(ms: float) -> str:
        write("start")
        time.sleep(ms / 1000)
        write("end")
        return "done"

    @app.handler("freezes", retry=STUBBORN)
    async def freezes() -> int:
        """Its first attempt stops the whole worker, until someone sends SIGCONT."""
        write("start")
        if current_run().attempt == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        write("end")
        return os.getpid()

    return app


async def main(role: str, url: str, journal: str, overrides: str = "{}") -> None:
    app = make(url, journal, json.loads(overrides))
    async with app:
        part: Any = app.worker() if role == "worker" else app.dispatcher()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, part.stop)
        print("ready", flush=True)
        await part.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
