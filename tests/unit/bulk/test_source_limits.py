"""What a source may not do: fill the memory or the disk, or lead out of its folder."""

from __future__ import annotations

import asyncio
import gzip
import os
import pwd
import stat
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fusee.bulk.sources import ItemSource
from fusee.bulk.sources.builtin import builtin_sources
from fusee.bulk.sources.files import FileSource
from fusee.bulk.sources.limits import SizeLimits, SourceLimits
from fusee.bulk.sources.opening import KEPT, DownloadFolder, open_source
from fusee.bulk.sources.records import Layout, RecordFile
from fusee.errors import Invalid


def _no_store() -> Any:
    raise AssertionError("not needed here")


def make(limits: SizeLimits = SizeLimits(), /, **given: Any) -> ItemSource:  # noqa: B008
    return builtin_sources(_no_store, allow_private=["127.0.0.1"], limits=limits).make(given)


async def read(source: ItemSource, first: int = 0, end: int = 1) -> list[Any]:
    reader = source.reader()
    try:
        return list(await reader.read(first, end))
    finally:
        await reader.close()


# --- sizes -------------------------------------------------------------------------------------------


async def test_a_bomb_of_one_line_takes_no_memory(tmp_path: Path) -> None:
    """204 kB of gzip that became 915 MB: one line of 200 MB, copied by every step that reads it."""
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(200):
            file.write(bytes(2**20))
    assert path.stat().st_size < 220_000
    source = make(kind="file", path=str(path))
    tracemalloc.start()
    try:
        for asked in (source.check(), source.bounds()):
            with pytest.raises(
                Invalid, match=r"record 0 is longer than 4,194,304 bytes: raise executors\.bulk\.max_rec"
            ):
                await asked
        with pytest.raises(OSError, match="longer than"):
            await read(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000


async def test_a_bomb_of_many_lines_is_unpacked_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(100):
            file.write(b"x" * 99_999 + b"\n")
    small = SizeLimits(unpacked=1_000_000)
    source = make(small, kind="file", path=str(path))
    await source.check()  # the first ten are within it
    with pytest.raises(
        Invalid, match=r"unpacks to more than 1,000,000 bytes: raise executors\.bulk\.max_unpacked"
    ):
        await source.bounds()
    with pytest.raises(OSError, match="unpacks to more"):
        await read(source, 50, 51)
    assert await make(SizeLimits(unpacked=10_000_000), kind="file", path=str(path)).bounds() == (0, 100)


async def test_reading_again_from_the_start_is_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"abcdefg\n" * 5000))
    file = RecordFile(path, Layout(compressed=True), limits=SizeLimits(unpacked=40_000))
    for _ in range(3):
        assert file.read(4999, 5000) == ["abcdefg"]
        assert file.read(0, 1) == ["abcdefg"]
    file.close()


async def test_records_that_are_read_together_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(("y" * 999 + "\n") * 1000)
    limits = SizeLimits(record=2000)
    with pytest.raises(OSError, match="hold more than 128,000 bytes together"):
        await read(make(limits, kind="file", path=str(path)))
    fixed = make(limits, kind="file", path=str(path), record=1000)  # blocks of fewer records
    assert len(await read(fixed, 0, 300)) == 300


def test_a_quote_that_is_never_closed_does_not_read_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('a,b\n"1,2\n' + "x\n" * 2_000_000)
    file = RecordFile(path, Layout("csv"), limits=SizeLimits(record=1_000_000))
    with pytest.raises(ValueError, match=r"longer than 1,000,000 bytes \(or a quote is not closed\)"):
        file.bounds()
    file.close()


# --- what is fetched ---------------------------------------------------------------------------------

Serve = Callable[..., Any]


