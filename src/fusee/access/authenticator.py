"""Who a request comes from, for every surface: by a key, or by being on this machine.

Principals are remembered for a second, so that not every request asks the database, and an address that
sends many wrong keys is slowed down. REST and gRPC share one authenticator, so they share both.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusee.access.principal import Principal, PrincipalKind, Role
from fusee.access.service import KeyOperations, digest
from fusee.errors import Denied, StoreUnavailable, TooManyTries
from fusee.facts import facts

if TYPE_CHECKING:
    from fusee.access.tokens import TokenVerifier

__all__ = ["Authenticator", "is_forwarding"]

log = logging.getLogger("fusee.access")

FRESH = 1.0
"""Seconds: how long other processes may still take a revoked key, or not yet ask for a first one."""
MOST_KNOWN = 1000
LONGEST_KEY = 200
LONGEST_TOKEN = 8192
USED_EVERY = 60.0
"""Seconds between two notes of a key's last use."""

TRIES = 20.0
"""Wrong keys that one address may send at once; one more every three seconds."""
TRIES_A_SECOND = 1 / 3
MOST_ADDRESSES = 10_000

FORWARDED = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
"""Headers that proxies add, beside all that begin with `x-forwarded-`."""

NO_KEY = "send an API key: `Authorization: Bearer KEY`; `fusee key create NAME` makes one"
WRONG_KEY = "this API key is not valid: it is wrong, it was revoked, or it has expired"


def is_forwarding(header: str) -> bool:
    """Whether a request with this header came through a proxy, so that its address says nothing."""
    return header in FORWARDED or header.startswith("x-forwarded-")


class Authenticator:
    def __init__(
        self,
        keys: KeyOperations,
        namespace: str,
        local: str = "admin",
        tokens: TokenVerifier | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = keys
        self.tokens = tokens
        self.namespace = namespace
        self.local = local
        """The role of callers on this machine before the first key: `admin`, `viewer`, or `off`."""
        self.now = now
        self._known: OrderedDict[str, tuple[Principal, float]] = OrderedDict()
        self._noted: dict[int, float] = {}
        self._closed = False
        self._looked_at = -FRESH
        self._tries: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def forget(self) -> None:
        """Look everything up again, after keys were created or revoked in this process."""
        self._known.clear()
        self._looked_at = -FRESH

    async def open_to_this_machine(self) -> bool:
        """Whether callers on this machine need no key: only while no key has ever existed. Revoking the last
        key does not open the door again."""
        if self.local == "off":
            return False
        if not self._closed and self.now() - self._looked_at >= FRESH:
            self._closed = await self.keys.any_ever()
            self._looked_at = self.now()
        return not self._closed

    def on_this_machine(self) -> Principal:
        """A caller who needs no key."""
        return Principal(PrincipalKind.LOCAL, "local", self.namespace, {self.namespace: Role(self.local)})

    async def by_key(self, key: str, address: str, surface: str) -> Principal:
        """Who sent that key. Raises `Denied`, or `TooManyTries` for an address that guesses."""
        is_token = self.tokens is not None and key.count(".") == 2  # our own keys have no dots
        if not 0 < len(key) <= (LONGEST_TOKEN if is_token else LONGEST_KEY):
            raise self._refused(address, surface)
        hashed = digest(key)
        known = self._known.get(hashed)
        if known is not None and self.now() - known[1] < FRESH:
            return known[0]
        if known is None and self._left(address) < 1:
            # Keys that worked before still do: one bad client behind a proxy locks nobody out.
            raise TooManyTries("too many wrong keys from this address: wait", retry_after=10)
        try:
            principal, key_id = await self._look_up(key, is_token)
        except Denied as error:
            self._known.pop(hashed, None)
            raise self._refused(address, surface, error) from None
        self._known[hashed] = (principal, self.now())
        self._known.move_to_end(hashed)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        if key_id is not None:
            await self._note_use(key_id)
        return principal

    async def _look_up(self, key: str, is_token: bool) -> tuple[Principal, int | None]:
        if is_token:
            assert self.tokens is not None
            return await self.tokens.principal(key), None
        found = await self.keys.principal(key)
        if found is None:
            raise Denied(WRONG_KEY)
        return found

    async def _note_use(self, key_id: int) -> None:
        if self.now() - self._noted.get(key_id, -USED_EVERY) < USED_EVERY:
            return
        if len(self._noted) >= MOST_KNOWN:
            self._noted.clear()
        self._noted[key_id] = self.now()
        try:
            await self.keys.was_used(key_id)
        except StoreUnavailable as error:  # who may look is not refused because a note cannot be written
            log.warning("the use of a key was not noted", extra=facts(key_id=key_id, error=str(error)))

    def _refused(self, address: str, surface: str, why: Denied | None = None) -> Denied:
        self._tries[address] = (max(0.0, self._left(address) - 1), self.now())
        self._tries.move_to_end(address)
        if len(self._tries) > MOST_ADDRESSES:
            self._tries.popitem(last=False)
        why = why or Denied(WRONG_KEY)
        log.warning("refused a caller", extra=facts(address=address, surface=surface, reason=str(why)))
        return why

    def _left(self, address: str) -> float:
        left, at = self._tries.get(address, (TRIES, 0.0))
        return min(TRIES, left + (self.now() - at) * TRIES_A_SECOND)
