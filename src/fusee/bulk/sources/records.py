"""Records of a file: lines, CSV or JSONL, found by number through an index of offsets.

The index holds the offset of every 1,024th record. It is made by reading the file once, and kept beside the
file (`<file>.fusee-index`) or, where that cannot be written, in memory: resuming at item 9,000,000,000 seeks.
Compressed files cannot be sought in: they are read from the start up to where the reader has to be.
"""

from __future__ import annotations

import csv
import gzip
import os
import struct
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from fusee.bulk.sources.base import ABSENT, BadItem

__all__ = ["FORMATS", "Layout", "RecordFile", "RecordIndex"]

FORMATS = ("lines", "csv", "jsonl")
STEP = 1024
MAGIC = b"fusee-index-1\n"

MOST_REMEMBERED = 16

_decode = msgspec.json.Decoder().decode
_remembered: dict[tuple[Path, Layout], RecordIndex] = {}


@dataclass(frozen=True, slots=True)
class Layout:
    """How records stand in a file."""

    format: str = "lines"
    compressed: bool = False
    header: bool = True
    """CSV: the first record names the columns; without it items are lists."""
    delimiter: str = ","
    encoding: str = "utf-8"
    record: int = 0
    """Bytes of each record, its line end included, when all are of one length: no index is needed then."""

    @property
    def headed(self) -> bool:
        return self.format == "csv" and self.header

    def item(self, raw: bytes, columns: Sequence[str] | None) -> Any:
        """A record's bytes as the handler gets them."""
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
    """Where every 1,024th record begins."""

    count: int
    offsets: array[int]
    stamp: tuple[int, int]
    """The file's size and time of change when it was indexed."""

    @classmethod
    def load(cls, path: Path, stamp: tuple[int, int], layout: Layout) -> RecordIndex | None:
        """The index beside the file, when it is one of this very file."""
        try:
            data = _beside(path).read_bytes()
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

    def save(self, path: Path, layout: Layout) -> bool:
        head = struct.pack("<QqQ", *self.stamp, self.count)
        beside = _beside(path)
        half = beside.with_name(f"{beside.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            half.write_bytes(MAGIC + _mark(layout) + head + self.offsets.tobytes())
            half.replace(beside)  # whole, or not at all
        except OSError:
            return False
        return True


class RecordFile:
    """An open file of records; not for two threads at once."""

    def __init__(self, path: Path, layout: Layout, index: RecordIndex | None = None) -> None:
        self.path = path
        self.layout = layout
        self.index = index
        self.columns: list[str] | None = None
        self._file: IO[bytes] | None = None
        self._next = 0
        self._begin = 0
        """Where record 0 begins: behind the header."""

    def stamp(self) -> tuple[int, int]:
        seen = self.path.stat()
        return seen.st_size, seen.st_mtime_ns

    def open(self) -> None:
        if self._file is not None:
            return
        opened: Any = gzip.GzipFile(self.path) if self.layout.compressed else self.path.open("rb")
        self._file = opened
        if self.layout.headed:
            header = self._record()
            if not header:
                raise ValueError("the file has no header")
            (self.columns,) = csv.reader(
                [header.decode(self.layout.encoding).lstrip("\ufeff")], delimiter=self.layout.delimiter
            )
        self._begin = opened.tell()
        self._next = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def bounds(self) -> int:
        """How many records there are; makes the index where there is none."""
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
        return RecordIndex.load(self.path, stamp, self.layout)

    def read(self, first: int, end: int) -> list[Any]:
        """Records `[first, end)`; fewer where the file ends."""
        self.open()
        self._seek(first)
        found: list[Any] = []
        item, columns = self.layout.item, self.columns
        while self._next < end:
            raw = self._record()
            if not raw:
                break
            found.append(item(raw, columns))
            self._next += 1
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
                self.close()
                self.open()
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
        """The next record with its line end; in CSV a quoted field may hold line ends."""
        assert self._file is not None
        if self.layout.record:
            return self._file.read(self.layout.record)
        line = self._file.readline()
        if self.layout.format == "csv":
            while line.count(b'"') % 2:
                more = self._file.readline()
                if not more:
                    break
                line += more
        return line

    def _made(self) -> RecordIndex:
        """Read all of it once."""
        assert self._file is not None
        stamp = self.stamp()
        self._rewind()
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
        if len(offsets) > max(1, -(-count // STEP)):
            offsets.pop()
        self._rewind()
        index = RecordIndex(count, offsets, stamp)
        if not index.save(self.path, self.layout):
            while len(_remembered) >= MOST_REMEMBERED:
                _remembered.pop(next(iter(_remembered)), None)
            _remembered[self.path, self.layout] = index
        return index

    def _rewind(self) -> None:
        self.close()
        self.open()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".fusee-index")


def _mark(layout: Layout) -> bytes:
    """What of a layout decides where records begin."""
    return f"{layout.format} {layout.headed} {layout.compressed}".encode().ljust(32)[:32]
