"""What a job may read when it was asked for from outside: over the API, or by a run that anyone may create.

Whoever writes code or has the command line can read files and databases anyway; an API key is no such right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusee.errors import Invalid

__all__ = ["SizeLimits", "SourceLimits"]


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """What a source may hold, in bytes: 204 kB of gzip can become hundreds of megabytes."""

    download: int = 10 * 2**30
    """Fetched from one URL."""
    unpacked: int = 10 * 2**30
    """Out of one compressed file."""
    record: int = 4 * 2**20

    @property
    def block(self) -> int:
        """Records are read in blocks; this is how much of them is held at once."""
        return 64 * self.record

    def check_download(self, url: str, size: int) -> None:
        if size > self.download:
            raise Invalid(
                f"source: {url} has more than {self.download:,} bytes: raise executors.bulk.max_download"
                " (on servers and workers), or split it",
                field="source",
            )


class SourceLimits:
    """`folders` whose files may be read, `databases` that may be asked, as a source names them."""

    def __init__(self, folders: Sequence[str] = (), databases: Sequence[str] = ()) -> None:
        self.folders = tuple(folders)
        self.databases = tuple(databases)

    def confine(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the source as it may be read: of a file, with the folder that it must not lead out of.

        Workers check that again whenever they open the file, which may have been replaced meanwhile.
        """
        match source.get("kind"):
            case "file":
                return {**source, "within": self._folder_of(source.get("path"))}
            case "sql":
                if source.get("url") not in self.databases:
                    raise _refused("that database is not open to it", "databases", self.databases)
            case "quarantine" | "done" as kind:
                raise Invalid(
                    f"a source of kind {kind} is made by re-running a quarantine or undoing a job",
                    field="source",
                )
        return source

    def _folder_of(self, path: object) -> str:
        if not isinstance(path, str) or "\0" in path:
            raise Invalid("source: path must be the path of a file", field="source")
        real = Path(path).resolve()  # a link out of the folder leads out of it
        for folder in self.folders:
            if real.is_relative_to(Path(folder).resolve()):
                return str(Path(folder).absolute())
        raise _refused("that file is not in a folder that is open to it", "folders", self.folders)


def _refused(why: str, setting: str, known: Sequence[str]) -> Invalid:
    return Invalid(
        f"source: {why}; executors.bulk.{setting} has {', '.join(known) or 'none'}:"
        " add it there, or create the job in code or with `fusee bulk create`",
        field="source",
    )
