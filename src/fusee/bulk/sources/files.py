"""Items from a file, or from a URL: one for each line, CSV record or JSON line."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import aiohttp
from yarl import URL

from fusee.bulk.sources.base import BLOCK, KEPT, BlockReader, fields_of
from fusee.bulk.sources.fingerprint import Fingerprint, digest_of_file, refuse, spans, time_of
from fusee.bulk.sources.limits import SizeLimits
from fusee.bulk.sources.opening import DownloadFolder, open_source
from fusee.bulk.sources.records import FORMATS, Layout, RecordFile
from fusee.errors import Invalid
from fusee.executors.http.guard import Guard, guarded_session

__all__ = ["FileSource", "UrlSource"]

T = TypeVar("T")
LAYOUT = ("format", "compression", "header", "delimiter", "encoding", "record")
PORTION = 1 << 20


class FileSource:
    """`{"kind": "file", "path": "/data/users.csv", "format": "csv"}`, on a disk that every worker can
    read."""

    sparse = True
    placed = False

    def __init__(self, given: Mapping[str, Any], limits: SizeLimits = SizeLimits()) -> None:  # noqa: B008
        fields = fields_of(given, "path", "within", *LAYOUT)
        path, within = fields.get("path"), fields.get("within")
        if not isinstance(path, str) or not path:
            raise ValueError("path must be the path of a file")
        if within is not None and not isinstance(within, str):
            raise ValueError("within must be the path of a folder")
        self.records = RecordFiles(Path(path), layout_of(fields, path), within, limits)

    async def check(self) -> None:
        """Check that it exists and that its first records can be read."""
        await asyncio.to_thread(self.records.look)

    async def bounds(self) -> tuple[int, int]:
        return 0, await asyncio.to_thread(self.records.count)

    async def count(self, first: int, stop: int) -> None:
        """Every place has an item."""

    async def fingerprint(self) -> dict[str, Any]:
        return (await asyncio.to_thread(self.records.fingerprint)).plain()

    async def verify(self, kept: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self.records.verify, str(self.records.path), Fingerprint.of(kept))

    def pages(self) -> None:
        return None

    def reader(self) -> FileReader:
        return FileReader(self.records)


class FileReader(BlockReader):
    def __init__(self, records: RecordFiles) -> None:
        super().__init__(_block(records.layout, records.limits))
        self._file = records.opened()
        self._indexed = False

    async def load(self, first: int, end: int) -> Sequence[Any]:
        items = await asyncio.to_thread(self._load, first, end)
        if self._file.taken > self._file.limits.block // KEPT:
            self._blocks.clear()  # of such large blocks, one is enough
        return items

    def _load(self, first: int, end: int) -> list[Any]:
        if not self._indexed and not self._file.layout.compressed:
            self._file.bounds()  # finds the index next to the file, or makes one
            self._indexed = True
        try:
            return self._file.read(first, end)
        except Invalid:
            raise
        except (ValueError, EOFError, zlib.error) as error:
            raise OSError(f"{self._file.path} cannot be read: {error}") from None

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._file.close)


@dataclass(frozen=True, slots=True)
class Head:
    """What a server says about a URL."""

    size: int | None
    ranges: bool
    """Whether the server serves Range requests."""
    etag: str
    modified: str


class UrlSource:
    """`{"kind": "url", "url": "https://…/users.jsonl", "format": "jsonl"}`.

    Each worker fetches it once into its temporary folder and reads it from there. Records of one length
    (`record`) are read by Range requests instead, when the server supports them: only what is needed is
    fetched.
    """

    sparse = True
    placed = False

    def __init__(
        self,
        given: Mapping[str, Any],
        allow_private: Sequence[str] = (),
        limits: SizeLimits = SizeLimits(),  # noqa: B008
    ) -> None:
        fields = fields_of(given, "url", *LAYOUT)
        self.url = fields.get("url")
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise ValueError("url must begin with http:// or https://")
        self.layout = layout_of(fields, self.url.split("?", 1)[0])
        self.guard = Guard(allow_private)
        self.limits = limits
        self.folder = DownloadFolder()

    def session(self) -> aiohttp.ClientSession:
        return guarded_session(self.guard, headers={"Accept-Encoding": "identity"}, auto_decompress=False)

    async def check(self) -> None:
        try:
            head = await self.head()
            if not self._by_ranges(head.ranges):
                self.limits.check_download(str(self.url), head.size or 0)
        except Invalid:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Invalid(f"source: {self.url} cannot be read: {error}", field="source") from None

    async def head(self) -> Head:
        """Returns what the server says about it."""
        assert isinstance(self.url, str)
        self.guard.check_host(URL(self.url).host or "")
        async with (
            self.session() as session,
            session.get(self.url, headers={"Range": "bytes=0-0"}, allow_redirects=False) as answer,
        ):
            if answer.status not in (200, 206):
                raise OSError(f"the server responded {answer.status}")
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
        records = await self.fetch()
        return 0, await asyncio.to_thread(records.count)

    async def count(self, first: int, stop: int) -> None:
        """Every place has an item."""

    async def fingerprint(self) -> dict[str, Any]:
        head = await self.head()
        size, sample = await self._sampled(head)
        return Fingerprint(size, sample, head.modified, head.etag).plain()

    async def verify(self, kept: Mapping[str, Any]) -> None:
        """Compare the ETag when it says that nothing changed, else the content within the former size."""
        before, head = Fingerprint.of(kept), await self.head()
        if before.etag and before.etag == head.etag and not head.etag.startswith("W/"):
            return
        if not self._by_ranges(head.ranges):
            records = await self.fetch()
            await asyncio.to_thread(records.verify, str(self.url), before, head.modified, head.etag)
            return
        size, sample = await self._sampled(head, before.size)
        if size < before.size or sample != before.sample:
            refuse(str(self.url), before, Fingerprint(size, sample, head.modified, head.etag))

    async def _sampled(self, head: Head, first: int | None = None) -> tuple[int, str]:
        """Returns its size and the digest of its samples, or of the samples of its first bytes."""
        if not self._by_ranges(head.ranges) or head.size is None:
            records = await self.fetch()
            found = await asyncio.to_thread(records.fingerprint, first)
            return found.size, found.sample
        digest = hashlib.sha256()
        assert isinstance(self.url, str)
        async with self.session() as session:
            for offset, many in spans(head.size if first is None else min(first, head.size)):
                wanted = {"Range": f"bytes={offset}-{offset + many - 1}"}
                async with session.get(self.url, headers=wanted, allow_redirects=False) as answer:
                    if answer.status != 206:
                        raise OSError(f"the server responded {answer.status} to a Range request")
                    digest.update(await _at_most(answer, many))
        return head.size, digest.hexdigest()[:32]

    def _by_ranges(self, ranges: bool) -> bool:
        return bool(self.layout.record) and ranges and not self.layout.headed and not self.layout.compressed

    async def fetch(self) -> RecordFiles:
        """Into a file of a folder that is ours alone, unless it is there already."""
        assert isinstance(self.url, str)
        head = await self.head()
        tag = head.etag or head.modified
        name = hashlib.sha256(f"{self.url} {tag} {head.size}".encode()).hexdigest()[:32]
        records = RecordFiles(self.folder.path / name, self.layout, str(self.folder.path), self.limits)
        there = await asyncio.to_thread(self.folder.has, name)
        if tag and there:
            return records
        await asyncio.to_thread(self.folder.prune)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        async with (
            self.session() as session,
            session.get(self.url, allow_redirects=False, timeout=timeout) as got,
        ):
            if got.status != 200:
                raise OSError(f"the server responded {got.status}")
            self.limits.check_download(self.url, got.content_length or 0)
            half, file = await asyncio.to_thread(self.folder.create)
            size = 0
            try:
                with file:
                    async for portion in got.content.iter_chunked(PORTION):
                        size += len(portion)
                        self.limits.check_download(self.url, size)
                        await asyncio.to_thread(file.write, portion)
                await asyncio.to_thread(self.folder.keep, half, name)
            except BaseException:
                self.folder.drop(half)
                raise
        return records

    def pages(self) -> None:
        return None

    def reader(self) -> UrlReader:
        return UrlReader(self)


class UrlReader(BlockReader):
    def __init__(self, source: UrlSource) -> None:
        super().__init__(_block(source.layout, source.limits))
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
                self._file = FileReader(await source.fetch())
            return await self._file.load(first, end)
        if self._session is None:
            self._session = source.session()
        record = source.layout.record
        wanted = {"Range": f"bytes={first * record}-{end * record - 1}"}
        assert isinstance(source.url, str)
        async with self._session.get(source.url, headers=wanted, allow_redirects=False) as answer:
            if answer.status != 206:
                raise OSError(f"the server responded {answer.status} to a Range request")
            data = await _at_most(answer, (end - first) * record)
        return [source.layout.item(data[at : at + record], None) for at in range(0, len(data), record)]

    async def close(self) -> None:
        await super().close()
        if self._session is not None:
            await self._session.close()
        if self._file is not None:
            await self._file.close()


def layout_of(fields: Mapping[str, Any], name: str) -> Layout:
    """Returns the layout of a file from its fields, else from its name."""
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
        raise ValueError("record does not work with compression: a compressed file allows no seeks")
    header, delimiter = fields.get("header", True), fields.get("delimiter", ",")
    if not isinstance(header, bool) or not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError("header must be true or false, delimiter one character")
    encoding = fields.get("encoding", "utf-8")
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError):
        raise ValueError(f"encoding {encoding!r:.40} is not known") from None
    return Layout(format, compression == "gzip", header, delimiter, encoding, record)


def _block(layout: Layout, limits: SizeLimits) -> int:
    """Records that are read together."""
    return max(1, min(BLOCK, limits.block // layout.record)) if layout.record else BLOCK


async def _at_most(answer: aiohttp.ClientResponse, size: int) -> bytes:
    """The body of an answer to a Range request, which may be shorter than what was asked for."""
    parts: list[bytes] = []
    async for portion in answer.content.iter_chunked(PORTION):
        parts.append(portion)
        size -= len(portion)
        if size < 0:
            raise OSError("the server sent more than the Range request asked for")
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """A file of records that is opened anew, and checked anew, for each thing that is asked of it."""

    path: Path
    layout: Layout
    within: str | None
    limits: SizeLimits

    def opened(self) -> RecordFile:
        return RecordFile(self.path, self.layout, within=self.within, limits=self.limits)

    def look(self) -> None:
        self._ask(lambda file: file.read(0, 10))

    def count(self) -> int:
        return self._ask(RecordFile.bounds)

    def _ask(self, what: Callable[[RecordFile], T]) -> T:
        file = self.opened()
        try:
            return what(file)
        except Invalid:
            raise
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise Invalid(f"source: {self.path} cannot be read: {error}", field="source") from None
        finally:
            file.close()

    def fingerprint(
        self, first: int | None = None, modified: str | None = None, etag: str = ""
    ) -> Fingerprint:
        """Returns the fingerprint with samples of the whole file, or of its first bytes."""
        with open_source(self.path, self.within) as file:
            return _fingerprint(file, first, modified, etag)

    def verify(self, what: str, kept: Fingerprint, modified: str | None = None, etag: str = "") -> None:
        """Raises `Conflict` unless the content within the former size is unchanged and its last line still
        ends there."""
        with open_source(self.path, self.within) as file:
            found = _fingerprint(file, kept.size, modified, etag)
            if found.size < kept.size or found.sample != kept.sample:
                refuse(what, kept, found)
            if found.size > kept.size and not self.layout.record and not self.layout.compressed and kept.size:
                file.seek(kept.size - 1)
                last, following = file.read(1), file.read(2)
                if last != b"\n" and not following.startswith((b"\n", b"\r\n")):
                    refuse(what, kept, found, " (its last line became longer)")


def _fingerprint(file: BinaryIO, first: int | None, modified: str | None, etag: str) -> Fingerprint:
    seen = os.fstat(file.fileno())
    size = seen.st_size if first is None else min(first, seen.st_size)
    when = time_of(seen.st_mtime) if modified is None else modified
    return Fingerprint(seen.st_size, digest_of_file(file, size), when, etag)
