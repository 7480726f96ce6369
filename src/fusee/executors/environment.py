"""The environment of a program: what the worker passes on of its own, and what a payload may set.

Both are lists of what is allowed. A list of what is refused cannot be complete: every interpreter has its own
variables that load code (`PERL5OPT`, `PYTHONWARNINGS`, `NODE_OPTIONS`, `GIT_SSH_COMMAND` …).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from fusee.config.environment_names import names_in

__all__ = ["INHERIT", "SETTABLE", "Settable", "inherited", "names_program"]

INHERIT = ("HOME", "LANG", "LC_*", "PATH", "TMPDIR", "TZ")
SETTABLE = {"*": "JOB_*"}
OURS = "FUSEE_"
"""The prefix of our own variables, which may hold the database's password: no pattern covers these."""


class Settable:
    """The names that the `env` of a payload may set, by program."""

    def __init__(self, by_program: Mapping[str, str]) -> None:
        self._by_program = {program: names_in(text) for program, text in by_program.items()}

    def check(self, program: str, found: str | None, names: Iterable[str]) -> None:
        """Refuse, with a ValueError, a name that is not allowed for the program, whose file is `found`.

        None is for a caller on another machine, which cannot know where a program is there: only what no
        entry could allow is refused then.
        """
        allowed = [
            pattern
            for entry, patterns in self._by_program.items()
            if entry == "*" or names_program(entry, program, found)
            for pattern in patterns
        ]
        for name in names:
            if not any(_covers(pattern, name) for pattern in allowed):
                raise ValueError(
                    f"env may not set {name!r:.100} for {program!r:.100}: executors.shell.settable allows"
                    f" {', '.join(allowed) or 'nothing'} there; add the name for this program to that setting"
                    " of servers and workers, or set it for every program in executors.shell.environment"
                )


def inherited(patterns: Sequence[str]) -> dict[str, str]:
    """Return what of the worker's environment these names and patterns cover."""
    base = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    return base | {
        name: value
        for name, value in os.environ.items()
        if value and any(_covers(pattern, name) for pattern in patterns)
    }


def names_program(entry: str, program: str, found: str | None) -> bool:
    """`backup` names that program of PATH; `/opt/jobs/backup` that file; `/opt/jobs/` all files in it."""
    if "/" not in entry:
        return program == entry
    if found is None:
        return entry.endswith("/") or entry.rpartition("/")[2] == program.rpartition("/")[2]
    if entry.endswith("/"):
        return found.startswith(os.path.normpath(entry) + "/")
    return found == os.path.normpath(entry)


def _covers(pattern: str, name: str) -> bool:
    if "*" not in pattern:
        return name == pattern
    if name.startswith(OURS):
        return False
    # fnmatch does not backtrack; a pattern joined from parts would, and names come from callers.
    return re.fullmatch("[A-Za-z0-9_]+", name) is not None and fnmatchcase(name, pattern)
