"""API keys: created and shown once, stored as a digest, looked up by it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fusee.access.principal import EVERYWHERE, Principal, PrincipalKind, Role, grants_from
from fusee.access.store import ApiKey, ApiKeys, NewKey
from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Conflict, Denied, Invalid
from fusee.values.names import check_name

__all__ = ["KeyOperations", "digest"]

KEY_ROLES = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
PREFIX = "fusee_"
SHOWN = len(PREFIX) + 6
"""How many characters of a key are stored and shown: 6 of 43 random ones help nobody to guess the rest."""
LONGEST_LIFE = 10 * 366 * 86_400
OVERLAP = 86_400.0
"""Seconds that a rotated key still works, so that its users can change to the new one."""
LONGEST_OVERLAP = 90 * 86_400


def digest(key: str) -> str:
    """Keys are long and random, so a plain hash cannot be turned back; no slow hash is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class KeyOperations:
    """The API keys of one namespace."""

    def __init__(self, store: ApiKeys, configured: Sequence[str] = ()) -> None:
        self.store = store
        self.configured = {
            entry.rpartition(":")[2]: Role(entry.rpartition(":")[0] or "admin") for entry in configured
        }
        """Digest → role, from the configuration; these keys belong to the namespace of the store."""

    async def create(
        self,
        name: str,
        role: str = "operator",
        *,
        grants: Mapping[str, str] | None = None,
        expires_in: float | None = None,
        by: Principal | None = None,
        idempotency_key: str | None = None,
        first_is_admin: bool = False,
    ) -> tuple[int, str]:
        """Create a key and return (its id, the key). The key cannot be shown again: a repeat under the same
        idempotency key is refused.

        `grants` are roles in other namespaces, or `{"*": "platform"}` for all of them; `by`, when given, must
        be an admin of each. `expires_in` is in seconds. `first_is_admin` refuses to create the first key of
        all with a lesser role, for callers who could manage keys no more after that."""
        try:
            check_name(name, "name")
        except ValueError as error:
            raise Invalid(str(error), field="name") from None
        if role not in KEY_ROLES:
            raise Invalid(f"role must be one of {', '.join(KEY_ROLES)}, not {role!r:.40}", field="role")
        granted = grants_from(grants or {})
        if granted.pop(self.store.context.namespace, role) != role:
            raise Invalid(
                f"the role in namespace {self.store.context.namespace!r} is given as `role`, not as a grant",
                field="grants",
            )
        if by is not None:
            _may_grant(by, granted)
        if expires_in is not None and not 1 <= expires_in <= LONGEST_LIFE:
            raise Invalid(
                f"a key must expire after 1 second to {LONGEST_LIFE} seconds (10 years), not {expires_in:g}",
                field="expires_in",
            )
        if first_is_admin and role != Role.ADMIN and not await self.any():
            raise Conflict(
                "there is no API key yet, and from the first one on every request needs a key: create one"
                ' with the role admin first ({"name": …, "role": "admin"}), then this one with it'
            )
        key, stored = _generate(name, role, granted, expires_in)
        asked: dict[str, Any] = {"name": name, "role": role}
        if granted or expires_in is not None:
            asked |= {"grants": dict(granted), "expires_in": expires_in}
        request = KeyedRequest.of(idempotency_key, "api key", asked)
        return await self.store.add_key(stored, request), key

    async def rotate(
        self, key_id: int, *, overlap: float = OVERLAP, idempotency_key: str | None = None
    ) -> tuple[ApiKey, str]:
        """Replace a key by a new one with the same name, role and grants, and return it with its secret.

        The old key works for `overlap` more seconds, so that its users can change to the new one."""
        if not 0 <= overlap <= LONGEST_OVERLAP:
            raise Invalid(
                f"overlap must be 0 to {LONGEST_OVERLAP} seconds (90 days), not {overlap:g}", field="overlap"
            )
        key, stored = _generate("", "viewer", {}, None)
        asked = {"rotate": key_id, "overlap": overlap}
        request = KeyedRequest.of(idempotency_key, "api key", asked)
        return await self.store.rotate_key(key_id, stored, int(overlap * 1e6), request), key

    async def list(self) -> Sequence[ApiKey]:
        return await self.store.keys()

    async def revoke(self, key_id: int) -> None:
        await self.store.revoke_key(key_id)

    async def any(self) -> bool:
        """Whether there is a key that works."""
        return bool(self.configured) or await self.store.count_keys() > 0

    async def any_ever(self) -> bool:
        """Whether there is a key, or ever was one: after that nobody is let in without a key again."""
        return bool(self.configured) or await self.store.any_key_ever()

    async def principal(self, key: str) -> tuple[Principal, int | None] | None:
        """Who holds that key, and the id of the key if it is stored. It is found by its digest, so the time
        that the comparison takes tells nothing about the key."""
        hashed = digest(key)
        home = self.store.context.namespace
        if (role := self.configured.get(hashed)) is not None:
            return Principal(PrincipalKind.API_KEY, "configured", home, {home: role}), None
        found = await self.store.key_by_digest(hashed)
        if found is None:
            return None
        grants = {namespace: Role(role) for namespace, role in found.grants.items()}
        grants[found.namespace] = Role(found.role)
        return Principal(PrincipalKind.API_KEY, found.name, found.namespace, grants), found.id

    async def was_used(self, key_id: int) -> None:
        await self.store.key_was_used(key_id)


def _generate(
    name: str, role: str, grants: Mapping[str, Role], expires_in: float | None
) -> tuple[str, NewKey]:
    key = PREFIX + secrets.token_urlsafe(32)
    lifetime = None if expires_in is None else int(expires_in * 1e6)
    stored = NewKey(
        name=name, role=role, digest=digest(key), prefix=key[:SHOWN], grants=grants, lifetime=lifetime
    )
    return key, stored


def _may_grant(by: Principal, grants: Mapping[str, Role]) -> None:
    """Nobody gives away more than they have."""
    for namespace in grants:
        needed = Role.PLATFORM if namespace == EVERYWHERE else Role.ADMIN
        held = by.role_in(namespace)
        if held is None or not held.includes(needed):
            where = "every namespace" if namespace == EVERYWHERE else f"namespace {namespace!r}"
            raise Denied(f"only an admin of {where} can grant a role there; {by.name!r} is none", known=True)
