"""Sources: any stretch of items, wherever it lies, without reading what comes before it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.bulk.sources import ABSENT, BadItem, ItemSource
from fusee.bulk.sources.builtin import builtin_sources
from fusee.bulk.sources.files import FileSource
from fusee.bulk.sources.fingerprint import SAMPLE, SAMPLES, look_at, spans
from fusee.bulk.sources.records import STEP, Layout, RecordFile
from fusee.errors import Conflict, Invalid


def _no_store() -> Any:
    raise AssertionError("not needed here")


KINDS = builtin_sources(_no_store, allow_private=["127.0.0.1"])


def make(**given: Any) -> ItemSource:
    return KINDS.make(given)


async def items(source: ItemSource, first: int, end: int) -> list[Any]:
    reader = source.reader()
    try:
        return list(await reader.read(first, end))
    finally:
        await reader.close()


async def test_a_range_is_its_indexes() -> None:
    source = make(kind="range", start=9_999_000_000, stop=10_000_000_000)
    assert await source.bounds() == (9_999_000_000, 10_000_000_000)
    assert source.reader().at_hand(9_999_999_998, 10_000_000_000) == range(9_999_999_998, 10_000_000_000)


async def test_a_list_is_what_it_holds() -> None:
    source = make(kind="list", items=["a", {"b": 1}, None])
    assert await source.bounds() == (0, 3)
    assert await items(source, 1, 3) == [{"b": 1}, None]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "range"}, "whole numbers"),
        ({"kind": "range", "start": 5, "stop": 4}, "start ≤ stop"),
        ({"kind": "list", "items": "abc"}, "must be a list"),
        ({"kind": "file"}, "path"),
        ({"kind": "file", "path": "x", "format": "xml"}, "lines, csv, jsonl"),
        ({"kind": "file", "path": "x.gz", "record": 8}, "does not work with compression"),
        ({"kind": "file", "path": "x", "encoding": "klingon"}, "klingon"),
        ({"kind": "url", "url": "ftp://x"}, "http"),
        (
            {"kind": "sql", "url": "sqlite:///x", "query": "SELECT 1; DROP TABLE x", "key": "id"},
            "one statement",
        ),
        ({"kind": "sql", "url": "sqlite:///x", "query": "SELECT 1", "key": "id = 1"}, "key"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        KINDS.make(given)


# --- files ------------------------------------------------------------------------------------------


async def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("ada\n\nbob\r\nlast without an end")
    source = make(kind="file", path=str(path))
    await source.check()
    assert await source.bounds() == (0, 4)
    assert await items(source, 0, 4) == ["ada", "", "bob", "last without an end"]


async def test_jsonl_quarantines_what_is_not_json_and_passes_over_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\nnot json\n[2]\n')
    source = make(kind="file", path=str(path))
    one, empty, bad, two = await items(source, 0, 4)
    assert (one, two) == ({"a": 1}, [2])
    assert empty is ABSENT
    assert isinstance(bad, BadItem) and "not jsonl" in bad.error


async def test_csv_with_a_header_and_line_ends_inside_of_quotes(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('id,text\n1,"two\nlines, ""quoted"""\n2,plain\n3\n')
    source = make(kind="file", path=str(path))
    assert await source.bounds() == (0, 3)
    first, second, third = await items(source, 0, 3)
    assert first == {"id": "1", "text": 'two\nlines, "quoted"'}
    assert second == {"id": "2", "text": "plain"}
    assert isinstance(third, BadItem) and "has 1 fields, the header 2" in third.error
    bare = make(kind="file", path=str(path), header=False, format="csv")
    assert (await items(bare, 0, 1))[0] == ["id", "text"]


async def test_a_file_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        await make(kind="file", path=str(tmp_path / "none.csv")).check()


async def test_reading_far_into_a_file_does_not_read_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("".join(f"line {n}\n" for n in range(200_000)))
    source = make(kind="file", path=str(path))
    assert await source.bounds() == (0, 200_000)
    assert (tmp_path / "many.txt.fusee-index").exists()

    file = RecordFile(path, Layout())
    assert file.bounds() == 200_000
    file.close()
    lines = 0

    class Counted:
        def __init__(self, real: Any) -> None:
            self.real = real

        def readline(self, most: int) -> bytes:
            nonlocal lines
            lines += 1
            line: bytes = self.real.readline(most)
            return line

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    file.open()
    file._file = Counted(file._file)  # type: ignore[assignment]
    assert file.read(199_000, 199_003) == ["line 199000", "line 199001", "line 199002"]
    assert lines < STEP + 10
    file.close()


async def test_an_index_of_another_version_of_the_file_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    source = make(kind="file", path=str(path))
    assert await source.bounds() == (0, 2)
    path.write_text("a\nb\nc\n")
    os.utime(path, ns=(1, 1))
    assert await source.bounds() == (0, 3)
    beside = tmp_path / "x.txt.fusee-index"
    beside.write_bytes(beside.read_bytes()[:-3])
    assert await source.bounds() == (0, 3), "half an index is no index"


