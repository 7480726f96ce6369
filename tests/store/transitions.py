"""Triggers that hold a database to the transition tables, for all tests of the store.

They see what the code does when it runs, and so also a status that it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection

from fusee.bulk.model.job import BULK
from fusee.bulk.model.segment import SEGMENT
from fusee.engine.model.states import RUN, SESSION
from fusee.tasks.model.task import TASK_STEPS
from fusee.workflows.model.workflow_run import WORKFLOW_RUN_STEPS

GUARDED: Mapping[tuple[str, str], Mapping[tuple[Any, str], Any]] = {
    ("fusee_runs", "status"): RUN,
    ("fusee_sessions", "state"): SESSION,
    ("fusee_tasks", "status"): TASK_STEPS,
    ("fusee_bulk_jobs", "status"): BULK,
    ("fusee_bulk_segments", "state"): SEGMENT,
    ("fusee_workflow_runs", "status"): WORKFLOW_RUN_STEPS,
}
REFUSED = "no transition leads there"


def guard_transitions(connection: Connection) -> None:
    """From now on this database refuses a change of status that is not in the tables."""
    for (table, column), steps in GUARDED.items():
        pairs = sorted({(str(before), str(after)) for (before, _), after in steps.items()})
        known = " OR ".join(f"(OLD.{column} = '{a}' AND NEW.{column} = '{b}')" for a, b in pairs)
        wrong = f"OLD.{column} <> NEW.{column} AND NOT ({known})"
        for statement in _trigger(connection.dialect.name, table, column, wrong):
            connection.exec_driver_sql(statement)


def _trigger(dialect: str, table: str, column: str, wrong: str) -> Iterator[str]:
    name = f"{table}_transitions"
    if dialect == "sqlite":
        yield (
            f"CREATE TRIGGER {name} BEFORE UPDATE OF {column} ON {table} WHEN {wrong}"
            f" BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )
    elif dialect == "postgresql":
        yield (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '{REFUSED}: {table} from % to %', OLD.{column}, NEW.{column}; END $$"
        )
        yield (
            f"CREATE TRIGGER {name} BEFORE UPDATE OF {column} ON {table} FOR EACH ROW"
            f" WHEN ({wrong}) EXECUTE FUNCTION {name}()"
        )
    else:
        yield (
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW"
            f" IF {wrong} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{REFUSED}'; END IF"
        )
