"""API keys in the database, each by the digest of its secret: the secret is shown once and never stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    String,
    Table,
    Text,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from fusee.access.principal import Role
from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.tables import NUMBERED, Id, metadata
from fusee.errors import Conflict, NotFound
from fusee.values.kinds import TIME

__all__ = ["ApiKey", "ApiKeys", "NewKey"]

api_keys = Table(
    "fusee_api_keys",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),  # in the key's own namespace
    Column("digest", String(64), nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("prefix", String(24)),  # how the secret begins, so that people recognize it
    Column("grants", Text),  # JSON: {namespace: role} beside the key's own namespace
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("held_name", String(128)),  # the name, while no other key may have it
    CheckConstraint("role IN ('admin', 'operator', 'viewer')", name="fusee_api_keys_role"),
    Index("fusee_api_keys_held_name", "namespace", "held_name", unique=True),
    **NUMBERED,
)

USED_EVERY = 60_000_000
"""Microseconds: the time of the last use is written at most so often for each key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as people see it."""

    id: int
    namespace: str
    name: str
    role: str
    prefix: Annotated[str | None, "How the key begins."]
    grants: Annotated[Mapping[str, str], "Roles in other namespaces."]
    created_at: Annotated[int, TIME]
    expires_at: Annotated[int | None, TIME]
    last_used_at: Annotated[int | None, TIME]
    revoked_at: Annotated[int | None, TIME]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to store."""

    name: str
    role: str
    digest: str
    prefix: str
    grants: Mapping[str, Role]
    lifetime: int | None = None
    """Microseconds until it expires; None: it does not."""


