"""One process that works on a bulk job: `python -m tests.chaos.bulk_crew worker URL FOLDER`.

Its handler writes eight bytes when an item starts and eight when it has ended, each with a single O_APPEND
write into files of this process; checkpoints leave a mark among the starts when they are made, and one when
they are written. What stands there is what happened, whatever the platform says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from fusee import Fusee
from fusee.config import load

__all__ = ["BAD", "KILLER", "MARK", "WRITTEN", "make"]

BAD = 10_007
"""Every so manieth item fails."""
PAUSE = 0.002
KILLER = 500
"""The item of `deadly` that ends its process."""
MARK = 2**63
WRITTEN = 2**32


def make(url: str, folder: str, overrides: dict[str, Any] | None = None) -> Fusee:
    given = overrides or {}
    app = Fusee(
        config=load(
            env={},
            overrides={
                "database": {"url": url, "migrate": False, **given.get("database", {})},
                "worker": {
                    "heartbeat_interval_seconds": 0.5,
                    "lease_ttl": 3.0,
                    "poll_interval": 0.1,
                    "max_concurrent_tasks": 4,
                    "grace": 1.0,
                },
                "dispatcher": {"recover_interval": 0.2, "schedule_interval_seconds": 0.1},
            },
        )
    )
    pack = struct.Struct("<Q").pack
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    files: list[int] = []

    def opened() -> tuple[int, int]:
        if not files:
            for what in ("starts", "ends"):
                files.append(os.open(Path(folder) / f"{os.getpid()}.{what}", append, 0o644))
        return files[0], files[1]

    @app.bulk("journal", item_attempts=1)
    async def journal(item: int) -> None:
        starts, ends = opened()
        os.write(starts, pack(item))
        if item % 5 == 0:  # some suspend, most do not
            await asyncio.sleep(PAUSE)
        if item % BAD == 0:
            raise RuntimeError("bad item")
        os.write(ends, pack(item))

    @app.bulk("deadly")
    async def deadly(item: int) -> None:
        await asyncio.sleep(PAUSE)
        if item == KILLER:
            os._exit(9)

    real = app.bulk_server.store

    class Marking:
        """The store, with a mark for each checkpoint that was written."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real(), name)

        async def checkpoint(self, *given: Any) -> Any:
            os.write(opened()[0], pack(MARK + int(given[3])))
            answer = await real().checkpoint(*given)
            os.write(opened()[0], pack(MARK + WRITTEN + int(given[3])))
            return answer

    marking: Any = Marking()
    app.bulk_server.store = lambda: marking
    return app


async def main(role: str, url: str, folder: str, overrides: str = "{}") -> None:
    app = make(url, folder, json.loads(overrides))
    async with app:
        part: Any = app.worker() if role == "worker" else app.dispatcher()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, part.stop)
        print("ready", flush=True)
        await part.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
