"""Restoring an older state: the statements of the page move run ids past those already given out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import text

from fusee import Fusee
from fusee.config import load

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
STEP = 10_000_000


def statement(dialect: str) -> str:
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL, MariaDB"}[dialect]
    [found] = re.findall(rf"-- {name}[^\n]*\n\s*([^;]+);", PAGE)
    return found.strip()


async def test_new_runs_get_ids_that_no_run_has_ever_had(database_url: str) -> None:
    app = Fusee(config=load(env={}, overrides={"database": {"url": database_url}}))
    async with app:
        before = await app.enqueue("greet", allow_unknown=True)
        sql = statement(app.config.database.dialect)
        await app.store.database.write(lambda connection: connection.execute(text(sql)))
        after = await app.enqueue("greet", allow_unknown=True)
        assert after.id >= before.id + STEP // 2


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql"])
def test_there_is_a_statement_for_every_database(dialect: str) -> None:
    assert "fusee_runs" in statement(dialect)