class ApiKeys:
    """The keys of one namespace, and looking a key up in all of them."""

    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def add_key(self, key: NewKey, request: KeyedRequest | None = None) -> int:
        """Store a key and return its id. Under an idempotency key that was used before: `Conflict`, since
        the secret is not stored."""

        def work(connection: Connection) -> int:
            self._refuse_repeat(connection, request)
            now = self.context.now(connection)
            self._free_name(connection, key.name, now)
            key_id = self._insert(connection, key, now)
            remember(connection, self.context.namespace, request, key_id, now)
            return key_id

        return await write_once(self.context.database, work, request)

    async def rotate_key(
        self, key_id: int, secret: NewKey, overlap: int, request: KeyedRequest | None = None
    ) -> ApiKey:
        """Replace a key by one with the same name and grants. The old one expires after the overlap."""

        def work(connection: Connection) -> ApiKey:
            self._refuse_repeat(connection, request)
            now = self.context.now(connection)
            old = connection.execute(
                select(api_keys).where(*self._mine(key_id), *_valid(now)).with_for_update()
            ).one_or_none()
            if old is None:
                raise self._missing(key_id)
            ends = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
            connection.execute(
                update(api_keys).where(api_keys.c.id == key_id).values(held_name=None, expires_at=ends)
            )
            grants = {namespace: Role(role) for namespace, role in _grants(old).items()}
            lifetime = None if old.expires_at is None else old.expires_at - old.created_at
            same = NewKey(
                name=old.name,
                role=old.role,
                digest=secret.digest,
                prefix=secret.prefix,
                grants=grants,
                lifetime=lifetime,
            )
            self._free_name(connection, old.name, now)
            new = self._insert(connection, same, now)
            remember(connection, self.context.namespace, request, new, now)
            return _key(connection.execute(select(api_keys).where(api_keys.c.id == new)).one())

        return await write_once(self.context.database, work, request)

    async def key_by_digest(self, digest: str) -> ApiKey | None:
        """The valid key with that digest, in whatever namespace it belongs to."""

        def look(connection: Connection) -> Any:
            query = select(api_keys).where(api_keys.c.digest == digest, *_valid(self.context.now(connection)))
            return connection.execute(query).one_or_none()

        row = await self.context.database.read(look)
        return None if row is None else _key(row)

    async def key_was_used(self, key_id: int) -> None:
        """Note the time, unless it was noted less than a minute ago."""

        def work(connection: Connection) -> None:
            now = self.context.now(connection)
            long_ago = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < now - USED_EVERY)
            connection.execute(
                update(api_keys).where(api_keys.c.id == key_id, long_ago).values(last_used_at=now)
            )

        await self.context.database.write(work)

    async def keys(self) -> list[ApiKey]:
        query = select(api_keys).where(api_keys.c.namespace == self.context.namespace).order_by(api_keys.c.id)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [_key(row) for row in rows]

    async def count_keys(self) -> int:
        """Valid keys of all namespaces: whether anyone could log in at all."""

        def count(connection: Connection) -> int:
            query = select(func.count()).select_from(api_keys).where(*_valid(self.context.now(connection)))
            return int(connection.execute(query).scalar_one())

        return await self.context.database.read(count)

    async def any_key_ever(self) -> bool:
        """Whether a key has ever been created in any namespace, also one that is revoked or has expired."""
        query = select(literal(1)).select_from(api_keys).limit(1)
        return await self.context.database.read(lambda c: c.execute(query).one_or_none()) is not None

    async def revoke_key(self, key_id: int) -> None:
        change = (
            update(api_keys)
            .where(*self._mine(key_id), api_keys.c.revoked_at.is_(None))
            .values(revoked_at=self.context.database.now, held_name=None)
        )
        if await self.context.database.write(lambda connection: connection.execute(change).rowcount) == 0:
            raise self._missing(key_id)

    def _refuse_repeat(self, connection: Connection, request: KeyedRequest | None) -> None:
        if (made := made_before(connection, self.context.namespace, request)) is not None:
            raise Conflict(
                f"API key {made} was made under this idempotency key, and its secret was shown then:"
                " revoke it if nobody has the secret, and create another under a new idempotency key"
            )

    def _insert(self, connection: Connection, key: NewKey, now: int) -> int:
        values = {
            "namespace": self.context.namespace,
            "name": key.name,
            "role": key.role,
            "digest": key.digest,
            "created_at": now,
            "prefix": key.prefix,
            "grants": json.dumps(dict(key.grants)) if key.grants else None,
            "expires_at": None if key.lifetime is None else now + key.lifetime,
            "held_name": key.name,
        }
        try:
            with connection.begin_nested():
                added = connection.execute(insert(api_keys).values(values)).inserted_primary_key
        except IntegrityError:
            taken = select(api_keys.c.id).where(
                api_keys.c.namespace == self.context.namespace, api_keys.c.held_name == key.name
            )
            other = connection.execute(taken).scalar_one_or_none()
            if other is None:
                raise
            raise Conflict(
                f"API key {other} has the name {key.name!r}: choose another name, rotate that key with"
                f" `fusee key rotate {other}`, or revoke it first"
            ) from None
        assert added is not None
        return int(added[0])

    def _free_name(self, connection: Connection, name: str, now: int) -> None:
        """A key that has expired keeps its name from nobody."""
        over = api_keys.c.expires_at <= now
        mine = (api_keys.c.namespace == self.context.namespace, api_keys.c.held_name == name)
        connection.execute(update(api_keys).where(*mine, over).values(held_name=None))

    def _mine(self, key_id: int) -> tuple[Any, ...]:
        return (api_keys.c.namespace == self.context.namespace, api_keys.c.id == key_id)

    def _missing(self, key_id: int) -> NotFound:
        return NotFound(f"no valid key {key_id} in namespace {self.context.namespace!r}")


def _valid(now: int) -> tuple[Any, ...]:
    return (
        api_keys.c.revoked_at.is_(None),
        or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now),
    )


def _grants(row: Any) -> dict[str, str]:
    return {} if row.grants is None else dict(json.loads(row.grants))


def _key(row: Any) -> ApiKey:
    return ApiKey(
        id=row.id,
        namespace=row.namespace,
        name=row.name,
        role=row.role,
        prefix=row.prefix,
        grants=_grants(row),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
