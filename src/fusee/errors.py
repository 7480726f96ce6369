"""What can go wrong, as one tree.

    FuseeError
    ├── ConfigError          a setting is wrong; the text names the file and line
    ├── Invalid              the caller's input cannot be accepted (HTTP 422)
    │   └── UnknownHandler   no such handler is registered here
    ├── NotFound             no such thing in this namespace (404)
    ├── Conflict             the thing is in a state that does not allow this (409)
    ├── Denied               no key, a wrong key, or a role that may not (401, 403)
    ├── TooManyTries         too many wrong keys from one address (429)
    ├── TooLarge             over a size limit (413)
    ├── RunFailed            a run that was awaited ended in another way than success
    ├── LeaseLost            this worker no longer owns what it wrote about
    ├── NoDatabase           this worker has no database, and the call does not travel over the broker
    ├── Unreadable           a row of the database that this version cannot read (500)
    └── StoreUnavailable     the database can store nothing just now; the same call may succeed later (503)

Every message says what to do.
"""

from __future__ import annotations

from typing import Protocol

__all__ = [
    "ConfigError",
    "Conflict",
    "Denied",
    "EndedRun",
    "FuseeError",
    "Invalid",
    "LeaseLost",
    "NoDatabase",
    "NotFound",
    "RunFailed",
    "StoreUnavailable",
    "TooLarge",
    "TooManyTries",
    "UnknownHandler",
    "Unreadable",
]


class FuseeError(Exception):
    """Anything Fusee raises on purpose."""


class ConfigError(FuseeError):
    """A setting is wrong."""


class Invalid(FuseeError, ValueError):
    """The caller's input cannot be accepted; `field` points at the part that is wrong.

    Also a ValueError, since models raise it where a value is checked."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class UnknownHandler(Invalid):
    """No handler of that name is registered."""


class NoDatabase(FuseeError):
    """This worker has no database, and the call does not travel over the broker."""


class NotFound(FuseeError):
    """No such thing in this namespace."""


class Conflict(FuseeError):
    """The thing exists, in a state that does not allow this."""


class Denied(FuseeError):
    """Not allowed; `known` tells a caller without a valid key (401) from one without the role (403)."""

    def __init__(self, message: str, *, known: bool = False) -> None:
        super().__init__(message)
        self.known = known


class TooManyTries(FuseeError):
    """Too many wrong keys came from one address; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooLarge(FuseeError):
    """Over a size limit."""


class EndedRun(Protocol):
    """A run, as far as an error tells of it; the model of a run is above the errors."""

    @property
    def id(self) -> int: ...
    @property
    def handler(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...


class RunFailed(FuseeError):
    """A run that was awaited ended in another way than success; `run` tells how."""

    def __init__(self, run: EndedRun) -> None:
        super().__init__(
            f"run {run.id} ({run.handler}) ended {run.status}: {run.error or run.reason or 'no reason kept'}"
        )
        self.run = run


class LeaseLost(FuseeError):
    """A fenced write changed nothing: another session owns the run, or the run has ended."""


class Unreadable(FuseeError):
    """A row holds something that this version cannot read."""

    def __init__(self, kind: str, row_id: int | str, why: str) -> None:
        super().__init__(
            f"{kind} {row_id} cannot be read by this version of Fusee ({why}): upgrade this process if a"
            " newer version wrote it, else repair or delete it"
        )
        self.kind = kind
        self.row_id = row_id
        self.why = why


class StoreUnavailable(FuseeError):
    """The database did not answer, or can store nothing just now.

    `public` is what callers may see: the message may name hosts and users.
    """

    def __init__(
        self,
        message: str,
        *,
        public: str = "the database did not answer",
        retry_after: int = 2,
        passing: bool = True,
    ) -> None:
        super().__init__(message)
        self.public = public
        self.retry_after = retry_after
        self.passing = passing
        """Whether waiting may help, without anyone doing something about it."""
