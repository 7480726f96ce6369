"""Every revision only adds: what the version before says to the database keeps its meaning.

The test walks them step by step on each database and compares what the database itself says of its tables.
The last step is a revision that only the tests have, so that there is always one to walk.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, Integer, inspect, text

from fusee.engine.store import migrate
from fusee.engine.store.migrate import VERSION_TABLE
from fusee.stores import Store, open_store

Tables = dict[str, dict[str, Any]]


def described(connection: Connection) -> Tables:
    """Table → its columns, its primary key, what must be unique, and what is checked."""
    found = inspect(connection)
    return {
        name: {
            "columns": {column["name"]: column for column in found.get_columns(name)},
            "key": found.get_pk_constraint(name)["constrained_columns"],
            "unique": {
                *(tuple(one["column_names"]) for one in found.get_unique_constraints(name)),
                *(tuple(one["column_names"]) for one in found.get_indexes(name) if one["unique"]),
            },
            "checks": sorted(str(one["name"]) for one in found.get_check_constraints(name)),
        }
        for name in found.get_table_names()
        if name.startswith("fusee_") and name != VERSION_TABLE
    }


def contracted(before: Tables, after: Tables) -> list[str]:
    """What a program that knows `before` would stumble over."""
    wrong = [f"table {name} is gone" for name in before.keys() - after.keys()]
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        wrong += [f"{name}.{column} is gone" for column in old["columns"].keys() - new["columns"].keys()]
        for column in new["columns"].keys() - old["columns"].keys():
            added = new["columns"][column]
            if not added["nullable"] and added["default"] is None:
                wrong.append(f"{name}.{column} is new and must be given")
        for column in old["columns"].keys() & new["columns"].keys():
            was, now = old["columns"][column], new["columns"][column]
            if str(was["type"]) != str(now["type"]):
                wrong.append(f"{name}.{column} was {was['type']} and is {now['type']}")
            if was["nullable"] and not now["nullable"]:
                wrong.append(f"{name}.{column} must be given now")
            if was["default"] is not None and now["default"] is None:
                wrong.append(f"{name}.{column} lost its default")
        # What the version before leaves empty is never a repetition: a unique index over it may be new.
        added = new["columns"].keys() - old["columns"].keys()
        kept = {**new, "unique": {one for one in new["unique"] if one in old["unique"] or not added & {*one}}}
        for what in ("key", "unique", "checks"):
            if old[what] != kept[what]:
                wrong.append(f"{name}: {what} was {old[what]} and is {new[what]}")
    return wrong


def say(connection: Connection, tables: Tables) -> None:
    """What the version before says, by all the columns that it knows and by no other; touches no row."""
    quote = connection.dialect.identifier_preparer.quote
    for name, table in tables.items():
        columns = [quote(column) for column in table["columns"]]
        listed = ", ".join(columns)
        for statement in (
            f"SELECT {listed} FROM {name} WHERE 1 = 0",
            f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {name} WHERE 1 = 0",
            f"UPDATE {name} SET {', '.join(f'{column} = {column}' for column in columns)} WHERE 1 = 0",
        ):
            connection.execute(text(statement)).close()


def go_to(revision: str) -> Any:
    return lambda connection: migrate.upgrade_to(connection, revision)


def test_each_revision_is_in_the_file_that_bears_its_name(another_revision: str) -> None:
    scripts = migrate._scripts(migrate.FOLDERS)
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(migrate.known())
    assert migrate.known()[-1] == another_revision


def test_no_revision_has_the_number_of_an_unreleased_one() -> None:
    assert not migrate.UNRELEASED & set(migrate.known())


@pytest.fixture
async def store(database_url: str) -> Any:
    store = open_store(database_url, max_connections=3)
    await store.open()
    yield store
    await store.close()


async def test_no_revision_takes_away_what_the_one_before_had(store: Store, another_revision: str) -> None:
    revisions = migrate.known()
    await store.database.write(go_to(revisions[0]))
    for before, revision in pairwise(revisions):
        old = await store.database.read(described)
        await store.database.write(go_to(revision))
        new = await store.database.read(described)
        assert not contracted(old, new), f"{before} → {revision}"
        await store.database.write(lambda connection, known=old: say(connection, known))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TABLE fusee_edit_locks", "table fusee_edit_locks is gone"),
        ("ALTER TABLE fusee_lanes DROP COLUMN turn", "fusee_lanes.turn is gone"),
        ("ALTER TABLE fusee_lanes RENAME COLUMN turn TO its_turn", "fusee_lanes.turn is gone"),
        ("ALTER TABLE fusee_lanes ADD COLUMN colour INTEGER NOT NULL DEFAULT 7", ""),
        ("CREATE UNIQUE INDEX one_each ON fusee_runs (payload)", "fusee_runs: unique was"),
    ],
)
async def test_the_test_itself_would_notice(tmp_path: Any, change: str, says: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    await store.open()
    try:
        await store.upgrade()
        old = await store.database.read(described)
        await store.database.write(lambda connection: connection.execute(text(change)).close())
        wrong = contracted(old, await store.database.read(described))
    finally:
        await store.close()
    assert any(says in one for one in wrong) if says else wrong == []


def test_a_column_that_must_be_given_is_noticed() -> None:
    there: Tables = {"t": {"columns": {}, "key": [], "unique": set(), "checks": []}}
    column = {"nullable": False, "default": None, "type": Integer()}
    after: Tables = {"t": {**there["t"], "columns": {"new": column}}}
    assert contracted(there, after) == ["t.new is new and must be given"]


async def test_an_upgrade_tells_what_it_adds(store: Store, another_revision: str) -> None:
    before = migrate.known()[-2]
    await store.database.write(go_to(before))
    did = await store.upgrade_and_tell()
    assert (did.before, did.revision) == (before, another_revision)
    assert did.steps == ((another_revision, "Colours for lanes"),)
    assert did.tables == ("fusee_colours",)
    assert did.columns == ("fusee_lanes.colour_id", "fusee_queues.shade")
    again = await store.upgrade_and_tell()
    assert (again.steps, again.tables, again.columns) == ((), (), ())
