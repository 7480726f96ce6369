"""Rows that this process cannot read: set aside, reported once, and tried again from time to time.

A loop that works on many rows in one transaction must not stop for one of them. When a pass fails because of
a row, its rows are worked on one by one, each in a transaction of its own, and those that fail are left out
of the passes that follow. What is set aside is kept in memory and not in the database, because it is a fact
about this process: a newer version may well read what this one cannot.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from fusee.errors import LeaseLost, StoreUnavailable, Unreadable

__all__ = ["SetAside", "UnreadableRow", "is_about_a_row", "reading"]

TRY_AGAIN_AFTER = 60.0
"""Seconds until a row that was set aside is tried again: someone may have repaired it."""
FORGOTTEN_AFTER = 600.0
"""Seconds: a row that was only met while listing is forgotten when nobody has met it again."""
MOST = 5000
"""Rows of one place that are set aside. Beyond this the loop itself fails, which is the better alarm."""
LONGEST_ERROR = 300

T = TypeVar("T")
Key = Hashable


class UnreadableRow(NamedTuple):
    """A row as it is reported to people."""

    kind: str
    """task, batch, run …"""
    id: int | str
    """Its number, or its name where it has none."""
    error: str


@dataclass(slots=True)
class _Entry:
    row: UnreadableRow
    seen_at: float
    listed: bool


class SetAside:
    """The rows that this process left out, by the place that met them. Shared by all stores of a process, and
    on SQLite by its threads: rows are read in those of the database, and listed on the event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.tell: Callable[[UnreadableRow, bool], None] = lambda row, readable: None
        """Called once when a row is set aside, and once with True when it can be read again; in the thread
        that met it."""
        self._lock = threading.Lock()
        self._places: dict[str, dict[Any, _Entry]] = {}

    def rows(self) -> list[UnreadableRow]:
        """Each row that is set aside now, once."""
        with self._lock:
            self._forget_old()
            found = {(e.row.kind, e.row.id): e.row for place in self._places.values() for e in place.values()}
        return [found[key] for key in sorted(found, key=lambda key: (key[0], str(key[1])))]

    def keys(self, place: str) -> list[Any]:
        """What the passes of this place leave out."""
        with self._lock:
            return list(self._places.get(place, ()))

    def due(self, place: str) -> list[Any]:
        """What this place tries again now."""
        now = self.now()
        with self._lock:
            entries = self._places.get(place, {})
            return [key for key, entry in entries.items() if now - entry.seen_at >= TRY_AGAIN_AFTER]

    def add(self, place: str, key: Key, row: UnreadableRow, *, listed: bool = False) -> None:
        with self._lock:
            entries = self._places.setdefault(place, {})
            if key not in entries and len(entries) >= MOST:
                others = f"{len(entries)} others are set aside already"
                raise Unreadable(row.kind, row.id, f"{others}: {row.error}")
            known = self._known(row)
            entries[key] = _Entry(row, self.now(), listed)
        if not known:
            self.tell(row, False)

    def clear(self, place: str, key: Key) -> None:
        """It was worked on."""
        with self._lock:
            entry = self._places.get(place, {}).pop(key, None)
            known = entry is not None and self._known(entry.row)
        if entry is not None and not known:
            self.tell(entry.row, True)

    async def one_by_one(
        self,
        write: Callable[[Callable[[Connection], T]], Awaitable[T]],
        place: str,
        keys: Iterable[Any],
        kind: str,
        work: Callable[[Connection, Any], T],
        id_of: Callable[[Any], int | str] = int,
    ) -> list[T]:
        """Do `work` for each key in a transaction of its own, and set aside those that fail on their own."""
        done: list[T] = []
        for key in keys:
            try:
                done.append(await write(lambda connection, key=key: work(connection, key)))  # type: ignore[misc]
            except Exception as error:
                if not is_about_a_row(error):
                    raise
                self.add(place, key, _row_of(error, kind, id_of(key)))
            else:
                self.clear(place, key)
        return done

    def readable(
        self,
        place: str,
        kind: str,
        rows: Iterable[Any],
        read: Callable[[Any], T],
        *,
        id_of: Callable[[Any], int | str] = lambda row: int(row.id),
        key_of: Callable[[Any], Key] | None = None,
    ) -> list[T]:
        """`read` of each row that can be read. The others are reported, and left out of the list."""
        found: list[T] = []
        key_of = key_of or id_of
        entries = self._places.get(place, {})
        for row in rows:
            try:
                one = read(row)
            except Exception as error:
                if not is_about_a_row(error):
                    raise
                self.add(place, key_of(row), _row_of(error, kind, id_of(row)), listed=True)
            else:
                found.append(one)
                if entries:
                    self.clear(place, key_of(row))
        return found

    def _known(self, row: UnreadableRow) -> bool:
        self._forget_old()
        same = (row.kind, row.id)
        return any(same == (e.row.kind, e.row.id) for place in self._places.values() for e in place.values())

    def _forget_old(self) -> None:
        oldest = self.now() - FORGOTTEN_AFTER
        for entries in self._places.values():
            for key in [key for key, e in entries.items() if e.listed and e.seen_at < oldest]:
                del entries[key]


def is_about_a_row(error: Exception) -> bool:
    """Whether the content of a row made this error, as opposed to the database or the platform."""
    match error:
        case IntegrityError() | DataError():
            return True
        case DBAPIError() if str(getattr(error.orig, "sqlstate", "")).startswith("22"):
            return True  # asyncpg's data errors (a value too long …) have no class of their own
        case StoreUnavailable() | LeaseLost() | DBAPIError() | sqlite3.Error() | OSError() | MemoryError():
            return False
    return True


def reading(kind: str, row_id: int | str, read: Callable[[], T]) -> T:
    """`read()`; whatever it raises becomes an `Unreadable` that names the row."""
    try:
        return read()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(kind, row_id, _words(error)) from error


def _row_of(error: Exception, kind: str, row_id: int | str) -> UnreadableRow:
    if isinstance(error, Unreadable):
        return UnreadableRow(error.kind, error.row_id, error.why[:LONGEST_ERROR])
    return UnreadableRow(kind, row_id, _words(error))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
