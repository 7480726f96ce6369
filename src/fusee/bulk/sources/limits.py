"""What a job may read when it was asked for from outside: over the API, or by a run that anyone may create.

Whoever writes code or has the command line can read files and databases anyway; an API key is no such right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusee.errors import Invalid

__all__ = ["SourceLimits"]


class SourceLimits:
    """`folders` whose files may be read, `databases` that may be asked, as a source names them."""

    def __init__(self, folders: Sequence[str] = (), databases: Sequence[str] = ()) -> None:
        self.folders = tuple(folders)
        self.databases = tuple(databases)

    def check(self, source: Mapping[str, Any]) -> None:
        match source.get("kind"):
            case "file":
                self._check_file(source.get("path"))
            case "sql":
                if source.get("url") not in self.databases:
                    raise _refused("that database is not open to it", "databases", self.databases)
            case "quarantine" | "done" as kind:
                raise Invalid(
                    f"a source of kind {kind} is made by re-running a quarantine or undoing a job",
                    field="source",
                )

    def _check_file(self, path: object) -> None:
        if not isinstance(path, str) or "\0" in path:
            raise Invalid("source: path must be the path of a file", field="source")
        real = Path(path).resolve()  # a link out of the folder leads out of it
        if not any(real.is_relative_to(Path(folder).resolve()) for folder in self.folders):
            raise _refused("that file is not in a folder that is open to it", "folders", self.folders)


def _refused(why: str, setting: str, known: Sequence[str]) -> Invalid:
    return Invalid(
        f"source: {why}; executors.bulk.{setting} has {', '.join(known) or 'none'}:"
        " add it there, or create the job in code or with `fusee bulk create`",
        field="source",
    )
