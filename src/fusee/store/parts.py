"""What every noun of the store stands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Connection, any_, literal, text

from fusee.store.contract import LaneMap
from fusee.store.wakes import Wakes

if TYPE_CHECKING:
    from fusee.store.database import Database
    from fusee.store.hot import Hot

__all__ = ["StorePart"]


class StorePart:
    """The database, the namespace whose rows are seen, and the lanes as last read."""

    database: Database
    hot: Hot
    namespace: str
    wakes: Wakes
    lane_map: LaneMap

    def _notify(self, connection: Connection, kind: str) -> None:
        """Tell the other processes, at commit, where the database can."""
        if self.database.capabilities.notify:
            connection.execute(text("SELECT pg_notify('fusee', :kind)"), {"kind": kind})

    def _among(self, column: ColumnElement[int], numbers: Sequence[int]) -> ColumnElement[bool]:
        """That the column is one of these: one parameter where the database has arrays, so that the
        statement, and what was prepared for it, is the same for any number of them."""
        if not self.database.capabilities.arrays:
            return column.in_(numbers)
        return column == any_(literal(list(numbers), ARRAY(BigInteger)))

    def _now(self, connection: Connection) -> int:
        """The database's clock."""
        return self.database.read_clock(connection)
