"""Exit codes, and which error has which."""

from __future__ import annotations

from enum import IntEnum

import click

from fusee.errors import (
    ConfigError,
    Conflict,
    Denied,
    FuseeError,
    Invalid,
    NotFound,
    StoreUnavailable,
    TooLarge,
)

__all__ = ["Exit", "Failure", "failure_of", "meanings"]

# Packages whose errors are messages of the database: a wrong password, a database that does not exist.
DRIVERS = ("sqlalchemy", "sqlite3", "asyncpg", "asyncmy")


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNSUCCESSFUL = 5
    UNAVAILABLE = 6
    TIMED_OUT = 124
    INTERRUPTED = 130


def meanings() -> dict[Exit, str]:
    """What each code means, for the help and the docs."""
    return {
        Exit.OK: "done",
        Exit.FAILED: "the command failed",
        Exit.USAGE: "the command line is wrong",
        Exit.NOT_FOUND: "not found: no such object or file",
        Exit.REFUSED: "refused: not acceptable, or in a state that does not allow it",
        Exit.UNSUCCESSFUL: "what was waited for did not succeed",
        Exit.UNAVAILABLE: "the database is not available",
        Exit.TIMED_OUT: "did not end within the wait timeout",
        Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    }


class Failure(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, exit: Exit = Exit.FAILED, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.exit = exit
        self.kind = kind or exit.name.lower()


def failure_of(error: BaseException) -> Failure | None:
    """An error as one message and an exit code; None for an unexpected error."""
    match error:
        case Failure():
            return error
        case click.Abort() | KeyboardInterrupt():
            return Failure("interrupted", Exit.INTERRUPTED)
        case click.UsageError():
            return Failure(error.format_message(), Exit.USAGE)
        case click.ClickException():
            return Failure(error.format_message())
        case NotFound():
            return Failure(str(error), Exit.NOT_FOUND)
        case Invalid():
            return Failure(str(error), Exit.REFUSED, kind="invalid")
        case Conflict():
            return Failure(str(error), Exit.REFUSED, kind="conflict")
        case Denied() | TooLarge():
            return Failure(str(error), Exit.REFUSED)
        case StoreUnavailable():
            return Failure(str(error), Exit.UNAVAILABLE)
        case ConfigError():
            return Failure(str(error), kind="config")
        case FuseeError():
            return Failure(str(error))
        case TimeoutError():
            return Failure(str(error) or "timed out", Exit.TIMED_OUT)
        case _ if type(error).__module__.partition(".")[0] in DRIVERS:
            return Failure(_database_said(error), Exit.UNAVAILABLE)
    return None


def _database_said(error: BaseException) -> str:
    """The database's own words, without the statement and the link that SQLAlchemy adds."""
    said = getattr(error, "orig", None) or error
    return f"the database reported an error: {str(said).splitlines()[0]}"