async def test_an_index_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    (tmp_path / "x.txt.fusee-index").mkdir()  # nothing can take its place
    source = make(kind="file", path=str(path))
    assert await source.bounds() == (0, 2)
    assert await items(source, 1, 2) == ["b"]


async def test_gzip_is_read_in_order_and_from_the_start_when_need_be(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wt") as out:
        out.writelines(json.dumps({"n": n}) + "\n" for n in range(5000))
    source = make(kind="file", path=str(path))
    await source.check()
    assert await source.bounds() == (0, 5000)
    reader = source.reader()
    assert list(await reader.read(4000, 4002)) == [{"n": 4000}, {"n": 4001}]
    assert list(await reader.read(0, 2)) == [{"n": 0}, {"n": 1}]
    await reader.close()


async def test_records_of_one_length_need_no_index(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"".join(b"%07d\n" % n for n in range(10_000)))
    source = make(kind="file", path=str(path), record=8)
    assert await source.bounds() == (0, 10_000)
    assert await items(source, 9_998, 10_000) == ["0009998", "0009999"]
    assert not (tmp_path / "x.bin.fusee-index").exists()
    odd = make(kind="file", path=str(path), record=7)
    with pytest.raises(Invalid, match="not a multiple"):
        await odd.bounds()


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.lists(st.text(max_size=6), min_size=2, max_size=2), max_size=30),
    asks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
)
def test_any_csv_in_any_order(
    tmp_path_factory: Any, rows: list[list[str]], asks: list[tuple[int, int]]
) -> None:
    import csv
    import io

    clean = [[cell.replace("\r", "").replace("\x00", "") or "x" for cell in row] for row in rows]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(clean)
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_bytes(out.getvalue().encode("utf-8", "replace"))
    wanted = [[cell.encode("utf-8", "replace").decode() for cell in row] for row in clean]
    file = RecordFile(path, Layout("csv", header=False))
    assert file.bounds() == len(wanted)
    for first, end in asks:
        assert file.read(first, end) == wanted[first:end]
    file.close()


async def test_stretches_are_read_from_blocks_and_a_source_that_became_shorter_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{n}\n" for n in range(3000)))
    reader = make(kind="file", path=str(path)).reader()
    assert reader.at_hand(0, 5) is None
    assert list(await reader.read(1020, 1030)) == [str(n) for n in range(1020, 1030)]
    assert reader.at_hand(1024, 1028) == ["1024", "1025", "1026", "1027"]
    assert reader.at_hand(1020, 1030) is None, "it lies in two blocks"
    got = await asyncio.gather(*(reader.read(n, n + 7) for n in range(0, 2990, 13)))
    assert [list(part) for part in got] == [[str(m) for m in range(n, n + 7)] for n in range(0, 2990, 13)]
    with pytest.raises(OSError, match="the source changed"):
        await reader.read(2995, 3005)
    await reader.close()


async def test_a_fingerprint_costs_a_bounded_number_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: all zeros
    source = make(kind="file", path=str(path), record=8)
    kept = await source.fingerprint()
    assert kept is not None and kept["size"] == 1 << 40
    assert sum(many for _, many in spans(1 << 40)) == SAMPLES * SAMPLE
    assert spans(1 << 40)[0][0] == 0 and sum(spans(1 << 40)[-1]) == 1 << 40
    await source.verify(kept)
    with path.open("r+b") as file:
        file.seek((1 << 40) - 8)
        file.write(b"changed\n")
    with pytest.raises(Conflict, match="it had 1099511627776 bytes"):
        await source.verify(kept)


async def test_a_time_of_change_alone_and_growth_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    source = make(kind="file", path=str(path))
    kept = await source.fingerprint()
    assert kept is not None
    os.utime(path, ns=(1, 1))
    await source.verify(kept)
    path.write_text("a\nb\nc\n")
    await source.verify(kept)
    path.write_text("a\n")
    with pytest.raises(Conflict, match=r"it had 4 bytes, .* it has 2 bytes"):
        await source.verify(kept)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        await source.verify(kept)


@pytest.mark.parametrize(("more", "same"), [("\nc\n", True), ("\r\nc", True), ("c\n", False)])
async def test_a_last_line_that_went_on_is_another_item(tmp_path: Path, more: str, same: bool) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb")
    source = make(kind="file", path=str(path))
    kept = await source.fingerprint()
    assert kept is not None
    path.write_bytes(b"a\nb" + more.encode())
    if same:
        await source.verify(kept)
    else:
        with pytest.raises(Conflict, match="its last line became longer"):
            await source.verify(kept)


async def test_a_file_that_is_replaced_while_it_is_counted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")

    class Replaced(FileSource):
        async def bounds(self) -> tuple[int, int]:
            found = await super().bounds()
            path.write_text("c\nd\n")
            return found

    with pytest.raises(Conflict, match="changed since"):
        await look_at(Replaced({"kind": "file", "path": str(path)}))


