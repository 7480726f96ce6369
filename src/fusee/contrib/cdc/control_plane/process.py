"""The control plane as a process of its own, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusee.contrib.cdc.control_plane.journal import Entry, read_journal
from fusee.contrib.cdc.http import Http

__all__ = ["Plane", "plane_running"]


@dataclass
class Plane:
    """What one can ask of it from outside."""

    url: str
    journal: Path
    pid: int
    http: Http = field(init=False)

    def __post_init__(self) -> None:
        self.http = Http(self.url)

    async def job(self, job: str) -> dict[str, Any]:
        return dict(await self.http.call("GET", f"/jobs/{job}"))

    async def change(self, job: str, verb: str, **body: Any) -> dict[str, Any]:
        """As a person would, without telling anyone."""
        return dict(await self.http.call("POST", f"/jobs/{job}/{verb}", body=body))

    async def misbehave(self, *rules: dict[str, Any]) -> None:
        """From now on; without rules, no more."""
        await self.http.call("PUT", "/admin/faults", body=list(rules))

    async def quiet(self) -> None:
        """Wait until no change is under way, also none that nobody waits for."""
        while True:
            if not (await self.http.call("GET", "/admin/pending"))["pending"]:
                return
            await asyncio.sleep(0.05)

    def entries(self) -> list[Entry]:
        return read_journal(self.journal)


@contextlib.asynccontextmanager
async def plane_running(journal: Path, *options: str) -> AsyncIterator[Plane]:
    """Started on a free port; ends with the block, and with this process, however that ends."""
    words: Sequence[str] = ("--port", "0", "--journal", str(journal), "--until-stdin-ends", *options)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fusee.contrib.cdc.control_plane",
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, who then end it
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError("the control plane did not start; what it wrote stands above")
        plane = Plane(url, journal, process.pid)
        try:
            yield plane
        finally:
            await plane.http.close()
    finally:
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
