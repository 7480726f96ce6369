"""Waiting that does not end because the one who waits is cancelled.

Whoever stops a child must see it end: leaving early would leave it alive.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["pause", "within"]


async def within(future: asyncio.Future[Any], seconds: float, *, hurried: bool = False) -> bool:
    """Whether `future` is done within `seconds`.

    Cancelled, it goes on waiting; with `hurried`, it stops waiting at once and answers as things stand.
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
    """Sleep, whatever happens."""
    await within(asyncio.get_running_loop().create_future(), seconds)
