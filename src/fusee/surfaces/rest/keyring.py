"""Who holds which key, remembered for a second so that not every request asks the database."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from fusee.access.service import Caller, KeyOperations, digest
from fusee.surfaces.rest.problems import Problem

__all__ = ["Keyring"]

FRESH = 1.0
"""Seconds: how long other processes may still take a revoked key, or not yet ask for a first one."""
MOST_KNOWN = 1000
LONGEST_KEY = 200

TRIES = 20.0
"""Wrong keys that one address may send at once; one more every three seconds."""
TRIES_A_SECOND = 1 / 3
MOST_ADDRESSES = 10_000


class Keyring:
    def __init__(self, keys: KeyOperations, now: Callable[[], float] = time.monotonic) -> None:
        self.keys = keys
        self.now = now
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._any: tuple[bool, float] = (False, -FRESH)
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def forget(self) -> None:
        """Keys were made or revoked here: ask again."""
        self._known.clear()
        self._any = (False, -FRESH)

    async def any(self) -> bool:
        """Whether there is any valid key."""
        found, at = self._any
        if self.now() - at >= FRESH:
            found = await self.keys.any()
            self._any = (found, self.now())
        return found

    async def caller(self, key: str, address: str) -> Caller | None:
        """Who sent that key; found by its digest, so the time it takes tells nothing about the key."""
        if not 0 < len(key) <= LONGEST_KEY:
            self._failed(address)
            return None
        hashed = digest(key)
        known = self._known.get(hashed)
        if known is not None and self.now() - known[1] < FRESH:
            return known[0]
        if known is None and self._left(address) < 1:
            # Keys that worked before still do: one bad client behind a proxy locks nobody out.
            raise Problem(429, "too many wrong keys from this address: wait", headers={"Retry-After": "10"})
        caller = await self.keys.caller(key)
        if caller is None:
            self._known.pop(hashed, None)
            self._failed(address)
            return None
        self._known[hashed] = (caller, self.now())
        self._known.move_to_end(hashed)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return caller

    def _left(self, address: str) -> float:
        left, at = self._tries.get(address, (TRIES, 0.0))
        return min(TRIES, left + (self.now() - at) * TRIES_A_SECOND)

    def _failed(self, address: str) -> None:
        self._tries[address] = (max(0.0, self._left(address) - 1), self.now())
        self._tries.move_to_end(address)
        if len(self._tries) > MOST_ADDRESSES:
            self._tries.popitem(last=False)
