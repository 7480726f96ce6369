"""Bringing a database's schema to this version, with Alembic, inside a connection of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

__all__ = ["VERSION_TABLE", "Upgraded", "revision", "upgrade", "upgrade_and_tell"]

VERSION_TABLE = "fusee_version"
_LOCK = 7_305_011  # any number, the same in every process


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade did. It only adds: programs of the version before go on working."""

    before: str | None
    revision: str
    steps: tuple[tuple[str, str], ...] = ()
    """(revision, what it is about), oldest first."""
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Added to tables that were there, as `table.column`."""


def upgrade(connection: Connection) -> str:
    """Run what is missing. Processes that start together take turns."""
    with _turn(connection):
        current, head = revision(connection)
        if current != head and not _is_newer(current):
            command.upgrade(_config(connection), "head")
        return revision(connection)[0] or head


def upgrade_and_tell(connection: Connection) -> Upgraded:
    """The same, and what it added."""
    with _turn(connection):
        before = revision(connection)[0]
        there = _columns(connection)
        after = upgrade(connection)
        now = _columns(connection)
    added = now.keys() - there.keys() - {VERSION_TABLE}
    columns = sorted(f"{t}.{c}" for t in now.keys() & there.keys() for c in now[t] - there[t])
    return Upgraded(before, after, tuple(_steps(before, after)), tuple(sorted(added)), tuple(columns))


def _columns(connection: Connection) -> dict[str, frozenset[str]]:
    """Our tables as they stand; not those of others in the same database."""
    found = inspect(connection)
    names = [name for name in found.get_table_names() if name.startswith("fusee_")]
    return {name: frozenset(column["name"] for column in found.get_columns(name)) for name in names}


def _steps(before: str | None, after: str) -> Iterator[tuple[str, str]]:
    """What lies between two revisions, from what each says of itself."""
    scripts = list(ScriptDirectory.from_config(_config()).walk_revisions())[::-1]
    known = [script.revision for script in scripts]
    if after not in known:  # a newer version's
        return
    first = known.index(before) + 1 if before in known else 0
    for script in scripts[first : known.index(after) + 1]:
        yield script.revision, " ".join(script.doc.split(" Frozen:")[0].split()).rstrip(".")


def revision(connection: Connection) -> tuple[str | None, str]:
    """(what the database has, what this version wants)."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return context.get_current_revision(), head


def _is_newer(current: str | None) -> bool:
    """A revision this version does not know was made by a newer one: schemas expand before they contract,
    so the older program goes on working."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return current is not None and current not in known


@contextmanager
def _turn(connection: Connection) -> Iterator[None]:
    name = connection.dialect.name
    if name == "postgresql":  # ends with the transaction
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    if name not in ("mysql", "mariadb"):
        yield
        return
    connection.execute(text(f"SELECT GET_LOCK('fusee-{_LOCK}', 60)"))
    try:
        yield
    finally:
        connection.execute(text(f"SELECT RELEASE_LOCK('fusee-{_LOCK}')"))
