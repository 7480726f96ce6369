"""The demo's application: seven handlers, and settings short enough to watch.

Run as a program, it is the demo's second worker: a process of its own that is there to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

from fusee.app.fusee import Fusee
from fusee.config import Config
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.worker.context import RunContext

__all__ = ["FRAGILE", "LEASE", "demo_app"]

LEASE = 3.0
FRAGILE = "fragile"
"""The queue of the worker that will be killed."""


def demo_app(folder: Path, name: str, queues: tuple[str, ...] = ("*",)) -> Fusee:
    """Reads no file and no variable: a demo is the same everywhere."""
    config = Config.model_validate(
        {
            "namespace": "demo",
            "database": {"url": f"sqlite:///{folder}/demo.db"},
            "dispatcher": {"schedule_interval_seconds": 0.1, "recover_interval": 0.25},
            "worker": {
                "worker_id": name,
                "queues": list(queues),
                "heartbeat_interval_seconds": LEASE / 3,
                "lease_ttl": LEASE,
                "poll_interval": 0.1,
                "drain_timeout": 0.5,
                "grace": 0.5,
            },
        }
    )
    app = Fusee(config=config)

    @app.handler("greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.handler("remind")
    async def remind(text: str) -> str:
        return text

    @app.handler("flaky", retry=RetryPolicy(max_attempts=5, backoff="fixed", base=1.0))
    async def flaky(run: RunContext) -> str:
        await asyncio.sleep(0.5)
        if run.attempt <= 2:
            raise ConnectionError("the service is not there yet")
        return f"attempt {run.attempt} made it"

    @app.handler("export")
    async def export() -> None:
        await asyncio.sleep(3600)

    @app.handler("slow", timeout=1.5, retry=RetryPolicy(max_attempts=1))
    async def slow() -> None:
        await asyncio.sleep(3600)

    @app.handler("encode")
    async def encode(run: RunContext) -> str:
        if run.attempt == 1:
            await asyncio.sleep(3600)  # its worker will not live to see the end
        await asyncio.sleep(1.0)
        return f"encoded by attempt {run.attempt}"

    @app.handler("tick")
    async def tick() -> str:
        await asyncio.sleep(1.4)  # longer than the second until it is due again
        return "tock"

    return app


def _die_with_the_demo() -> None:
    sys.stdin.buffer.read()  # returns when the demo is gone, however it went
    os._exit(0)


async def _work(folder: Path) -> None:
    app = demo_app(folder, "second-worker", (FRAGILE,))
    async with app:
        await app.worker().run()


if __name__ == "__main__":
    threading.Thread(target=_die_with_the_demo, daemon=True).start()
    asyncio.run(_work(Path(sys.argv[1])))
