"""Records of a file: lines, CSV or JSONL, found by number through an index of offsets.

The index contains the offset of every 1,024th record. The file is read once to make it. It is stored next to
the file (`<file>.fusee-index`) or, when that cannot be written, in memory: resuming at item 9,000,000,000 is
a seek. Compressed files do not allow seeks: they are read from the start up to the position of the reader.
"""

from __future__ import annotations

import csv
import gzip
import os
import secrets
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec

from fusee.bulk.sources.base import ABSENT, BadItem
from fusee.bulk.sources.limits import SizeLimits
from fusee.bulk.sources.opening import open_beside, open_source

__all__ = ["FORMATS", "Layout", "RecordFile", "RecordIndex"]

FORMATS = ("lines", "csv", "jsonl")
STEP = 1024
MAGIC = b"fusee-index-1\n"

MOST_REMEMBERED = 16

_decode = msgspec.json.Decoder().decode
_remembered: dict[tuple[Path, Layout], RecordIndex] = {}


@dataclass(frozen=True, slots=True)
class Layout:
    """The format of the records in a file."""

    format: str = "lines"
    compressed: bool = False
    header: bool = True
    """CSV: the first record names the columns; without a header, items are lists."""
    delimiter: str = ","
    encoding: str = "utf-8"
    record: int = 0
    """The bytes of each record with its line end, when all have the same length: then no index is needed."""

    @property
    def headed(self) -> bool:
        return self.format == "csv" and self.header

    def item(self, raw: bytes, columns: Sequence[str] | None) -> Any:
        """Returns the bytes of a record as the item that the handler receives."""
        text = raw.rstrip(b"\r\n")
        try:
            if self.format == "lines":
                return text.decode(self.encoding)
            if not text.strip():
                return ABSENT
            if self.format == "jsonl":
                return _decode(text)
            (row,) = csv.reader([raw.decode(self.encoding)], delimiter=self.delimiter)
            if columns is None:
                return row
            if len(row) != len(columns):
                return BadItem(f"the record has {len(row)} fields, the header {len(columns)}", text[:500])
            return dict(zip(columns, row, strict=True))
        except (ValueError, csv.Error) as error:  # also UnicodeDecodeError and msgspec's
            return BadItem(f"not {self.format}: {error}", text[:500])


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The offset of every 1,024th record."""

    count: int
    offsets: array[int]
    stamp: tuple[int, int]
    """The file's size and modification time when it was indexed."""

    @classmethod
    def load(cls, folder: int, name: str, stamp: tuple[int, int], layout: Layout) -> RecordIndex | None:
        """The index beside the file, when it is one of this very file; `folder` is a descriptor."""
        try:
            descriptor = os.open(_beside(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                # A byte unpacks to at most 1,032, and each is a record at most: no index is longer.
                data = file.read(1024 + stamp[0] * 1032 // STEP * 8)
            if not data.startswith(MAGIC + _mark(layout)):
                return None
            body = data[len(MAGIC) + 32 :]
            size, changed, count = struct.unpack_from("<QqQ", body)
            offsets = array("Q")
            offsets.frombytes(body[24:])
        except (OSError, ValueError, struct.error):
            return None
        whole = len(offsets) == max(1, -(-count // STEP))
        return cls(count, offsets, stamp) if (size, changed) == stamp and whole else None

    def save(self, folder: int, name: str, layout: Layout) -> bool:
        head = struct.pack("<QqQ", *self.stamp, self.count)
        half = f"{_beside(name)}.{secrets.token_hex(8)}"
        try:
            # Never through a link that someone put there: it would overwrite what the link leads to.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(half, flags, 0o644, dir_fd=folder), "wb") as file:
                file.write(MAGIC + _mark(layout) + head + self.offsets.tobytes())
            os.replace(half, _beside(name), src_dir_fd=folder, dst_dir_fd=folder)  # whole, or not at all
        except OSError:
            return False
        return True


class RecordFile:
    """An open file of records; not for two threads at once.

    It is opened once: whatever its path leads to later, this reads the file that was checked.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        *,
        within: str | None = None,
        limits: SizeLimits = SizeLimits(),  # noqa: B008
    ) -> None:
        self.path = path
        self.layout = layout
        self.within = within
        """The folder that it must not lead out of."""
        self.limits = limits
        self._longest = limits.record
        self._plain = layout.format != "csv" and not layout.compressed
        """Whether a line is a record, and its length all that there is to check."""
        self.index: RecordIndex | None = None
        self.columns: list[str] | None = None
        self._raw: BinaryIO | None = None
        self._file: IO[bytes] | None = None
        self._at = 0
        """Bytes of a compressed file that were unpacked."""
        self.taken = 0
        """Bytes of the records that were read last."""
        self._next = 0
        self._begin = 0
        """Where record 0 begins: after the header."""

    def stamp(self) -> tuple[int, int]:
        assert self._raw is not None
        seen = os.fstat(self._raw.fileno())
        return seen.st_size, seen.st_mtime_ns

    def open(self) -> None:
        if self._raw is None:
            self._raw = open_source(self.path, self.within)
            self._begun()

    def _begun(self) -> None:
        """At the first record."""
        assert self._raw is not None
        self._raw.seek(0)
        opened: Any = gzip.GzipFile(fileobj=self._raw) if self.layout.compressed else self._raw
        self._file = opened
        self._at = self._next = 0
        if self.layout.headed:
            header = self._record()
            if not header:
                raise ValueError("the file has no header")
            (self.columns,) = csv.reader(
                [header.decode(self.layout.encoding).lstrip("\ufeff")], delimiter=self.layout.delimiter
            )
        self._begin = opened.tell()

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = self._file = None

    def bounds(self) -> int:
        """Returns how many records there are; makes the index if there is none."""
        self.open()
        if self.layout.record:
            size = self.stamp()[0] - self._begin
            if size % self.layout.record:
                raise ValueError(
                    f"the file has {size} bytes, not a multiple of record = {self.layout.record}"
                )
            return size // self.layout.record
        if self.index is None:
            self.index = self._known() or self._made()
        return self.index.count

    def _known(self) -> RecordIndex | None:
        stamp = self.stamp()
        kept = _remembered.get((self.path, self.layout))
        if kept is not None and kept.stamp == stamp:
            return kept
        assert self._raw is not None
        with open_beside(self._raw, self.path, self.within) as folder:
            return RecordIndex.load(folder, self.path.name, stamp, self.layout)

    def read(self, first: int, end: int) -> list[Any]:
        """Returns records `[first, end)`; fewer at the end of the file."""
        self.open()
        self._seek(first)
        found: list[Any] = []
        item, columns = self.layout.item, self.columns
        taken, most = 0, self.limits.block
        while self._next < end:
            raw = self._record()
            if not raw:
                break
            taken += len(raw)
            if taken > most:
                raise ValueError(
                    f"records {first} to {self._next} hold more than {most:,} bytes together:"
                    " raise executors.bulk.max_record, of which 64 are held at once"
                )
            found.append(item(raw, columns))
            self._next += 1
        self.taken = taken
        return found

    def _seek(self, number: int) -> None:
        assert self._file is not None
        if self._next == number:
            return
        if self.layout.record:
            self._file.seek(self._begin + number * self.layout.record)
            self._next = number
            return
        if self.layout.compressed:
            if number < self._next:
                self._begun()
        elif self.index is not None and not self._next <= number < self._next + STEP:
            step = min(number // STEP, len(self.index.offsets) - 1)
            self._file.seek(self.index.offsets[step])
            self._next = step * STEP
        elif number < self._next:
            self._file.seek(self._begin)
            self._next = 0
        while self._next < number and self._record():
            self._next += 1

    def _record(self) -> bytes:
        """Returns the next record with its line end; in CSV a quoted field may contain line ends."""
        assert self._file is not None
        if self.layout.record:
            return self._file.read(self.layout.record)
        line = self._file.readline(self._longest + 1)
        return line if self._plain and len(line) <= self._longest else self._checked(line)

    def _checked(self, line: bytes) -> bytes:
        """The whole record that begins with this line; raises a ValueError when a limit is exceeded."""
        assert self._file is not None
        most = self._longest
        if self.layout.format == "csv" and line.count(b'"') % 2:
            parts, size, whole = [line], len(line), False
            while not whole and size <= most and (more := self._file.readline(most + 1)):
                parts.append(more)
                size += len(more)
                whole = more.count(b'"') % 2 == 1
            line = b"".join(parts)
        if len(line) > most:
            quote = " (or a quote is not closed)" if self.layout.format == "csv" else ""
            raise ValueError(
                f"record {self._next} is longer than {most:,} bytes{quote}: raise executors.bulk.max_record"
            )
        if self.layout.compressed:
            self._at += len(line)
            if self._at > self.limits.unpacked:
                raise ValueError(
                    f"it unpacks to more than {self.limits.unpacked:,} bytes: raise"
                    " executors.bulk.max_unpacked, or split it"
                )
        return line

    def _made(self) -> RecordIndex:
        """Read the whole file once; returns its index."""
        assert self._file is not None
        stamp = self.stamp()
        self._begun()
        offsets, count = array("Q"), 0
        at = self._begin
        while True:
            if count % STEP == 0:
                offsets.append(at)
            raw = self._record()
            if not raw:
                break
            at += len(raw)
            count += 1
            self._next = count
        if len(offsets) > max(1, -(-count // STEP)):
            offsets.pop()
        self._begun()
        index = RecordIndex(count, offsets, stamp)
        assert self._raw is not None
        with open_beside(self._raw, self.path, self.within) as folder:
            saved = index.save(folder, self.path.name, self.layout)
        if not saved:
            while len(_remembered) >= MOST_REMEMBERED:
                _remembered.pop(next(iter(_remembered)), None)
            _remembered[self.path, self.layout] = index
        return index


def _beside(name: str) -> str:
    return f"{name}.fusee-index"


def _mark(layout: Layout) -> bytes:
    """Returns the part of a layout that decides where records begin."""
    return f"{layout.format} {layout.headed} {layout.compressed}".encode().ljust(32)[:32]
