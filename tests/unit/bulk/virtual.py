"""An event loop with a time of its own, for tests of pacing."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

__all__ = ["VirtualLoop"]


class Jumps(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: moves the time on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumps = Jumps()
        super().__init__(self.jumps)

    def time(self) -> float:
        return self.jumps.now
