"""What names and sizes are allowed; one place for every surface."""

from __future__ import annotations

import re

from fusee.errors import Invalid

__all__ = [
    "BATCH_HANDLER",
    "BUILT_IN",
    "KNOWN_NAMES",
    "LONGEST_KEY",
    "LONGEST_TIMEOUT",
    "MOST_PAYLOAD",
    "NAME",
    "PREFIX",
    "RESERVED",
    "WORKFLOW_HANDLER",
    "check_key",
    "check_name",
    "check_optional_key",
    "check_prefix",
    "check_submittable",
    "check_within",
]

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}"
PREFIX = f"(?:{NAME})?"
_NAME = re.compile(NAME)

WORKFLOW_HANDLER = "fusee.workflow"
"""The built-in handler that starts a workflow and waits for its end."""
BATCH_HANDLER = "fusee.batch"
"""The built-in handler that starts a batch and waits for its end."""
BUILT_IN = {WORKFLOW_HANDLER: "workflow", BATCH_HANDLER: "batch"}
"""Built-in handler → the field that names what it starts."""

LONGEST_KEY = 200
LONGEST_TIMEOUT = 30 * 86400.0
MOST_PAYLOAD = 1024 * 1024


# Names repeat: remembering good ones saves a match for each of a million runs. Bounded: users choose them.
KNOWN_NAMES: set[str] = set()
_MOST_REMEMBERED = 10_000


def check_name(value: object, what: str) -> str:
    """A handler, queue, worker or namespace: ASCII letters, digits and `_ . : / -`, at most 128."""
    if type(value) is str and value in KNOWN_NAMES:
        return value
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Invalid(
            f"{what} must be 1 to 128 letters, digits or _ . : / - and start with a letter, digit or _,"
            f" not {_shown(value)}",
            field=what,
        )
    if len(KNOWN_NAMES) < _MOST_REMEMBERED:
        KNOWN_NAMES.add(value)
    return value


RESERVED = ("fusee.", "batch.", "bulk.", "look.")
"""How names of handlers begin that only the platform starts: for targets, segments, callbacks and looks."""
_STARTERS = ("fusee.bulk",)
"""Those of them that anyone may start: they check what they are given as the API does."""
_INSTEAD = {
    "fusee.workflow": "start the workflow itself, or name it as `workflow` of a task or a node",
    "fusee.bulk_http": "create a bulk job",
    "bulk.": "create a bulk job, or a run or task with the handler `fusee.bulk`",
    "": "create a batch, or name it as `batch` of a task",
}


def check_submittable(handler: str) -> None:
    """Refuse a handler of the platform itself: called directly, it would do its work for no job or batch."""
    if handler.startswith(RESERVED) and handler not in _STARTERS:
        instead = next(text for name, text in _INSTEAD.items() if handler.startswith(name))
        raise Invalid(f"handler {handler!r} is one that only the platform starts: {instead}", field="handler")


def check_prefix(value: str, what: str) -> str:
    """How a name begins: as a name, or nothing at all."""
    return value if value == "" else check_name(value, what)


def check_key(value: object, what: str) -> str:
    """An idempotency key: printable, at most 200 characters, no space at its ends (MySQL ignores one)."""
    good = isinstance(value, str) and 0 < len(value) <= LONGEST_KEY and value.isprintable()
    if not isinstance(value, str) or not good or value != value.strip():
        raise Invalid(
            f"{what} must be 1 to {LONGEST_KEY} printable characters without a space at either end,"
            f" not {_shown(value)}",
            field=what,
        )
    return value


def check_optional_key(value: str | None) -> str | None:
    """An idempotency key that the caller may leave out."""
    return None if value is None else check_key(value, "idempotency_key")


def check_within(what: str, value: int, most: int) -> None:
    """A number of things to return, from 1 to `most`."""
    if not 1 <= value <= most:
        raise Invalid(f"{what} must be from 1 to {most}", field=what)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
