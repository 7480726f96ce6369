"""API keys, and what a caller may do."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from fusee.access.store import ApiKey, ApiKeys
from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Conflict, Denied, Invalid
from fusee.values.names import check_name

__all__ = ["ROLES", "Caller", "KeyOperations", "digest"]

ROLES = ("viewer", "operator", "admin")
"""Each may do what those before it may."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may."""

    name: str
    role: str
    namespace: str

    def needs(self, role: str) -> None:
        if ROLES.index(self.role) < ROLES.index(role):
            raise Denied(f"this needs the role {role}; key {self.name!r} has {self.role}", known=True)


def digest(key: str) -> str:
    """Keys are long and random, so a plain hash cannot be turned back; no slow hash is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class KeyOperations:
    """API keys: made here, shown once, stored as a digest."""

    def __init__(self, store: ApiKeys, configured: Sequence[str] = ()) -> None:
        self.store = store
        self.configured = frozenset(configured)
        """Digests from the configuration; each is an admin of the store's namespace."""

    async def create(
        self,
        name: str,
        role: str = "operator",
        *,
        idempotency_key: str | None = None,
        first_is_admin: bool = False,
    ) -> tuple[int, str]:
        """(id, the key). The key cannot be had again: a repeat under the same idempotency key is refused.

        `first_is_admin`: refuse to make the first key of all with a lesser role, for callers who could manage
        keys no more after that."""
        try:
            check_name(name, "name")
        except ValueError as error:
            raise Invalid(str(error), field="name") from None
        if role not in ROLES:
            raise Invalid(f"role must be one of {', '.join(ROLES)}, not {role!r:.40}", field="role")
        if first_is_admin and role != "admin" and not await self.any():
            raise Conflict(
                "there is no API key yet, and from the first one on every request needs a key: create one"
                ' with the role admin first ({"name": …, "role": "admin"}), then this one with it'
            )
        key = "fusee_" + secrets.token_urlsafe(32)
        request = KeyedRequest.of(idempotency_key, "api key", {"name": name, "role": role})
        return await self.store.add_key(name, role, digest(key), request), key

    async def list(self) -> Sequence[ApiKey]:
        return await self.store.keys()

    async def revoke(self, key_id: int) -> None:
        await self.store.revoke_key(key_id)

    async def any(self) -> bool:
        return bool(self.configured) or await self.store.count_keys() > 0

    async def caller(self, key: str) -> Caller | None:
        """Who holds that key; found by digest, so comparing leaks nothing of the key."""
        hashed = digest(key)
        if hashed in self.configured:
            return Caller("configured", "admin", self.store.context.namespace)
        found = await self.store.key_by_digest(hashed)
        return None if found is None else Caller(found.name, found.role, found.namespace)
