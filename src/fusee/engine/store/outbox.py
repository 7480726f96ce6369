"""The outbox: one row per finished run that has an owner, in the same transaction, for the aggregator.

Reacting to runs that have ended: one transaction takes a handful of outbox rows and does all that follows.

Rows are taken with their locks and deleted with the reaction: those of a dispatcher that dies stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Row,
    Select,
    bindparam,
    delete,
    insert,
    literal,
    select,
    union_all,
)

from fusee.engine.owners import Owners, Reaction
from fusee.engine.store.context import StoreContext
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.tables import outbox
from fusee.engine.store.wakes import CANCEL, DELAYED, ENDED, PENDING

__all__ = ["PARENT_TOPIC", "Aggregated", "Aggregation", "Outbox"]

PARENT_TOPIC = "parent"
"""Rows about runs that may have started something of another kind and wait for its end."""


class Outbox:
    def __init__(self, context: StoreContext, owners: Owners) -> None:
        self.context = context
        self.owners = owners

    def add_ends(self, connection: Connection, runs: Sequence[tuple[str, int]]) -> None:
        """(kind, run id) of runs that ended in this transaction in any way but plain success."""
        self.add(connection, [(self.owners.end_topic(kind), run_id) for kind, run_id in runs])

    def add(self, connection: Connection, rows: Sequence[tuple[str, int]]) -> None:
        """(topic, id): what the reader of that topic has to look at when this transaction has committed.

        Each row is new, never merged with an older one about the same run: a reader that deletes the older
        row at this moment may have looked at the run before it ended.
        """
        if rows:
            connection.execute(
                insert(outbox), [{"kind": topic, "run_id": row_id, "many": 0} for topic, row_id in rows]
            )
            self.context.notify(connection, ENDED)

    def add_fires(self, connection: Connection, topic: str, fires: Sequence[tuple[int, int]]) -> None:
        """(id, fire time): as `add`, about something that ended for one fire time."""
        if fires:
            connection.execute(
                insert(outbox), [{"kind": topic, "run_id": one, "fire_time": at} for one, at in fires]
            )
            self.context.notify(connection, ENDED)


@dataclass(frozen=True, slots=True)
class Aggregated:
    """How many outbox rows of each topic were taken."""

    counts: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.counts.values())


class Aggregation:
    """Each topic is read in a transaction of its own, so that owners' rows are always locked in one order."""

    def __init__(self, context: StoreContext, owners: Owners) -> None:
        self.context = context
        self.owners = owners

    async def aggregate(self, limit: int = 500, region: str = "") -> Aggregated:
        """Take up to `limit` rows of each topic and react. With a region, rows of other regions are left."""
        counts: dict[str, int] = {}
        for topic in await self.context.database.read(self._topics_waiting):
            counts[topic] = await self._react_to(topic, limit, region)
        if any(counts.values()):
            for hint in (PENDING, DELAYED, ENDED, CANCEL):
                self.context.wakes.fire(hint)
        return Aggregated(counts)

    async def _react_to(self, topic: str, limit: int, region: str) -> int:
        """How many rows were taken. Rows that cannot be read are set aside and tried one by one later."""
        place = f"outbox {topic}"
        try:
            taken = await self.context.write_aloud(
                lambda connection: self._react(connection, topic, limit, region)
            )
            again = self.context.set_aside.due(place)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            taken = 0
            again = await self.context.database.read(
                lambda connection: list(
                    connection.execute(self._rows(topic, limit, region, [outbox.c.id])).scalars()
                )
            )
        if again:
            taken += sum(
                await self.context.set_aside.one_by_one(
                    self.context.write_aloud,
                    place,
                    again,
                    "notice",
                    lambda connection, row: self._react(connection, topic, 1, region, only=row),
                )
            )
        return taken

    def _rows(self, topic: str, limit: int, region: str, columns: Sequence[Any]) -> Select[Any]:
        mine = [outbox.c.kind == topic]
        if topic != PARENT_TOPIC:
            owner, _ = self.owners.reader(topic)
            mine += owner.of_this_region(topic, region)
        query = select(*columns).where(*mine).order_by(outbox.c.id).limit(limit)
        aside = self.context.set_aside.keys(f"outbox {topic}")
        return query.where(outbox.c.id.not_in(aside)) if aside else query

    def _react(
        self, connection: Connection, topic: str, limit: int, region: str, *, only: int | None = None
    ) -> int:
        """As `_react_to`, in one transaction."""
        query = self._rows(topic, limit, region, [outbox])
        if only is not None:
            query = select(outbox).where(outbox.c.id == only)
        skip_locked = self.context.database.capabilities.skip_locked
        rows = connection.execute(query.with_for_update(skip_locked=skip_locked)).all()
        if not rows:
            return 0
        react: Reaction = self._parents if topic == PARENT_TOPIC else self.owners.reader(topic)[1]
        again = react(connection, rows, self.context.now(connection))
        # What is to be looked at again stays, and does not count as done: the next pass may come later.
        taken = [row.id for row in rows if row.run_id not in again]
        self._delete(connection, taken)
        return len(taken)

    def _parents(self, connection: Connection, rows: Sequence[Row[Any]], now: int) -> Collection[int]:
        run_ids = sorted({row.run_id for row in rows})
        again: set[int] = set()
        for owner in self.owners:
            again.update(owner.parents_due(connection, run_ids, now))
        return again

    def _delete(self, connection: Connection, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self.context.database.capabilities.returning:
            connection.execute(delete(outbox).where(outbox.c.id.in_(ids)))
        else:
            # One by one: of a table that is mostly empty MySQL reads all for an IN, waiting for the rows that
            # other aggregators hold, who wait for our tasks. (Three busy dispatchers: 10 deadlocks, not 67.)
            connection.execute(_DELETE, [{"b_id": row_id} for row_id in ids])

    def _topics_waiting(self, connection: Connection) -> list[str]:
        """Which topics have something to look at; a look at the head of each."""
        return list(connection.execute(self._heads).scalars())

    @cached_property
    def _heads(self) -> CompoundSelect[Any]:
        return union_all(*(_head(topic) for topic in (*self.owners.topics, PARENT_TOPIC)))


_DELETE = delete(outbox).where(outbox.c.id == bindparam("b_id"))


def _head(topic: str) -> Select[Any]:
    head = select(literal(topic).label("kind")).where(outbox.c.kind == topic).limit(1).subquery()
    return select(head.c.kind)
