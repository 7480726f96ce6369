"""Edits that must see each other take turns: a row to lock, which ends with the transaction."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.tables import edit_locks

__all__ = ["EditLock", "take_turn"]


class EditLock:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    def take_turn(self, connection: Connection, what: str) -> None:
        """Wait until no other transaction of this namespace is at `what`."""
        take_turn(connection, f"{what}:{self.context.namespace}")

    def try_turn(self, connection: Connection, name: str) -> bool:
        """Hold the row of this name until the transaction ends; false when another transaction holds it."""
        mine = select(edit_locks.c.name).where(edit_locks.c.name == name)
        locked = mine.with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        if connection.execute(locked).one_or_none() is not None:
            return True
        if connection.execute(mine).one_or_none() is not None:
            return False
        try:
            with connection.begin_nested():
                connection.execute(insert(edit_locks).values(name=name))
            return True
        except IntegrityError:
            return False


def take_turn(connection: Connection, name: str) -> None:
    """Hold the row of this name until the transaction ends."""
    query = select(edit_locks.c.name).where(edit_locks.c.name == name).with_for_update()
    if connection.execute(query).one_or_none() is not None:
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(edit_locks).values(name=name))
    except IntegrityError:  # someone else was first; the row is there now
        connection.execute(query).one()