@pytest.fixture
async def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """`await answering(handler)`: the address of a server; what is fetched goes to a folder of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runners = []

    async def serve(handler: Callable[[web.Request], Any]) -> str:
        app = web.Application()
        app.router.add_get("/{name}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield serve
    for runner in runners:
        await runner.cleanup()


async def test_a_url_that_says_it_is_too_large_is_refused_before_it_is_fetched(answering: Serve) -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=b"x\n" * 5000)

    source = make(SizeLimits(download=9_999), kind="url", url=f"{await answering(large)}/x.txt")
    with pytest.raises(
        Invalid, match=r"^source: http\S+ has more than 9,999 bytes: raise executors\.bulk\.max_down"
    ):
        await source.check()


async def test_a_url_that_does_not_say_is_fetched_up_to_its_limit(answering: Serve, tmp_path: Path) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent < 500 * 2**20:
            await answer.write(b"x" * 2**20)
            sent += 2**20
        return answer

    source = make(SizeLimits(download=5 * 2**20), kind="url", url=f"{await answering(endless)}/x.txt")
    await source.check()
    with pytest.raises(Invalid, match="has more than 5,242,880 bytes"):
        await source.bounds()
    assert sent < 100 * 2**20
    assert list((tmp_path / f"fusee-sources-{os.geteuid()}").iterdir()) == [], "what was fetched is gone"


async def test_a_server_that_sends_more_than_a_part_is_refused(answering: Serve) -> None:
    async def generous(request: web.Request) -> web.StreamResponse:
        first = request.headers["Range"] == "bytes=0-0"
        answer = web.StreamResponse(status=206, headers={"Content-Range": "bytes 0-0/100"})
        await answer.prepare(request)
        await answer.write(b"x" * (1 if first else 50 * 2**20))
        return answer

    source = make(kind="url", url=f"{await answering(generous)}/x.txt", record=10)
    assert await source.bounds() == (0, 10)
    for asked in (read(source), source.fingerprint()):
        with pytest.raises(OSError, match="sent more than the Range request asked for"):
            await asked


async def test_the_folder_for_what_is_fetched_is_ours_alone(answering: Serve, tmp_path: Path) -> None:
    async def small(_: web.Request) -> web.Response:
        return web.Response(body=b"a\nb\n", headers={"ETag": '"1"'})

    url = f"{await answering(small)}/x.txt"
    folder = tmp_path / f"fusee-sources-{os.geteuid()}"
    assert await make(kind="url", url=url).bounds() == (0, 2)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        if not file.name.endswith("-index"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def elsewhere() -> None:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")

    spoils = [lambda: folder.chmod(0o750), elsewhere]
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody").pw_uid
        spoils.insert(0, lambda: os.chown(folder, nobody, -1))
    for spoil in spoils:
        spoil()
        with pytest.raises(OSError, match=r"is not ours alone|Not a directory|symbolic links"):
            await make(kind="url", url=url).bounds()
        if not folder.is_symlink():
            os.chown(folder, os.geteuid(), -1)
            folder.chmod(0o700)


def test_what_nobody_used_for_a_week_is_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = DownloadFolder()
    for name in ("old", "used"):
        half, file = folder.create()
        file.close()
        folder.keep(half, name)
        long_ago = (folder.path / name).stat().st_mtime - KEPT - 60
        os.utime(folder.path / name, (long_ago, long_ago))
    assert folder.has("used") and not folder.has("none")
    folder.prune()
    assert [file.name for file in folder.path.iterdir()] == ["used"]


# --- folders -----------------------------------------------------------------------------------------


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "users.txt").write_text("ada\nbob\n")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "users.txt").write_text("secret\n")
    return folder


def confined(folder: Path, path: Path) -> ItemSource:
    return make(**SourceLimits([str(folder)]).confine({"kind": "file", "path": str(path), "within": "/"}))


async def test_a_file_that_is_swapped_after_the_check_is_not_read(open_folder: Path) -> None:
    path, secret = open_folder / "users.txt", open_folder.parent / "closed" / "users.txt"
    source = confined(open_folder, path)
    await source.check()
    kept = await source.fingerprint()
    assert kept is not None
    path.unlink()
    path.symlink_to(secret)
    for asked in (source.check(), source.bounds(), source.fingerprint(), source.verify(kept), read(source)):
        with pytest.raises(
            Invalid, match=r"users\.txt leads out of \S+open, the folder in which this job may"
        ):
            await asked
    assert not secret.with_name("users.txt.fusee-index").exists()


async def test_a_folder_on_the_way_that_is_swapped_is_not_followed(open_folder: Path) -> None:
    inner = open_folder / "day"
    inner.mkdir()
    (inner / "users.txt").write_text("ada\n")
    source = confined(open_folder, inner / "users.txt")
    assert await source.bounds() == (0, 1)
    inner.rename(open_folder / "other")
    inner.symlink_to(open_folder.parent / "closed")
    with pytest.raises(Invalid, match="leads out of"):
        await read(source)


async def test_a_link_within_the_folder_and_a_linked_folder_may_be_read(
    open_folder: Path, tmp_path: Path
) -> None:
    (open_folder / "link.txt").symlink_to(open_folder / "users.txt")
    (tmp_path / "data").symlink_to(open_folder)
    for folder, path in (
        (open_folder, open_folder / "link.txt"),
        (tmp_path / "data", tmp_path / "data" / "users.txt"),
    ):
        assert await read(confined(folder, path), 0, 2) == ["ada", "bob"]


def test_no_swap_between_check_and_opening_is_fast_enough(open_folder: Path) -> None:
    path, secret = open_folder / "users.txt", open_folder.parent / "closed" / "users.txt"
    (open_folder / "good").write_text("ada\n")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (open_folder / "good", secret):
                link = open_folder / "link"
                link.unlink(missing_ok=True)
                link.symlink_to(target)
                link.replace(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen, refused = set(), 0
    try:
        for _ in range(2000):
            try:
                with open_source(path, str(open_folder)) as file:
                    seen.add(file.read())
            except Invalid:
                refused += 1
    finally:
        stop.set()
        swapping.join()
    assert seen <= {b"ada\n", b"ada\nbob\n"}
    assert seen and refused


def test_an_open_file_is_read_to_its_end_whatever_its_path_leads_to(open_folder: Path) -> None:
    path = open_folder / "users.txt"
    file = RecordFile(path, Layout(), within=str(open_folder))
    file.open()
    path.unlink()
    path.symlink_to(open_folder.parent / "closed" / "users.txt")
    assert file.bounds() == 2
    assert file.read(1, 2) + file.read(0, 1) == ["bob", "ada"]
    file.close()


def test_an_index_is_not_read_or_written_through_a_link(open_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    index = open_folder / "users.txt.fusee-index"
    index.symlink_to(target)
    file = RecordFile(open_folder / "users.txt", Layout())
    assert file.bounds() == 2
    file.close()
    assert target.read_text() == "precious"
    assert index.is_file() and not index.is_symlink()


async def test_a_pipe_or_a_device_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        async with asyncio.timeout(5):
            with pytest.raises(Invalid, match="is not a regular file"):
                await make(kind="file", path=str(path)).check()


def test_a_caller_does_not_choose_the_folder(open_folder: Path) -> None:
    given = {"kind": "file", "path": str(open_folder / "users.txt"), "within": "/"}
    assert SourceLimits([str(open_folder)]).confine(given)["within"] == str(open_folder)
    with pytest.raises(ValueError, match="within must be the path of a folder"):
        FileSource({"kind": "file", "path": "x", "within": 7})
