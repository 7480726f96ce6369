"""Bringing a database's schema to this version, with Alembic, inside a connection of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

__all__ = ["VERSION_TABLE", "Upgraded", "revision", "upgrade", "upgrade_and_tell", "upgrade_to"]

VERSION_TABLE = "fusee_version"
_LOCK = 7_305_011  # any number, the same in every process


_NAMELESS = ("mysql", "mariadb")
"""Would warn that the name which Alembic gives to the primary key of its table is ignored."""
_VERSIONS = f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)"
_HOME = Path(__file__).parent / "migrations"


@cache
def _known() -> tuple[str, ...]:
    """The revisions of this version, oldest first: r0001_engine.py holds 0001."""
    return tuple(sorted(path.name[1:5] for path in (_HOME / "versions").glob("r*.py")))


@cache
def _scripts() -> ScriptDirectory:
    """When there is something to do: importing it and the revisions takes longer than most commands."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(_HOME)


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
        # One that this version does not know was made by a newer one: schemas expand before they contract,
        # so the older program goes on working.
        if current is not None and (current == head or current not in _known()):
            return current
        if current is None and connection.dialect.name in _NAMELESS:
            connection.execute(text(_VERSIONS))
        upgrade_to(connection, head)
        return head


def upgrade_to(connection: Connection, revision: str) -> None:
    """The same up to a revision, for one who holds the turn."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext

    scripts = _scripts()
    with EnvironmentContext(Config(), scripts, fn=lambda at, _: scripts._upgrade_revs(revision, at)) as steps:
        steps.configure(connection=connection, version_table=VERSION_TABLE)
        with steps.begin_transaction():
            steps.run_migrations()


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
    known = _known()
    if after not in known:  # a newer version's
        return
    first = known.index(before) + 1 if before in known else 0
    for name in known[first : known.index(after) + 1]:
        script = _scripts().get_revision(name)
        yield name, " ".join(script.doc.split(" Frozen:")[0].split()).rstrip(".")


def revision(connection: Connection) -> tuple[str | None, str]:
    """(what the database has, what this version wants)."""
    current = None
    if inspect(connection).has_table(VERSION_TABLE):
        current = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    return current, _known()[-1]


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
