"""A runner process, spoken to in JSON lines (the verbs are in `runners/protocol.mjs`)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["Process", "running"]

PATIENCE = 120.0  # seconds without a word before a runner counts as stuck


class Process:
    """One runner: `hear` what it says, `go` when it waits."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child

    async def hear(self) -> dict[str, Any]:
        """The runner's next fact; an early exit is an error carrying what it printed."""
        assert self.child.stdout and self.child.stderr
        line = await asyncio.wait_for(self.child.stdout.readline(), PATIENCE)
        if not line:
            complaint = (await self.child.stderr.read()).decode(errors="replace")
            raise RuntimeError(f"runner ended with {await self.child.wait()}: {complaint[-2000:]}")
        fact: dict[str, Any] = json.loads(line)
        return fact

    def go(self) -> None:
        assert self.child.stdin
        self.child.stdin.write(b"go\n")

    async def finish(self) -> None:
        """Waits for a runner whose verb ends by itself."""
        _, complaint = await asyncio.wait_for(self.child.communicate(), PATIENCE)
        if self.child.returncode:
            raise RuntimeError(f"runner ended with {self.child.returncode}: {complaint.decode()[-2000:]}")


@asynccontextmanager
async def running(command: list[str], cwd: Path, settings: dict[str, Any]) -> AsyncIterator[Process]:
    """Starts a runner and ends it, by closing its stdin first and killing it when that is not enough."""
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, "PEER_SETTINGS": json.dumps(settings)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(child)
    finally:
        if child.returncode is None:
            assert child.stdin
            child.stdin.close()
            try:
                await asyncio.wait_for(child.communicate(), 10)
            except TimeoutError:
                child.kill()
                await child.wait()
