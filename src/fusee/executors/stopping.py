"""Stopping work: waits that a cancel does not cut short, and exceptions raised in another thread.

Stopping a child means waiting for its end: leaving early would leave it alive.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

from fusee.engine.worker.results import Stopped

__all__ = ["pause", "raise_stopped", "within"]


async def within(future: asyncio.Future[Any], seconds: float, *, hurried: bool = False) -> bool:
    """Return whether `future` is done within `seconds`.

    Cancelled, it goes on waiting; with `hurried`, it stops waiting at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not future.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({future}, timeout=left)
        except asyncio.CancelledError:
            if hurried:
                break
    return future.done()


async def pause(seconds: float) -> None:
    """Sleep, also when cancelled."""
    await within(asyncio.get_running_loop().create_future(), seconds)


def raise_stopped(thread: int) -> None:
    """Raise `Stopped` in the thread with that identity, which sees it when it next runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Stopped))
