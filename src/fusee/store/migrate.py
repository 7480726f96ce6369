"""Bringing a database's schema to this version, with Alembic, inside a connection of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

__all__ = ["VERSION_TABLE", "revision", "upgrade"]

VERSION_TABLE = "fusee_version"
_LOCK = 7_305_011  # any number, the same in every process


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> str:
    """Run what is missing. Processes that start together take turns."""
    with _turn(connection):
        current, head = revision(connection)
        if current != head and not _is_newer(current):
            command.upgrade(_config(connection), "head")
        return revision(connection)[0] or head


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
