"""The databases' own plans of every statement that some work sends, and what is wrong with them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

from sqlalchemy import Connection, event, text

from fusee.stores import Store

__all__ = ["NUMBERS", "Plans", "engine_of", "plans_of", "postgres_complaints"]

NUMBERS = {
    "sqlite": "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n LIMIT {many}) SELECT * FROM n)",
    "postgres": "generate_series(1, {many})",
    "mysql": "seq_1_to_{many}",
}

Plans = list[tuple[str, list[str]]]
"""Each statement, and what is wrong with its plan."""
Live = Callable[[Store], Awaitable[None]]


def engine_of(store: Store) -> str:
    name = store.database.__class__.__name__.lower()
    return next(engine for engine in NUMBERS if engine in name)


async def plans_of(store: Store, live: Live, watched: Collection[str]) -> Plans:
    """Of each statement of `live` that speaks of a watched table: no scan of it, and no sort."""
    match engine_of(store):
        case "sqlite":
            return await _sqlite_plans(store, live, watched)
        case "postgres":
            return await _postgres_plans(store, live, watched)
        case _:
            return await _mysql_plans(store, live, watched)


def _kinds(statements: list[str], watched: Collection[str]) -> list[str]:
    """One of each: those that differ in numbers only have one plan."""
    seen: dict[str, str] = {}
    for statement in statements:
        plain = statement.strip()
        words = plain.split(None, 1)[0].upper() if plain else ""
        if words in ("SELECT", "UPDATE", "DELETE", "WITH") and any(table in plain for table in watched):
            seen.setdefault(re.sub(r"'[^']*'|\d+|[\s,]+", " ", plain), plain)
    return list(seen.values())


async def _sqlite_plans(store: Store, live: Live, watched: Collection[str]) -> Plans:
    heard: list[str] = []

    def raw(connection: Connection) -> sqlite3.Connection:
        driver: Any = connection.connection.driver_connection
        return driver  # type: ignore[no-any-return]

    database: Any = store.database
    for engine in (database._write_engine, database._read_engine):
        with engine.connect() as connection:
            raw(connection).set_trace_callback(heard.append)
    await live(store)

    def explain(connection: Connection) -> Plans:
        driver = raw(connection)
        driver.set_trace_callback(None)
        plans: Plans = []
        for statement in _kinds(heard, watched):
            steps = [row[3] for row in driver.execute("EXPLAIN QUERY PLAN " + statement)]
            bad = [
                step
                for step in steps
                if any(step.startswith(f"SCAN {table}") for table in watched)
                or "TEMP B-TREE FOR ORDER" in step
            ]
            plans.append((statement, bad))
        return plans

    return await database.write(explain)  # type: ignore[no-any-return]


async def _mysql_plans(store: Store, live: Live, watched: Collection[str]) -> Plans:
    async def sql(statement: str) -> None:
        await store.database.write(lambda connection: connection.execute(text(statement)).close())

    await sql("SET GLOBAL log_output = 'TABLE'")
    await sql("SET GLOBAL general_log = ON")
    try:
        await live(store)
    finally:
        await sql("SET GLOBAL general_log = OFF")

    def explain(connection: Connection) -> Plans:
        log = text(
            "SELECT convert(argument USING utf8mb4) FROM mysql.general_log WHERE command_type = 'Query'"
        )
        heard = list(connection.execute(log).scalars())
        plans: Plans = []
        for statement in _kinds(heard, watched):
            rows = connection.exec_driver_sql("EXPLAIN " + statement.replace("%", "%%")).mappings().all()
            bad = [
                f"{row['table']} {row['type']} {row['Extra']}"
                for row in rows
                if _mysql_table(row["table"], statement) in watched
                and (row["type"] == "ALL" or "filesort" in (row["Extra"] or ""))
            ]
            plans.append((statement, bad))
        connection.execute(text("TRUNCATE TABLE mysql.general_log"))
        return plans

    return await store.database.write(explain)


def _mysql_table(name: str | None, statement: str) -> str | None:
    return "fusee_ready" if name == "l" and "fusee_ready l" in statement else name


async def _postgres_plans(store: Store, live: Live, watched: Collection[str]) -> Plans:
    database: Any = store.database
    heard: list[tuple[str, Any]] = []

    def hear(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        heard.append((statement, parameters[0] if many else parameters))

    event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
    await live(store)
    event.remove(database.engine.sync_engine, "before_cursor_execute", hear)

    plans: Plans = []
    kinds = dict(reversed(heard))

    def explain(connection: Connection) -> None:
        for statement in _kinds(list(kinds), watched):
            plan = connection.exec_driver_sql(
                "EXPLAIN (FORMAT JSON) " + statement, kinds[statement]
            ).scalar_one()
            plans.append((statement, postgres_complaints(plan, watched)))

    await database.write(explain)
    hot = await database.hot_pool.pool.fetch(
        "SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements"
    )
    hot = [row for row in hot if any(f"{verb} fusee_" in row[1] for verb in ("UPDATE", "FROM"))]
    assert hot, "the statements of a claim are among them"
    async with database.hot_pool.pool.acquire() as connection:
        for name, statement, types in hot:
            values = f"({', '.join(_POSTGRES_VALUES[kind] for kind in types)})" if types else ""
            query = f'EXPLAIN (FORMAT JSON) EXECUTE "{name}" {values}'
            plan = await connection.fetchval(query)
            plans.append((statement, postgres_complaints(plan, watched)))
    return plans


_POSTGRES_VALUES = {
    "bigint": "1",
    "integer": "1",
    "text": "'{1,2,3}'",
    "character varying": "'default'",
    "bigint[]": "'{1,2,3}'",
    "integer[]": "'{1,2,3}'",
    "text[]": "'{a,b,c}'",
}


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def postgres_complaints(plan: Any, watched: Collection[str]) -> list[str]:
    top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    bad: list[str] = []
    for node in _nodes(top):
        kind = node["Node Type"]
        if kind == "Seq Scan" and node.get("Relation Name") in watched:
            bad.append(f"{kind} on {node['Relation Name']}")
        if kind == "Sort":
            below = [child for child in _nodes(node) if child.get("Relation Name") in watched]
            limited = any(child["Node Type"] == "Limit" for child in _nodes(node))
            by_key = all(child["Node Type"].startswith(("Index", "Bitmap", "Tid")) for child in below)
            if below and not limited and not by_key:
                bad.append(f"Sort over {below[0]['Relation Name']}")
    return bad
