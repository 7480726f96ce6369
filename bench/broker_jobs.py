"""The application whose runs `bench/broker.py` times."""

from __future__ import annotations

import time

from fusee import Fusee

app = Fusee()


@app.handler("noop")
async def noop(n: int = 0) -> None:
    return None


@app.handler("stamp")
async def stamp() -> int:
    """When it started, by the clock that all processes of this machine share."""
    return time.time_ns()
