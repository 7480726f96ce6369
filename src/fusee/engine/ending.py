"""Ending tasks for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ["end"]

AGAIN = 2.0
"""Seconds after which one that has not ended is cancelled again: more than an orderly close takes."""


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended.

    Once is not enough: a cancel that meets an answer is lost in `asyncio.wait_for` before Python 3.12, which
    drivers use, and a loop that was to end goes on.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=AGAIN)
        for task in ended:  # how one ended is nobody's concern any more
            _ = task.cancelled() or task.exception()
