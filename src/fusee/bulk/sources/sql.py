"""Rows of a query, by an integer key: the item's index is its key; gaps between keys are not items.

Any page of rows is one indexed read, wherever it is, and rows that are added or deleted meanwhile move no
other item.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from fusee.bulk.model.job import UNKNOWN
from fusee.bulk.sources.base import ABSENT, BlockReader, Placed, fields_of
from fusee.engine.store.database import Database, open_database
from fusee.errors import FuseeError, Invalid, StoreUnavailable

__all__ = ["SqlSource"]

COUNT_WITHIN = 10.0
"""The most seconds for counting the rows of a query."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class SqlSource:
    """`{"kind": "sql", "url": "env:CRM_DATABASE", "query": "SELECT id, email FROM users", "key": "id"}`.

    `url` is a database URL like Fusee's own; with `env:` each worker reads it from that environment variable,
    so that no password is stored with the job. Items are objects with the columns of the query.
    """

    sparse = True
    placed = False

    def __init__(self, given: Mapping[str, Any]) -> None:
        fields = fields_of(given, "url", "query", "key")
        self.url, self.query, self.key = fields.get("url"), fields.get("query"), fields.get("key", "id")
        if not isinstance(self.url, str) or not self.url:
            raise ValueError("url must be a database URL, or env:NAME")
        if not isinstance(self.query, str) or not self.query.strip():
            raise ValueError("query must be a SELECT")
        if ";" in self.query.rstrip("; \n"):
            raise ValueError("query must be one statement")
        if not isinstance(self.key, str) or not _NAME.fullmatch(self.key):
            raise ValueError("key must be the name of an integer column of the query")

    def database(self, **options: Any) -> Database:
        assert isinstance(self.url, str)
        url = self.url
        if url.startswith("env:"):
            url = os.environ.get(url[4:], "")
            if not url:
                raise Invalid(f"source: the variable {self.url[4:]} is not set here", field="source")
        return open_database(url, max_connections=2, **options)

    @property
    def inner(self) -> str:
        assert isinstance(self.query, str)
        return f"({self.query.rstrip('; ')}) AS fusee_items"

    async def check(self) -> None:
        await self.bounds()

    async def bounds(self) -> tuple[int, int]:
        statement = text(f"SELECT min({self.key}), max({self.key}) FROM {self.inner}")
        database = self.database()
        try:
            await database.open()
            low, high = await database.read(lambda c: tuple(c.execute(statement).one()))
        except (SQLAlchemyError, FuseeError) as error:
            raise Invalid(f"source: the query cannot be run: {error}", field="source") from None
        finally:
            await database.close()
        if low is None:
            return 0, 0
        if type(low) is not int or type(high) is not int or low < 0:
            raise Invalid(f"source: key {self.key} must be an integer column from 0 on", field="source")
        return low, high + 1

    async def count(self, first: int, stop: int) -> int:
        key, given = self.key, {"first": first, "stop": stop}
        statement = text(f"SELECT count(*) FROM {self.inner} WHERE {key} >= :first AND {key} < :stop")
        database = self.database(statement_timeout=COUNT_WITHIN)
        try:
            await database.open()
            return await database.read(
                lambda c: int(_limited(c, COUNT_WITHIN).execute(statement, given).scalar_one())
            )
        except (StoreUnavailable, SQLAlchemyError):
            return UNKNOWN
        finally:
            await database.close()

    async def fingerprint(self) -> None:
        """Rows may be added, deleted and changed at any time: a job keeps its range of keys."""

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """Nothing to compare."""

    def reader(self) -> SqlReader:
        return SqlReader(self)

    pages = reader


class SqlReader(BlockReader):
    def __init__(self, source: SqlSource) -> None:
        super().__init__()
        self._source = source
        self._database: Database | None = None

    async def load(self, first: int, end: int) -> Sequence[Any]:
        source, database = self._source, await self._opened()
        key = source.key
        statement = text(f"SELECT * FROM {source.inner} WHERE {key} >= :first AND {key} < :end")

        def work(connection: Connection) -> list[dict[str, Any]]:
            rows = connection.execute(statement, {"first": first, "end": end})
            return [dict(row) for row in rows.mappings()]

        items: list[Any] = [ABSENT] * (end - first)
        for row in await database.read(work):
            items[row[str(key)] - first] = row
        return items

    async def page(
        self, first: int, end: int, most: int, *, backwards: bool = False
    ) -> list[tuple[int, Placed]]:
        """`backwards`: returns the last rows of `[first, end)`, the last one first."""
        source, database = self._source, await self._opened()
        key, order = str(source.key), "DESC" if backwards else "ASC"
        # One more than wanted: it shows whether the last key occurs twice.
        statement = text(
            f"SELECT * FROM {source.inner} WHERE {key} >= :first AND {key} < :end"
            f" ORDER BY {key} {order} LIMIT :most"
        )

        def work(connection: Connection) -> list[dict[str, Any]]:
            rows = connection.execute(statement, {"first": first, "end": end, "most": most + 1})
            return [dict(row) for row in rows.mappings()]

        rows = await database.read(work)
        for one, other in pairwise(rows):
            if one[key] == other[key]:
                raise Invalid(f"source: key {key} is not unique: {one[key]} is there more than once")
        return [(row[key], Placed(row[key], row)) for row in rows[:most]]

    async def _opened(self) -> Database:
        if self._database is None:
            self._database = self._source.database()
            await self._database.open()
        return self._database

    async def close(self) -> None:
        await super().close()
        if self._database is not None:
            await self._database.close()


def _limited(connection: Connection, seconds: float) -> Connection:
    """Limits a statement on SQLite, which has no statement timeout, but asks now and then whether to
    continue."""
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        until = time.monotonic() + seconds
        driver.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    return connection
