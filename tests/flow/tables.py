"""A table of a user's own database, for the tests of SQL sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, text

from fusee.stores import Store, open_store

__all__ = ["Table"]


class Table:
    """`people (id, name)`."""

    def __init__(self, url: str) -> None:
        self.source = {"kind": "sql", "url": url, "query": "SELECT id, name FROM people", "key": "id"}
        self.store: Store = open_store(url)

    async def make(self, ids: Iterable[int] = ()) -> None:
        await self.store.open()
        await self._write("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(40))")
        await self.add(ids)

    async def add(self, ids: Iterable[int]) -> None:
        rows = [{"id": number, "name": f"name {number}"} for number in ids]
        if rows:
            await self._write("INSERT INTO people (id, name) VALUES (:id, :name)", rows)

    async def take_away(self, number: int) -> None:
        await self._write("DELETE FROM people WHERE id = :id", [{"id": number}])

    async def close(self) -> None:
        await self.store.close()

    async def _write(self, statement: str, rows: list[dict[str, Any]] | None = None) -> None:
        def work(connection: Connection) -> None:
            connection.execute(text(statement), rows)

        await self.store.database.write(work)
