"""Every status that the code writes to the database is one that the transition tables produce.

The tables are in the models. This reads them, and each write in the code, by SQLAlchemy or in SQL:

- a row is inserted with a status that things of its kind may begin with;
- a row is updated to a status that some transition leads to, and where the statement itself says from which
  status (in its WHERE), there is a transition between the two;
- a status that SQL compares a column with is one that the column can have;
- a status is never written as text in Python, but as a member of its enum.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from fusee.bulk.model.job import BulkStatus, next_bulk_status
from fusee.engine.model.states import RunStatus
from fusee.engine.store.tables import metadata
from fusee.stores import Store  # noqa: F401 (declares every table)
from tests.unit.source import ROOT, Module, modules, tables, writes, writes_of
from tests.unit.statuses import COLUMNS, MACHINES, Change, changes, compared

KNOWN = {"RunStatus": RunStatus, "BulkStatus": BulkStatus, "next_bulk_status": next_bulk_status}
"""The names that the examples below use."""


def texts(module: Module) -> Iterator[str]:
    """Statuses that code of a store writes as text, given to a column or compared with one."""
    if "store" not in module.dotted.split(".") and not re.search(
        "^from sqlalchemy import", module.text, re.M
    ):
        return
    words = {str(word) for machine in MACHINES.values() for word in machine.words}
    for node in ast.walk(module.tree):
        beside: list[ast.expr] = []
        match node:
            case ast.keyword(arg, value) if arg in COLUMNS:
                beside = [value]
            case ast.Dict(keys, values):
                pairs = zip(keys, values, strict=True)
                beside = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value in COLUMNS]
            case ast.Assign([ast.Name(name)], value) if name in COLUMNS:
                beside = [value]
            case ast.Compare(ast.Attribute(_, name), _, others) if name in COLUMNS:
                beside = others
            case ast.Call(ast.Attribute(ast.Attribute(_, name), "in_"), others) if name in COLUMNS:
                beside = others
            case ast.Call(ast.Attribute(_, "copy_records_to_table"), _, keywords):
                beside = [keyword.value for keyword in keywords if keyword.arg == "records"]
        for value in beside:
            for found in ast.walk(value):
                if isinstance(found, ast.Constant) and found.value in words:
                    yield f"{module.where}:{found.lineno}: {found.value!r}"


def problems(found: Iterable[Change]) -> list[str]:
    return [f"{change.where}.{change.column}: {change.problem}" for change in found if change.problem]


def test_every_status_that_is_written_is_one_that_a_transition_produces() -> None:
    found = changes(writes())
    assert not problems(found)
    # The reader does find them: these it must have seen.
    seen = {(change.table, min(change.before), change.after) for change in found if change.before}
    assert seen >= {
        ("fusee_runs", "pending", "running"),
        ("fusee_runs", "running", "succeeded"),
        ("fusee_runs", "pending", "dispatched"),
        ("fusee_runs", "dispatched", "pending"),
        ("fusee_runs", "delayed", "pending"),
        ("fusee_sessions", "alive", "ended"),
        ("fusee_sessions", "alive", "lost"),
        ("fusee_bulk_segments", "idle", "open"),
        ("fusee_bulk_segments", "open", "idle"),
    }
    claims = [change for change in found if change.after == "running" and change.before == {"pending"}]
    assert len({change.where.split(":")[0] for change in claims}) >= 4, "one in each dialect, and one for all"


def test_every_status_that_sql_compares_with_is_a_status() -> None:
    found = [one for module in modules() for one in compared(module)]
    assert {where.split(":")[0] for where, _, _ in found}, "a reader that finds none"
    assert [f"{where} {word!r}" for where, word, known in found if word not in known] == []
    typo = Module(ROOT / "example.py", "sql = \"SELECT 1 FROM fusee_sessions WHERE state = 'running'\"")
    assert [word for _, word, known in compared(typo) if word not in known] == ["running"]


def test_the_database_checks_each_status_that_there_is() -> None:
    checked = set()
    for table in metadata.tables.values():
        for constraint in table.constraints:
            match = re.fullmatch(r"(\w+) IN \((.*)\)", str(getattr(constraint, "sqltext", "")))
            if match and (table.name, match[1]) in MACHINES:
                checked.add(table.name)
                assert set(re.findall(r"\w+", match[2])) == set(MACHINES[table.name, match[1]].words)
    assert checked >= {"fusee_sessions", "fusee_tasks", "fusee_batches", "fusee_bulk_jobs"}


def test_no_status_is_written_as_text() -> None:
    wrong = sorted({text for module in modules() for text in texts(module)})
    assert not wrong, "name the member of the enum instead"


def test_each_column_for_a_status_has_its_machine() -> None:
    assert set(metadata.tables) == set(tables().values()) >= {table for table, _ in MACHINES}
    for table in metadata.tables.values():
        for column in COLUMNS & set(table.c.keys()):
            assert (table.name, column) in MACHINES


PENDING = "update(runs).where(runs.c.status == RunStatus.PENDING)"
BY_NAMES = """
mine = (runs.c.id == 7, runs.c.status.in_((RunStatus.MISSED,)))
values = {"finished_at": 7, "status": RunStatus.FAILED}
change = update(runs).where(*mine)
change.values(**values)
"""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (f"{PENDING}.values(status=RunStatus.RUNNING)", None),
        (f"{PENDING}.values(status=RunStatus.WAITING)", "no transition leads from pending to waiting"),
        (f"{PENDING}.values({{'status': RunStatus.DELAYED}})", "no transition leads from pending to delayed"),
        (BY_NAMES, "no transition leads from missed to failed"),
        ("update(runs).values(status=RunStatus.BLOCKED)", "nothing becomes blocked"),
        ("update(runs).values(status=RunStatus.RUNNING if x else 'runing')", "'runing' is no RunStatus"),
        ("insert(runs).values(status=RunStatus.PENDING)", None),
        ("insert(runs).values(status=RunStatus.RUNNING)", "nothing begins as running"),
        ("update(bulk_jobs).values(status=next_bulk_status(BulkStatus.CREATED, 'start'))", None),
        ("update(bulk_jobs).values(status=RunStatus.PENDING)", "'pending' is no BulkStatus"),
    ],
)
def test_a_wrong_status_in_a_statement_of_sqlalchemy_is_noticed(code: str, problem: str | None) -> None:
    assert told_of(code) == problem


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE fusee_runs SET status = 'running' WHERE id = ? AND status = 'pending'", None),
        (
            "UPDATE fusee_runs SET status = 'running' WHERE id = ? AND status = 'blocked'",
            "no transition leads from blocked to running",
        ),
        (
            "UPDATE fusee_runs r SET status = 'failed' WHERE r.status IN ('running', 'delayed')",
            "no transition leads from delayed to failed",
        ),
        ("UPDATE fusee_runs SET status = 'runing' WHERE id = ?", "'runing' is no RunStatus"),
        ("UPDATE fusee_runs SET status = 'running' WHERE status = 'pendign'", "'pendign' is no RunStatus"),
        (
            "x AS (UPDATE fusee_sessions SET state = 'alive' WHERE id = 1), y AS (SELECT 1)",
            "nothing becomes alive",
        ),
        (
            "INSERT INTO fusee_runs (id, status) SELECT f(1, 2), CASE WHEN x THEN 'delayed' ELSE 'lost' END",
            "'lost' is no RunStatus",
        ),
        ("INSERT INTO fusee_bulk_jobs (id, status) VALUES (1, 'stopped')", "nothing begins as stopped"),
    ],
)
def test_a_wrong_status_in_sql_is_noticed(sql: str, problem: str | None) -> None:
    assert told_of(f"sql = {sql!r}") == problem


def told_of(code: str) -> str | None:
    """What is told of a module with this code in it."""
    module = Module(ROOT / "example.py", code)
    vars(module)["names"] = KNOWN
    found = changes(writes_of(module))
    assert found, "a write that is not seen"
    return next((change.problem for change in found if change.problem), None)


def test_a_status_as_text_is_noticed() -> None:
    code = "update(runs).values(status='failed').where(runs.c.status == 'running')"
    found = list(texts(Module(ROOT / "store" / "example.py", code)))
    assert found == ["store/example.py:1: 'running'", "store/example.py:1: 'failed'"]
