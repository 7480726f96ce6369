"""The migrations lead to exactly the schema that the code describes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from fusee.engine.store import migrate
from fusee.engine.store.migrate import VERSION_TABLE
from fusee.engine.store.tables import metadata
from fusee.errors import StoreUnavailable
from fusee.stores import Store, open_store
from tools import servers

_POSTGRES = {
    "columns": """
        SELECT table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable,
               column_default, is_identity, collation_name
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype::text, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "options": """
        SELECT relname, relkind::text, reloptions::text FROM pg_class
        WHERE relnamespace = 'public'::regnamespace""",
    "sequences": """
        SELECT sequence_name, data_type, start_value, increment, maximum_value
        FROM information_schema.sequences WHERE sequence_schema = 'public'""",
}


def _described(connection: Connection) -> dict[str, list[str]]:
    """Everything the database knows of its tables, as text; without the version table."""

    def rows(query: str) -> list[str]:
        found = [[str(value) for value in row] for row in connection.execute(text(query))]
        return sorted(" | ".join(row) for row in found if not row[0].startswith(VERSION_TABLE))

    match connection.dialect.name:
        case "sqlite":
            query = "SELECT tbl_name, type, name, sql FROM sqlite_master WHERE tbl_name NOT LIKE 'sqlite_%'"
            # SQLite keeps the statement as it was written: white space and needless quotes say nothing.
            flat = [re.sub(r"\s+", " ", row).replace('"', "") for row in rows(query)]
            return {"master": [re.sub(r"(?<=\() | (?=[,)]|$)", "", row) for row in flat]}
        case "postgresql":
            return {what: rows(query) for what, query in _POSTGRES.items()}
        case _:
            tables = [name for (name,) in connection.execute(text("SHOW TABLES")) if name != VERSION_TABLE]
            made = {n: connection.execute(text(f"SHOW CREATE TABLE {n}")).one()[1] for n in tables}
            return {n: _in_order(re.sub(r" AUTO_INCREMENT=\d+", "", sql)) for n, sql in made.items()}


def _in_order(sql: str) -> list[str]:
    """Columns as they stand; keys by name, because SQLAlchemy creates the indexes of a table in any order."""
    lines = [line.rstrip(",") for line in sql.splitlines()]
    keys = {line for line in lines if line.lstrip().startswith(("KEY", "UNIQUE KEY"))}
    return [line for line in lines if line not in keys] + sorted(keys)


@pytest.fixture
def two_urls(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two empty databases of one engine."""
    if database_url.startswith("sqlite"):
        yield database_url, f"sqlite:///{tmp_path}/other.db"
        return
    kind = "postgres" if database_url.startswith("postgres") else "mysql"
    server: servers.Database = request.getfixturevalue(f"{kind}_server")
    other = server.create_database()
    yield database_url, other
    with suppress(Exception):
        server.give_back(other)


async def _opened(url: str) -> Store:
    store = open_store(url, max_connections=3)
    await store.open()
    return store


async def test_an_upgrade_that_died_before_its_first_step_goes_on(database_url: str) -> None:
    """MySQL keeps what was made before: here the table of versions, with nothing in it."""
    store = await _opened(database_url)
    try:
        make = text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)")
        await store.database.write(lambda connection: connection.execute(make).close())
        current, wanted = await store.revision()
        assert current is None
        assert await store.upgrade() == wanted
        assert await store.revision() == (wanted, wanted)
    finally:
        await store.close()


async def test_upgrading_leads_to_the_schema_that_the_code_describes(two_urls: tuple[str, str]) -> None:
    upgraded, created = [await _opened(url) for url in two_urls]
    try:
        await upgraded.upgrade()
        await created.database.write(metadata.create_all)
        by_migration = await upgraded.database.read(_described)
        by_metadata = await created.database.read(_described)
    finally:
        await upgraded.close()
        await created.close()
    assert by_migration == by_metadata
    everything = "\n".join(line for lines in by_migration.values() for line in lines)
    for name in (*metadata.tables, "fusee_runs_key", "fusee_runs_rare", "fusee_runs_attempts"):
        assert name in everything


async def test_upgrading_twice_is_harmless(database_url: str) -> None:
    store = await _opened(database_url)
    try:
        have, head = await store.revision()
        assert have is None
        assert await store.upgrade() == head
        before = await store.database.read(_described)
        assert await store.upgrade() == head
        assert await store.revision() == (head, head)
        assert await store.database.read(_described) == before
    finally:
        await store.close()


@pytest.mark.parametrize("start", ["empty", "older"])
async def test_processes_that_start_together_may_all_upgrade(
    database_url: str, start: str, another_revision: str
) -> None:
    stores = [await _opened(database_url) for _ in range(3)]
    try:
        if start == "older":
            older = migrate.known()[-2]
            await stores[0].database.write(lambda connection: migrate.upgrade_to(connection, older))
        revisions = await asyncio.gather(*(store.upgrade() for store in stores))
        have, head = await stores[0].revision()
        assert set(revisions) == {have} == {head} == {another_revision}
        await stores[0].ping()
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("unreleased", ["0002", "0008"])
async def test_a_schema_of_a_development_version_is_refused(database_url: str, unreleased: str) -> None:
    store = await _opened(database_url)
    try:
        await store.upgrade()
        older = text(f"UPDATE {VERSION_TABLE} SET version_num = '{unreleased}'")
        await store.database.write(lambda connection: connection.execute(older).close())
        before = await store.database.read(_described)
        for asked in (store.upgrade, store.upgrade_and_tell, store.revision):
            with pytest.raises(
                StoreUnavailable, match=f"{unreleased}.*cannot be upgraded.*`fusee db"
            ) as told:
                await asked()
            assert not told.value.passing, "waiting does not help"
        assert await store.database.read(_described) == before
    finally:
        await store.close()


async def test_a_schema_of_a_newer_version_is_left_alone(database_url: str) -> None:
    store = await _opened(database_url)
    try:
        _, head = await store.revision()
        await store.upgrade()
        newer = text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        await store.database.write(lambda connection: connection.execute(newer).close())
        before = await store.database.read(_described)
        assert await store.upgrade() == "9999"
        assert await store.revision() == ("9999", head)
        assert await store.database.read(_described) == before
    finally:
        await store.close()
