"""Opening files that a source reads: once, with every check made on the open file and not on its path.

A path can be made to lead elsewhere between a check and the opening; a descriptor cannot.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fusee.errors import Invalid

__all__ = ["DownloadFolder", "open_beside", "open_source"]

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""O_NONBLOCK: opening a pipe must not wait for a writer. Files do not mind it."""
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
F_GETPATH = 50
"""Of macOS, which has no /proc."""
KEPT = 7 * 86400.0
"""Seconds that a fetched file is kept after its last use."""


def open_source(path: Path, within: str | None = None) -> BinaryIO:
    """Open a file for reading; raises `Invalid` when it lies outside of the folder `within`."""
    try:
        descriptor = os.open(path, _READ)
    except ValueError as error:  # a NUL in it
        raise OSError(str(error)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        if within is not None:
            _check_within(descriptor, path, within)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


@contextmanager
def open_beside(file: BinaryIO, path: Path, within: str | None) -> Iterator[int]:
    """The descriptor of the folder in which the open file lies; the one of its path when any will do."""
    folder = path.parent if within is None else Path(_path_of(file.fileno())).parent
    descriptor = os.open(folder, _FOLDER)
    try:
        if within is not None:
            _check_within(descriptor, folder, within)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_within(descriptor: int, path: Path, within: str) -> None:
    if not Path(_path_of(descriptor)).is_relative_to(Path(within).resolve()):
        raise Invalid(
            f"source: {path} leads out of {within}, the folder in which this job may read files:"
            " put the file itself there, or create the job in code or with `fusee bulk create`",
            field="source",
        )


def _path_of(descriptor: int) -> str:
    """Where an open file lies, as the kernel says."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except FileNotFoundError:
        import fcntl

        answer = fcntl.fcntl(descriptor, F_GETPATH, bytes(1024))
        return os.fsdecode(answer.split(b"\0", 1)[0])


class DownloadFolder:
    """A folder of ours for what is fetched: nobody else can read it, or put a file into it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()).resolve() / f"fusee-sources-{os.geteuid()}"

    @contextmanager
    def open(self) -> Iterator[int]:
        """Its descriptor; raises `OSError` when the folder is not ours alone."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700, parents=True)
        descriptor = os.open(self.path, _FOLDER | os.O_NOFOLLOW)
        try:
            seen = os.fstat(descriptor)
            if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
                raise OSError(
                    f"the folder for fetched sources, {self.path}, is not ours alone (user {seen.st_uid},"
                    f" mode {stat.S_IMODE(seen.st_mode):o}): remove it, or set TMPDIR to a folder of"
                    " this worker"
                )
            yield descriptor
        finally:
            os.close(descriptor)

    def has(self, name: str) -> bool:
        """Whether the file is there; it counts as used now."""
        with self.open() as folder:
            try:
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    def create(self) -> tuple[str, BinaryIO]:
        """(the name, the file) of a new file that is being fetched."""
        name = f"{secrets.token_hex(16)}.half"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.open() as folder:
            return name, os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb")

    def keep(self, half: str, name: str) -> None:
        """What was fetched is whole: give it its name."""
        with self.open() as folder:
            os.replace(half, name, src_dir_fd=folder, dst_dir_fd=folder)

    def drop(self, name: str) -> None:
        with suppress(OSError), self.open() as folder:
            os.unlink(name, dir_fd=folder)

    def prune(self) -> None:
        """Delete what nobody has used for a week. Whoever still reads such a file keeps it open."""
        oldest = time.time() - KEPT
        with self.open() as folder, os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.name, dir_fd=folder)