# --- URLs -------------------------------------------------------------------------------------------


class Served:
    def __init__(self, body: bytes, *, ranges: bool) -> None:
        self.body, self.ranges, self.sent = body, ranges, 0
        self.etag = '"v1"'

    async def answer(self, request: web.Request) -> web.Response:
        wanted = request.headers.get("Range")
        headers = {"ETag": self.etag} if self.etag else {}
        if wanted and self.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = self.body[int(first) : int(last) + 1]
            self.sent += len(part)
            end = int(first) + len(part) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(self.body)}"
            return web.Response(status=206, body=part, headers=headers)
        self.sent += len(self.body)
        return web.Response(body=self.body, headers=headers)


@pytest.fixture
async def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runners = []

    async def serve(body: bytes, *, ranges: bool) -> tuple[str, Served]:
        served = Served(body, ranges=ranges)
        app = web.Application()
        app.router.add_get("/{name}", served.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        return f"http://127.0.0.1:{port}", served

    yield serve
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_url_is_fetched_once(serving: Any, ranges: bool) -> None:
    body = b"".join(b'{"n": %d}\n' % n for n in range(3000))
    url, served = await serving(body, ranges=ranges)
    source = make(kind="url", url=f"{url}/x.jsonl")
    await source.check()
    assert await source.bounds() == (0, 3000)
    before = served.sent
    assert await items(source, 2998, 3000) == [{"n": 2998}, {"n": 2999}]
    assert served.sent - before < (10 if ranges else 3 * len(body))


async def test_records_of_one_length_are_asked_for_by_range(serving: Any) -> None:
    body = b"".join(b"%09d\n" % n for n in range(100_000))
    url, served = await serving(body, ranges=True)
    source = make(kind="url", url=f"{url}/x.txt", record=10)
    assert await source.bounds() == (0, 100_000)
    assert await items(source, 99_999, 100_000) == ["000099999"]
    assert served.sent < 1024 * 10 + 100


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("record", [0, 10])
@pytest.mark.parametrize("etags", [('"v1"', '"v2"'), ("", ""), ('W/"v1"', 'W/"v1"')])
async def test_a_url_with_other_content_is_noticed_and_growth_is_no_change(
    serving: Any, ranges: bool, record: int, etags: tuple[str, str]
) -> None:
    body = b"".join(b"%09d\n" % n for n in range(3000))
    url, served = await serving(body, ranges=ranges)
    served.etag = etags[0]
    source = make(kind="url", url=f"{url}/x.txt", **({"record": record} if record else {}))
    kept = await source.fingerprint()
    assert kept is not None and kept["size"] == 30_000
    await source.verify(kept)
    served.etag, served.body = etags[1], body + b"%09d\n" % 3000
    await source.verify(kept)
    served.etag = f"{etags[1]}3" if etags[1] else ""
    served.body = b"".join(b"%09d\n" % n for n in range(1, 3001))
    with pytest.raises(Conflict, match=r"it had 30000 bytes.* it has 30000 bytes"):
        await source.verify(kept)


async def test_a_url_whose_etag_is_the_same_is_not_read_to_compare_it(serving: Any) -> None:
    url, served = await serving(b"a\nb\n" * 1000, ranges=True)
    source = make(kind="url", url=f"{url}/x.txt")
    kept = await source.fingerprint()
    assert kept is not None and kept["etag"] == '"v1"'
    before = served.sent
    await source.verify(kept)
    assert served.sent - before <= 1


async def test_an_address_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(Invalid, match="not a public address"):
        await builtin_sources(_no_store).make({"kind": "url", "url": "http://127.0.0.1:9/x"}).check()


# --- SQL --------------------------------------------------------------------------------------------


async def test_rows_by_key_with_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "crm.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT)")
        connection.executemany("INSERT INTO users VALUES (?, ?)", [(5, "a"), (6, "b"), (9, "c"), (4000, "d")])
    connection.close()
    monkeypatch.setenv("CRM", f"sqlite:///{path}")
    source = make(kind="sql", url="env:CRM", query="SELECT id, email FROM users WHERE id < 5000")
    await source.check()
    assert await source.bounds() == (5, 4001)
    got = await items(source, 5, 10)
    assert got == [{"id": 5, "email": "a"}, {"id": 6, "email": "b"}, ABSENT, ABSENT, {"id": 9, "email": "c"}]
    assert await items(source, 4000, 4001) == [{"id": 4000, "email": "d"}]
    with pytest.raises(Invalid, match="variable NONE is not set"):
        await make(kind="sql", url="env:NONE", query="SELECT 1").check()
    with pytest.raises(Invalid, match="cannot be run"):
        await make(kind="sql", url="env:CRM", query="SELECT nothing FROM nowhere").check()
