"""API keys, by the digest of each: the key itself is shown once and never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import Connection, func, insert, select, update

from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.tables import api_keys
from fusee.errors import Conflict, NotFound
from fusee.values.kinds import TIME

__all__ = ["ApiKey", "ApiKeys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as people see it."""

    id: int
    namespace: str
    name: str
    role: str
    created_at: Annotated[int, TIME]
    revoked_at: Annotated[int | None, TIME]


class ApiKeys:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def add_key(self, name: str, role: str, digest: str, request: KeyedRequest | None = None) -> int:
        """Its number. Under a key that was used before: `Conflict`, since the secret is not stored."""

        def work(connection: Connection) -> int:
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                raise Conflict(
                    f"API key {made} was made under this idempotency key, and its secret was shown then:"
                    " revoke it if nobody has the secret, and create another under a new idempotency key"
                )
            now = self.context.now(connection)
            added = connection.execute(
                insert(api_keys).values(
                    namespace=self.context.namespace,
                    name=name,
                    role=role,
                    digest=digest,
                    created_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            remember(connection, self.context.namespace, request, key[0], now)
            return int(key[0])

        return await write_once(self.context.database, work, request)

    async def key_by_digest(self, digest: str) -> ApiKey | None:
        """The valid key with that digest, in whatever namespace it belongs to."""
        query = select(api_keys).where(api_keys.c.digest == digest, api_keys.c.revoked_at.is_(None))
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _key(row)

    async def keys(self) -> list[ApiKey]:
        query = select(api_keys).where(api_keys.c.namespace == self.context.namespace).order_by(api_keys.c.id)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [_key(row) for row in rows]

    async def count_keys(self) -> int:
        """Valid keys of all namespaces: whether anyone could log in at all."""
        query = select(func.count()).select_from(api_keys).where(api_keys.c.revoked_at.is_(None))
        return int(
            await self.context.database.read(lambda connection: connection.execute(query).scalar_one())
        )

    async def revoke_key(self, key_id: int) -> None:
        change = (
            update(api_keys)
            .where(
                api_keys.c.namespace == self.context.namespace,
                api_keys.c.id == key_id,
                api_keys.c.revoked_at.is_(None),
            )
            .values(revoked_at=self.context.database.now)
        )
        if await self.context.database.write(lambda connection: connection.execute(change).rowcount) == 0:
            raise NotFound(f"no valid key {key_id} in namespace {self.context.namespace!r}")


def _key(row: object) -> ApiKey:
    return ApiKey(
        **{f: getattr(row, f) for f in ("id", "namespace", "name", "role", "created_at", "revoked_at")}
    )
