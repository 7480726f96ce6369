"""Taking entries out of the line, by their keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, delete

from fusee.engine.store.tables import line

__all__ = ["leave_line"]

_LEAVE = delete(line).where(*[column == bindparam(f"b_{column.name}") for column in line.c])


def leave_line(connection: Connection, entries: Iterable[Any]) -> None:
    """These rows of the line, which are locked."""
    connection.execute(
        _LEAVE, [{f"b_{name}": value for name, value in row._mapping.items()} for row in entries]
    )
