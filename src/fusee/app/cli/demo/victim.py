"""The demo's second worker, a process of its own: it is there to be killed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

from fusee.app.cli.demo.jobs import FRAGILE, demo_app

__all__: list[str] = []


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
