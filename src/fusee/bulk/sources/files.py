"""Items out of a file, or out of what a URL answers: one for each line, CSV record or JSON line."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from fusee.bulk.sources.base import fields_of
from fusee.bulk.sources.blocks import BlockReader
from fusee.bulk.sources.fingerprint import Fingerprint, digest_of_file, refuse, spans, time_of
from fusee.bulk.sources.records import FORMATS, Layout, RecordFile
from fusee.errors import Invalid
from fusee.executors.http.guard import Guard, guarded_session

__all__ = ["FileSource", "UrlSource"]

LAYOUT = ("format", "compression", "header", "delimiter", "encoding", "record")
PORTION = 1 << 20


class FileSource:
    """`{"kind": "file", "path": "/data/users.csv", "format": "csv"}`, on a disk that every worker sees."""

    sparse = True
    placed = False

    def __init__(self, given: Mapping[str, Any]) -> None:
        fields = fields_of(given, "path", *LAYOUT)
        path = fields.get("path")
        if not isinstance(path, str) or not path:
            raise ValueError("path must be the path of a file")
        self.path = Path(path)
        self.layout = layout_of(fields, path)

    async def check(self) -> None:
        """It is there, and its first records can be read."""
        await asyncio.to_thread(_look, self.path, self.layout)

    async def bounds(self) -> tuple[int, int]:
        return 0, await asyncio.to_thread(_count, self.path, self.layout)

    async def count(self, first: int, stop: int) -> None:
        """One at each place."""

    async def fingerprint(self) -> dict[str, Any]:
        return (await asyncio.to_thread(_fingerprint, self.path)).plain()

    async def verify(self, kept: Mapping[str, Any]) -> None:
        await asyncio.to_thread(_verify, str(self.path), self.path, self.layout, Fingerprint.of(kept))

    def pages(self) -> None:
        return None

    def reader(self) -> FileReader:
        return FileReader(self.path, self.layout)


class FileReader(BlockReader):
    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__()
        self._file = RecordFile(path, layout)
        self._indexed = False

    async def load(self, first: int, end: int) -> Sequence[Any]:
        return await asyncio.to_thread(self._load, first, end)

    def _load(self, first: int, end: int) -> list[Any]:
        if not self._indexed and not self._file.layout.compressed:
            self._file.bounds()  # finds the index beside the file, or makes one
            self._indexed = True
        return self._file.read(first, end)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._file.close)


@dataclass(frozen=True, slots=True)
class Head:
    """What a server says about a URL, where it says it."""

    size: int | None
    ranges: bool
    """Whether any part can be asked for."""
    etag: str
    modified: str


class UrlSource:
    """`{"kind": "url", "url": "https://…/users.jsonl", "format": "jsonl"}`.

    Fetched once by each worker into its temporary folder and read from there. Records of one length
    (`record`) are read by Range requests instead, when the server takes them: only what is needed is fetched.
    """

    sparse = True
    placed = False

    def __init__(self, given: Mapping[str, Any], allow_private: Sequence[str] = ()) -> None:
        fields = fields_of(given, "url", *LAYOUT)
        self.url = fields.get("url")
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise ValueError("url must begin with http:// or https://")
        self.layout = layout_of(fields, self.url.split("?", 1)[0])
        self.guard = Guard(allow_private)

    def session(self) -> aiohttp.ClientSession:
        return guarded_session(self.guard, headers={"Accept-Encoding": "identity"}, auto_decompress=False)

    async def check(self) -> None:
        try:
            await self.head()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Invalid(f"source: {self.url} cannot be read: {error}", field="source") from None

    async def head(self) -> Head:
        """What the server says about it."""
        assert isinstance(self.url, str)
        self.guard.check_host(URL(self.url).host or "")
        async with (
            self.session() as session,
            session.get(self.url, headers={"Range": "bytes=0-0"}, allow_redirects=False) as answer,
        ):
            if answer.status not in (200, 206):
                raise OSError(f"the server answered {answer.status}")
            size, ranges = answer.content_length, answer.status == 206
            if ranges:
                whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                size = int(whole) if whole.isdigit() else None
            etag, modified = answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")
            return Head(size, ranges, etag, modified)

    async def bounds(self) -> tuple[int, int]:
        head = await self.head()
        size = head.size
        if self._by_ranges(head.ranges) and size is not None:
            if size % self.layout.record:
                raise Invalid(f"source: {size} bytes are not a multiple of record = {self.layout.record}")
            return 0, size // self.layout.record
        return 0, await asyncio.to_thread(_count, await self.fetch(), self.layout)

    async def count(self, first: int, stop: int) -> None:
        """One at each place."""

    async def fingerprint(self) -> dict[str, Any]:
        head = await self.head()
        size, sample = await self._sampled(head)
        return Fingerprint(size, sample, head.modified, head.etag).plain()

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """By its ETag when that says that nothing changed, else by the content within the former size."""
        before, head = Fingerprint.of(kept), await self.head()
        if before.etag and before.etag == head.etag and not head.etag.startswith("W/"):
            return
        if not self._by_ranges(head.ranges):
            path = await self.fetch()
            await asyncio.to_thread(
                _verify, str(self.url), path, self.layout, before, head.modified, head.etag
            )
            return
        size, sample = await self._sampled(head, before.size)
        if size < before.size or sample != before.sample:
            refuse(str(self.url), before, Fingerprint(size, sample, head.modified, head.etag))

    async def _sampled(self, head: Head, first: int | None = None) -> tuple[int, str]:
        """(its size, the digest of its samples, or of those of its first bytes)."""
        if not self._by_ranges(head.ranges) or head.size is None:
            path = await self.fetch()
            found = await asyncio.to_thread(_fingerprint, path, first)
            return found.size, found.sample
        digest = hashlib.sha256()
        assert isinstance(self.url, str)
        async with self.session() as session:
            for offset, many in spans(head.size if first is None else min(first, head.size)):
                wanted = {"Range": f"bytes={offset}-{offset + many - 1}"}
                async with session.get(self.url, headers=wanted, allow_redirects=False) as answer:
                    if answer.status != 206:
                        raise OSError(f"the server answered {answer.status} to a Range request")
                    digest.update(await answer.read())
        return head.size, digest.hexdigest()[:32]

    def _by_ranges(self, ranges: bool) -> bool:
        return bool(self.layout.record) and ranges and not self.layout.headed and not self.layout.compressed

    async def fetch(self) -> Path:
        """Into a file, unless it is there already."""
        assert isinstance(self.url, str)
        head = await self.head()
        tag = head.etag or head.modified
        name = hashlib.sha256(f"{self.url} {tag} {head.size}".encode()).hexdigest()[:32]
        folder = Path(tempfile.gettempdir()) / "fusee-sources"
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        path = folder / name
        there = await asyncio.to_thread(path.is_file)
        if tag and there:
            return path
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        half = folder / f"{name}.{id(self)}.half"
        async with (
            self.session() as session,
            session.get(self.url, allow_redirects=False, timeout=timeout) as got,
        ):
            if got.status != 200:
                raise OSError(f"the server answered {got.status}")
            file = await asyncio.to_thread(half.open, "wb")
            try:
                async for portion in got.content.iter_chunked(PORTION):
                    await asyncio.to_thread(file.write, portion)
            finally:
                await asyncio.to_thread(file.close)
        await asyncio.to_thread(half.replace, path)
        return path

    def pages(self) -> None:
        return None

    def reader(self) -> UrlReader:
        return UrlReader(self)


class UrlReader(BlockReader):
    def __init__(self, source: UrlSource) -> None:
        super().__init__()
        self._source = source
        self._ranges: bool | None = None
        self._session: aiohttp.ClientSession | None = None
        self._file: FileReader | None = None

    async def load(self, first: int, end: int) -> Sequence[Any]:
        source = self._source
        if self._ranges is None:
            self._ranges = source._by_ranges((await source.head()).ranges)
        if not self._ranges:
            if self._file is None:
                self._file = FileReader(await source.fetch(), source.layout)
            return await self._file.load(first, end)
        if self._session is None:
            self._session = source.session()
        record = source.layout.record
        wanted = {"Range": f"bytes={first * record}-{end * record - 1}"}
        assert isinstance(source.url, str)
        async with self._session.get(source.url, headers=wanted, allow_redirects=False) as answer:
            if answer.status != 206:
                raise OSError(f"the server answered {answer.status} to a Range request")
            data = await answer.read()
        return [source.layout.item(data[at : at + record], None) for at in range(0, len(data), record)]

    async def close(self) -> None:
        await super().close()
        if self._session is not None:
            await self._session.close()
        if self._file is not None:
            await self._file.close()


def layout_of(fields: Mapping[str, Any], name: str) -> Layout:
    """How a file is laid out, by its fields, else by its name."""
    bare, zipped = (name[:-3], True) if name.endswith(".gz") else (name, False)
    suffix = bare.rpartition(".")[2]
    guess = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(suffix, "lines")
    format = fields.get("format", guess)
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r:.40}")
    compression = fields.get("compression", "gzip" if zipped else None)
    if compression not in (None, "gzip"):
        raise ValueError(f"compression must be gzip, not {compression!r:.40}")
    record = fields.get("record", 0)
    if type(record) is not int or not 0 <= record <= 1 << 20:
        raise ValueError("record must be the bytes of each record, at most 1048576")
    if record and compression:
        raise ValueError("record does not go with compression: a compressed file cannot be sought in")
    header, delimiter = fields.get("header", True), fields.get("delimiter", ",")
    if not isinstance(header, bool) or not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError("header must be true or false, delimiter one character")
    encoding = fields.get("encoding", "utf-8")
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError):
        raise ValueError(f"encoding {encoding!r:.40} is not known") from None
    return Layout(format, compression == "gzip", header, delimiter, encoding, record)


def _look(path: Path, layout: Layout) -> None:
    file = RecordFile(path, layout)
    try:
        file.read(0, 10)
    except (OSError, ValueError, EOFError) as error:
        raise Invalid(f"source: {path} cannot be read: {error}", field="source") from None
    finally:
        file.close()


def _count(path: Path, layout: Layout) -> int:
    file = RecordFile(path, layout)
    try:
        return file.bounds()
    except (OSError, ValueError, EOFError) as error:
        raise Invalid(f"source: {path} cannot be read: {error}", field="source") from None
    finally:
        file.close()


def _fingerprint(
    path: Path, first: int | None = None, modified: str | None = None, etag: str = ""
) -> Fingerprint:
    """Of all of it, or with the samples of its first bytes."""
    seen = path.stat()
    size = seen.st_size if first is None else min(first, seen.st_size)
    when = time_of(seen.st_mtime) if modified is None else modified
    return Fingerprint(seen.st_size, digest_of_file(path, size), when, etag)


def _verify(
    what: str, path: Path, layout: Layout, kept: Fingerprint, modified: str | None = None, etag: str = ""
) -> None:
    """The content within the former size is what it was; its last line is whole still."""
    found = _fingerprint(path, kept.size, modified, etag)
    if found.size < kept.size or found.sample != kept.sample:
        refuse(what, kept, found)
    if found.size > kept.size and not layout.record and not layout.compressed and kept.size:
        with path.open("rb") as file:
            file.seek(kept.size - 1)
            last, following = file.read(1), file.read(2)
        if last != b"\n" and not following.startswith((b"\n", b"\r\n")):
            refuse(what, kept, found, " (its last line went on)")
