"""Brings a database's schema to this version with Alembic, inside a connection of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from fusee.errors import StoreUnavailable

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

__all__ = ["VERSION_TABLE", "Upgraded", "revision", "upgrade", "upgrade_and_tell", "upgrade_to"]

VERSION_TABLE = "fusee_version"
FOLDERS: tuple[Path, ...] = (Path(__file__).parent / "migrations",)
"""Where the revisions are: `r0001_initial.py` holds 0001. Tests add a folder with a revision of their own."""
UNRELEASED = frozenset(f"{number:04}" for number in range(2, 9))
"""Numbers that only development versions had. They are never used again: revision 0009 follows 0001."""

_LOCK = 7_305_011  # any number, the same in every process
_NAMELESS = ("mysql", "mariadb")
"""Would warn that the name which Alembic gives to the primary key of its table is ignored."""
_VERSIONS = f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)"


def known() -> tuple[str, ...]:
    """The revisions of this version, oldest first."""
    return _numbers(FOLDERS)


@cache
def _numbers(folders: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(sorted(path.name[1:5] for folder in folders for path in folder.glob("r[0-9]*.py")))


@cache
def _scripts(folders: tuple[Path, ...]) -> ScriptDirectory:
    """Imported only when there is something to do: Alembic takes longer to import than most commands run."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(folders[0], version_locations=folders)


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade did. It only adds, so programs of the previous version keep working."""

    before: str | None
    revision: str
    steps: tuple[tuple[str, str], ...] = ()
    """(revision, what it is about), oldest first."""
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Added to tables that were there, as `table.column`."""


def upgrade(connection: Connection) -> str:
    """Run the revisions that are missing. Processes that start together wait for each other."""
    with _alone(connection):
        current, head = revision(connection)
        # A revision that this version does not know was made by a newer one: schemas expand before they
        # contract, so this older program keeps working.
        if current is not None and (current == head or current not in known()):
            return current
        if current is None and connection.dialect.name in _NAMELESS:
            connection.execute(text(_VERSIONS))
        upgrade_to(connection, head)
        return head


def upgrade_to(connection: Connection, revision: str) -> None:
    """Run the revisions up to this one, for a caller that holds the lock."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext

    scripts = _scripts(FOLDERS)
    with EnvironmentContext(Config(), scripts, fn=lambda at, _: scripts._upgrade_revs(revision, at)) as steps:
        steps.configure(connection=connection, version_table=VERSION_TABLE)
        with steps.begin_transaction():
            steps.run_migrations()


def upgrade_and_tell(connection: Connection) -> Upgraded:
    """Like `upgrade`, and returns what it added."""
    with _alone(connection):
        before = revision(connection)[0]
        there = _columns(connection)
        after = upgrade(connection)
        now = _columns(connection)
    added = now.keys() - there.keys() - {VERSION_TABLE}
    columns = sorted(f"{t}.{c}" for t in now.keys() & there.keys() for c in now[t] - there[t])
    return Upgraded(before, after, tuple(_steps(before, after)), tuple(sorted(added)), tuple(columns))


def _columns(connection: Connection) -> dict[str, frozenset[str]]:
    """Our tables with their columns, without the tables of others in the same database."""
    found = inspect(connection)
    names = [name for name in found.get_table_names() if name.startswith("fusee_")]
    return {name: frozenset(column["name"] for column in found.get_columns(name)) for name in names}


def _steps(before: str | None, after: str) -> Iterator[tuple[str, str]]:
    """The revisions between two, each with the first sentence of its docstring."""
    numbers = known()
    if after not in numbers:  # a newer version made it
        return
    first = numbers.index(before) + 1 if before in numbers else 0
    for name in numbers[first : numbers.index(after) + 1]:
        script = _scripts(FOLDERS).get_revision(name)
        yield name, " ".join(script.doc.split(". ")[0].split()).rstrip(".")


def revision(connection: Connection) -> tuple[str | None, str]:
    """Returns (what the database has, what this version wants).

    Raises StoreUnavailable for a schema that a development version made: no revision leads on from there.
    """
    current = None
    if inspect(connection).has_table(VERSION_TABLE):
        current = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    if current in UNRELEASED:
        problem = f"the schema is at revision {current}, which only development versions of Fusee had"
        raise StoreUnavailable(
            f"{problem}, so it cannot be upgraded: save what you need with the version that made it, then"
            " empty the database (or name another one in database.url) and run `fusee db upgrade`",
            public=problem,
            passing=False,
        )
    return current, known()[-1]


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Keeps other processes from upgrading. SQLite needs nothing: its write transaction is exclusive."""
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
