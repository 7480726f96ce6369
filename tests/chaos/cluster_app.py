"""What the processes of the cluster know: `fusee worker --app tests.chaos.cluster_app:app`.

Handlers write what they do with single O_APPEND writes: `run attempt pid what`. That file is what happened,
whatever the platform says. An item of the bulk job is a line of no run.
"""

from __future__ import annotations

import asyncio
import os

from fusee import Fusee, RetryPolicy, current_run
from fusee.contrib import cdc
from tests.chaos.cluster import BAD_ITEM

__all__ = ["app"]

STUBBORN = RetryPolicy(max_attempts=1000, backoff="fixed", base=0.01, jitter=0)

app = Fusee()
cdc.register(app, cdc.ControlPlaneDriver(os.environ["CLUSTER_PLANE"]))
journal = os.open(os.environ["CLUSTER_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _write(run: int, attempt: int, what: str) -> None:
    os.write(journal, f"{run} {attempt} {os.getpid()} {what}\n".encode())


@app.handler("note", retry=STUBBORN)
async def note(ms: float = 0) -> None:
    run = current_run()
    _write(run.run_id, run.attempt, "start")
    ended = "stop"
    try:
        await asyncio.sleep(ms / 1000)
        ended = "end"
    finally:
        _write(run.run_id, run.attempt, ended)


@app.bulk("items", item_attempts=1)
async def items(item: int) -> None:
    _write(0, item, "began")
    if item % 7 == 0:
        await asyncio.sleep(0.002)
    if item % BAD_ITEM == 0:
        raise RuntimeError("bad item")
    _write(0, item, "done")
