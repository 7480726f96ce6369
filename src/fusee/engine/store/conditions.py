"""Conditions under which a database stores nothing just now, each with a sentence an operator can act on.

They are told apart from mistakes by the database's own codes: what is listed here may succeed later without
any change of the request (503), all else is an error of ours or of the caller.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from fusee.errors import StoreUnavailable

__all__ = ["MYSQL", "POSTGRESQL", "SQLITE", "Condition", "condition_of", "unavailable"]


@dataclass(frozen=True, slots=True)
class Condition:
    sentence: str
    """Names no host, user or file: callers see it."""
    retry_after: int = 2
    """Seconds after which to try again."""
    passing: bool = True
    """Whether waiting at the start of a process may help."""


NO_ANSWER = Condition("the database did not answer")
NO_SLOTS = Condition(
    "the database has no free connection: raise its limit of connections, or lower"
    " database.max_connections of the processes that use it",
    5,
)
DISK_FULL = Condition("the database's disk is full: free or add space", 30)
DISK_BROKEN = Condition("the database cannot read or write its disk: see its log", 30)
NO_MEMORY = Condition("the database is out of memory, or over a limit of its configuration: see its log", 10)
READ_ONLY = Condition(
    "the database is read-only: it is a standby, or was made so; have database.url lead to the primary", 10
)
STARTING_OR_STOPPING = Condition("the database is starting up or shutting down", 5)
TOO_SLOW = Condition(
    "a statement took longer than database.statement_timeout: the database is overloaded, or a lock is held",
    5,
)
LOCKED = Condition("a lock of the database was held for too long by another transaction", 2)
CANNOT_OPEN = Condition(
    "the database's file cannot be opened: does its folder exist, and may this user write there?",
    30,
    passing=False,
)

POSTGRESQL = {
    "25006": READ_ONLY,
    "40001": LOCKED,
    "40P01": LOCKED,
    "53000": NO_MEMORY,
    "53100": DISK_FULL,
    "53200": NO_MEMORY,
    "53300": NO_SLOTS,
    "53400": NO_MEMORY,
    "55P03": LOCKED,
    "57014": TOO_SLOW,
    "57P01": STARTING_OR_STOPPING,
    "57P02": STARTING_OR_STOPPING,
    "57P03": STARTING_OR_STOPPING,
    "57P05": NO_ANSWER,
    "58000": DISK_BROKEN,
    "58030": DISK_BROKEN,
}
"""By SQLSTATE; all of class 08 are a lost connection."""

MYSQL = {
    3: DISK_FULL,  # an error while a file was written: of its temporary folder, too
    1021: DISK_FULL,
    1026: DISK_BROKEN,
    1030: DISK_BROKEN,  # "got error 28 from storage engine" and the like
    1037: NO_MEMORY,
    1038: NO_MEMORY,
    1040: NO_SLOTS,
    1041: NO_MEMORY,
    1053: STARTING_OR_STOPPING,
    1114: DISK_FULL,
    1135: NO_MEMORY,
    1203: NO_SLOTS,
    1205: LOCKED,
    1213: LOCKED,
    1226: NO_SLOTS,
    1290: READ_ONLY,
    1305: LOCKED,
    1317: TOO_SLOW,
    1792: READ_ONLY,
    1836: READ_ONLY,
    1927: NO_ANSWER,
    1969: TOO_SLOW,
    3024: TOO_SLOW,
    4031: NO_ANSWER,
    **dict.fromkeys((0, 1158, 1159, 1160, 1161, 2002, 2003, 2006, 2013, 2014, 2055), NO_ANSWER),
}
"""By error number, of MySQL and of MariaDB."""

SQLITE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_NOMEM: NO_MEMORY,
    sqlite3.SQLITE_READONLY: Condition(
        "the database's file is read-only: let this user write it, and the folder that it is in", 10
    ),
    sqlite3.SQLITE_IOERR: DISK_BROKEN,
    sqlite3.SQLITE_FULL: DISK_FULL,
    sqlite3.SQLITE_CANTOPEN: CANNOT_OPEN,
    sqlite3.SQLITE_PROTOCOL: LOCKED,
}
"""By primary result code."""


def condition_of(error: BaseException | None) -> Condition | None:
    """What a driver's error says of the database; None when it is about the statement."""
    # Any: three drivers, each with a way of its own to carry a code.
    driver: Any = error
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else SQLITE.get(code & 0xFF)
    if type(error).__module__.startswith("asyncmy"):
        number = driver.args[0] if driver.args else -1
        if number in (1026, 1030) and " 28 " in str(error):  # the kernel's number of a full disk
            return DISK_FULL
        return MYSQL.get(number)
    state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    if state:
        return NO_ANSWER if str(state).startswith("08") else POSTGRESQL.get(str(state))
    return NO_ANSWER if isinstance(error, OSError | TimeoutError) else None


def unavailable(condition: Condition, error: BaseException | None) -> StoreUnavailable:
    """The condition, with the database's own words for the log."""
    words = str(error).splitlines()
    said = words[0] if words else type(error).__name__
    return StoreUnavailable(
        f"{condition.sentence} ({said})",
        public=condition.sentence,
        retry_after=condition.retry_after,
        passing=condition.passing,
    )
