"""Vacuums `fusee_ready` on PostgreSQL, which keeps a deleted row until a vacuum: a claim walks past all the
entries that were claimed before to the first that still waits.

Autovacuum looks once a minute, and in a minute a busy worker leaves millions behind. Towards the end of a
queue of a million runs the server then spent 35 µs on each, where it had begun with 22; swept, it stays
at 19.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import sqrt
from typing import Any

__all__ = ["Sweeper"]

LEAST = 20_000
"""Entries that must have been claimed before the table is vacuumed."""
BALANCE = 50
"""A long queue waits for more than the least, in proportion to the root of its length: a claim takes longer
with the entries that have left, a vacuum with those that wait; at this factor they cost about the same."""

# Truncating would lock everyone out. Someone else's vacuum is as good as ours.
_SWEEP = "VACUUM (SKIP_LOCKED, TRUNCATE OFF, INDEX_CLEANUP ON) fusee_ready"
_STANDING = "SELECT reltuples FROM pg_class WHERE oid = 'fusee_ready'::regclass"


class Sweeper:
    """Vacuums the table, beside the claims, each time that enough entries were claimed here."""

    def __init__(self, acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._acquire = acquire
        self._left = 0
        self._enough = LEAST
        self._sweeping: asyncio.Task[None] | None = None

    def claimed(self, many: int) -> None:
        self._left += many
        if self._left >= self._enough and self._sweeping is None:
            self._left = 0
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="fusee-sweep")

    async def _sweep(self) -> None:
        try:
            async with self._acquire() as connection:
                await connection.execute(_SWEEP)
                standing = await connection.fetchval(_STANDING)
            self._enough = max(LEAST, round(BALANCE * sqrt(max(standing, 0))))
        except Exception:
            # Autovacuum is the floor. It may have taken too long: not so soon again.
            self._enough *= 2
        finally:
            self._sweeping = None

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
