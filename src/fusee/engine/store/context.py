"""What every part of the store works on: the database, the namespace it sees, hints and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Connection, Select, any_, literal, text

from fusee.engine.store.contract import LaneMap
from fusee.engine.store.wakes import Wakes
from fusee.events import Event

if TYPE_CHECKING:
    from fusee.engine.store.database import Database
    from fusee.engine.store.set_aside import SetAside

__all__ = ["Decisions", "StoreContext"]

T = TypeVar("T")
_NOTED = "fusee_noted"


class Decisions:
    """Where the store tells what it decided by itself (a pause by policy, a batch that stopped …)."""

    def __init__(self) -> None:
        self.tell: Callable[[Event], None] = lambda event: None


class StoreContext:
    """The database, the namespace whose rows are visible, and what the parts of one store share."""

    def __init__(
        self,
        database: Database,
        namespace: str,
        *,
        wakes: Wakes,
        set_aside: SetAside,
        decisions: Decisions,
    ) -> None:
        self.database = database
        self.namespace = namespace
        self.wakes = wakes
        self.lane_map = LaneMap()
        self.set_aside = set_aside
        self.decisions = decisions

    def notify(self, connection: Connection, kind: str) -> None:
        """Tell the other processes, at commit, where the database can."""
        if self.database.capabilities.notify:
            connection.execute(text("SELECT pg_notify('fusee', :kind)"), {"kind": kind})

    def among(self, column: ColumnElement[int], numbers: Sequence[int]) -> ColumnElement[bool]:
        """That the column is one of these: one parameter where the database has arrays, so that the
        statement, and what was prepared for it, is the same for any number of them."""
        if not self.database.capabilities.arrays:
            return column.in_(numbers)
        return column == any_(literal(list(numbers), ARRAY(BigInteger)))

    async def write_aloud(self, work: Callable[[Connection], T]) -> T:
        """`database.write`; when it is committed, what was decided in it without being asked is told."""
        noted: list[Event] = []

        def unit(connection: Connection) -> T:
            noted.clear()  # it may be the second try
            connection.info[_NOTED] = noted
            try:
                return work(connection)
            finally:
                del connection.info[_NOTED]

        result = await self.database.write(unit)
        for event in noted:
            self.decisions.tell(event)
        return result

    def note(self, connection: Connection, event: Event) -> None:
        """Have this told when the transaction is committed."""
        noted = connection.info.get(_NOTED)
        if noted is not None:
            noted.append(event)

    async def page(
        self,
        query: Select[Any],
        limit: int,
        after: Callable[[Any], ColumnElement[bool]],
        kind: str,
        read: Callable[[Any], T],
        **keys: Callable[[Any], Any],
    ) -> list[T]:
        """Up to `limit` rows of an ordered query. Rows that cannot be read are reported and left out; the
        page is filled from the rows behind them, since a short page means that there are no more."""
        found: list[T] = []
        while True:
            part = query.limit(limit - len(found))
            rows = await self.database.read(lambda connection, part=part: connection.execute(part).all())  # type: ignore[misc]
            complete = len(rows) < limit - len(found)
            found += self.set_aside.readable(f"{kind} listed", kind, rows, read, **keys)
            if complete or len(found) >= limit:
                return found
            query = query.where(after(rows[-1]))

    def now(self, connection: Connection) -> int:
        """The database's clock."""
        return self.database.read_clock(connection)
