"""A request means the same however it arrives: every limit of the edge, with requests cut at every kind of
boundary. What is refused leaves nothing, and what is accepted is answered with 2xx."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from fusee.surfaces.rest import protocols
from fusee.surfaces.rest import serving as serving_module

RUNS = "/api/v1/runs"
PAUSE = "/api/v1/queues/default/pause"
RUN = b'{"handler": "greet", "payload": {"name": "%s"}}'
MAX_HEADER = 2048
HARD = 64 * 2**10
"""Beyond this the parser itself gives up on a head (for so small a `max_header`)."""
MAX_BODY = 256 * 2**10


# -- a client that decides where its requests are cut


@dataclass
class Cutter:
    """Hands what arrives to the server in exactly the pieces that the client chose: the kernel may join or
    split what was written."""

    ends: deque[int] = field(default_factory=deque)
    """Sizes of the pieces that are still to come; anything else passes as it arrives."""
    given: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def wrap(self, protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
        cutter = self

        class Cut(protocol):  # type: ignore[misc, valid-type]
            _kept = b""

            def data_received(self, data: bytes) -> None:
                self._kept += data
                while cutter.ends and len(self._kept) >= cutter.ends[0]:
                    size = cutter.ends.popleft()
                    piece, self._kept = self._kept[:size], self._kept[size:]
                    super().data_received(piece)
                if not cutter.ends and self._kept:
                    piece, self._kept = self._kept, b""
                    super().data_received(piece)
                cutter.given.set()

            def connection_lost(self, error: Exception | None) -> None:
                super().connection_lost(error)
                cutter.lost.set()

        return Cut


@pytest.fixture(params=["httptools", "h11"])
def cutter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cutter:
    """With and without the optional parser."""
    cutter = Cutter()
    choose = serving_module.protocol_for if request.param == "httptools" else lambda _: protocols.H11
    monkeypatch.setattr(serving_module, "protocol_for", lambda most: cutter.wrap(choose(most)))
    return cutter


async def send(served, cutter: Cutter, pieces: list[bytes], answers: int = 1) -> list[tuple[int, dict]]:
    """(status, body) of each answer; the server sees one piece after the other, and works in between."""
    reader, writer = await asyncio.open_connection(*served.server.address, limit=2**20)
    try:
        for piece in filter(None, pieces):
            cutter.ends.append(len(piece))
            cutter.given.clear()
            writer.write(piece)
            await writer.drain()
            while cutter.ends:
                await asyncio.wait_for(cutter.given.wait(), 10)
                cutter.given.clear()
            await asyncio.sleep(0)
        return [await asyncio.wait_for(read_answer(reader), 20) for _ in range(answers)]
    finally:
        cutter.ends.clear()
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return int(head.split(b" ")[1]), json.loads(await reader.readexactly(length))


# -- requests, and the ways to cut them


def post(body: bytes, *headers: bytes, length: bool = True, path: str = RUNS) -> bytes:
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: localhost", b"Content-Type: application/json"]
    lines += [b"Content-Length: %d" % len(body)] if length else [b"Transfer-Encoding: chunked"]
    return b"\r\n".join([*lines, *headers, b"", b""])


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def every(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def bytewise(text: bytes) -> Iterator[bytes]:
    for at in range(len(text)):
        yield text[at : at + 1]


Cutting = Callable[..., list[bytes]]


def in_one_write(body: bytes, *headers: bytes) -> list[bytes]:
    return [post(body, *headers) + body]


def head_then_body(body: bytes, *headers: bytes) -> list[bytes]:
    return [post(body, *headers), body]


def byte_by_byte(body: bytes, *headers: bytes) -> list[bytes]:
    """The whole request where it is short; otherwise its head's two ends, and both ends of the body."""
    head = post(body, *headers)
    if len(head) + len(body) <= 4096:
        return [*bytewise(head + body)]
    return [
        *bytewise(head[:200]),
        *([head[200:-200]] if len(head) > 400 else []),
        *bytewise(head[max(200, len(head) - 200) :]),
        *bytewise(body[:100]),
        body[100:-100],
        *bytewise(body[-100:] if len(body) > 200 else b""),
    ]


def within_the_blank_line(body: bytes, *headers: bytes) -> list[bytes]:
    head = post(body, *headers)
    return [head[:-3], head[-3:-1], head[-1:] + body[:1], body[1:]]


def last_byte_late(body: bytes, *headers: bytes) -> list[bytes]:
    text = post(body, *headers) + body
    return [text[:-1], text[-1:]]


def by_network_packets(body: bytes, *headers: bytes) -> list[bytes]:
    return every(post(body, *headers) + body, 1448)


def chunked_in_one_write(body: bytes, *headers: bytes) -> list[bytes]:
    return [post(body, *headers, length=False) + chunked(body, 1000)]


def chunk_by_chunk(body: bytes, *headers: bytes) -> list[bytes]:
    return [post(body, *headers, length=False), *every(chunked(body, 5000), 5000)]


def chunks_of_a_byte(body: bytes, *headers: bytes) -> list[bytes]:
    size = 1 if len(body) < 2048 else 101
    return every(post(body, *headers, length=False) + chunked(body, size), 7777)


def at_random(body: bytes, *headers: bytes) -> list[bytes]:
    text = post(body, *headers) + body
    places = sorted(random.Random(len(text)).sample(range(1, len(text)), 12))
    return [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]


CUTS: list[Cutting] = [
    in_one_write,
    head_then_body,
    byte_by_byte,
    within_the_blank_line,
    last_byte_late,
    by_network_packets,
    chunked_in_one_write,
    chunk_by_chunk,
    chunks_of_a_byte,
    at_random,
]


def array_of(runs: int, size: int) -> bytes:
    """So many runs in about so many bytes."""
    pad = max(1, size // runs - len(RUN) - 1)
    return b"[" + b",".join([RUN % (b"x" * pad)] * runs) + b"]"


@pytest.fixture
def edge(serving):
    return serving(api={"max_header": MAX_HEADER, "max_body": MAX_BODY, "max_runs_per_request": 300})


# -- what is accepted


@pytest.mark.parametrize("size", [300, 60_000, 86_000, 200_000])
async def test_what_fits_is_carried_out_once(cutter, edge, size):
    """Sizes around those of a read and of the limits on a head: a body does not count as head."""
    runs = 2 if size < 1000 else 100
    async with edge as served:
        for done, cut in enumerate(CUTS, 1):
            ((status, body),) = await send(served, cutter, cut(array_of(runs, size)))
            assert (cut, status, len(body)) == (cut, 201, runs)
            assert (cut, await served.count()) == (cut, done * runs)


@pytest.mark.parametrize("together", [True, False])
async def test_pipelined_requests_are_answered_one_by_one(cutter, edge, together):
    async with edge as served:
        for first, second in ((300, 86_000), (86_000, 300), (86_000, 86_000)):
            before = await served.count()
            pieces = [post(body) + body for body in (array_of(2, first), array_of(3, second))]
            answers = await send(served, cutter, [b"".join(pieces)] if together else pieces, answers=2)
            assert [(status, len(body)) for status, body in answers] == [(201, 2), (201, 3)]
            assert await served.count() == before + 5


# -- what is refused


LIMITS = {
    "a head over its limit": (array_of(2, 300), MAX_HEADER + 1, 431),
    "a head over the limit of the parser": (array_of(2, 300), HARD + 1000, 431),
    "a head over one read": (array_of(2, 300), 300_000, 431),
    "a body over its limit": (array_of(2, MAX_BODY + 2000), 0, 413),
    "more runs than one request may create": (array_of(301, 86_000), 0, 413),
    "no JSON": (b"[" + b" " * 86_000, 0, 400),
    "no run": (b"[" + b" " * 86_000 + b"7]", 0, 422),
}


@pytest.mark.parametrize("what", LIMITS)
async def test_what_is_refused_leaves_nothing(cutter, edge, what):
    text, pad, refusal = LIMITS[what]
    async with edge as served:
        for cut in CUTS:
            ((status, body),) = await send(served, cutter, cut(text, b"X-Pad: " + b"x" * pad))
            assert (cut, status, body["status"]) == (cut, refusal, refusal), body
            assert (cut, await served.count()) == (cut, 0)


async def test_a_body_that_turns_out_malformed_leaves_nothing(cutter, edge):
    """Also where the route itself has no use for a body."""
    body = array_of(2, 300)
    async with edge as served:
        for path in (RUNS, PAUSE):
            whole = [post(body, length=False, path=path), b"%x\r\n%s\r\n" % (len(body), body), b"no size\r\n"]
            for pieces in ([b"".join(whole)], whole, [*bytewise(b"".join(whole))]):
                ((status, problem),) = await send(served, cutter, pieces)
                assert (status, problem["type"]) == (400, "urn:fusee:problem:malformed")
                assert await nothing_was_done(served)


async def test_a_request_that_is_cut_off_leaves_nothing(cutter, edge):
    async with edge as served:
        for path in (RUNS, PAUSE):
            body = array_of(2, 300)
            _, writer = await asyncio.open_connection(*served.server.address)
            writer.write(post(body, path=path) + body[:-1])
            await writer.drain()
            await asyncio.wait_for(cutter.given.wait(), 10)
            writer.close()
            await asyncio.wait_for(cutter.lost.wait(), 10)
            cutter.lost.clear()
            assert await nothing_was_done(served)


async def nothing_was_done(served) -> bool:
    _, queues, _ = await served.ask("GET", "/api/v1/queues")
    return await served.count() == 0 and not any(queue["paused"] for queue in queues["items"])


REFUSED = {
    "no HTTP": (b"HELO there\r\n\r\n", 400),
    "a head without end": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60_000, 431),
    "a header without end": (b"GET / HTTP/1.1\r\nX: " + b"y" * 360_000, 431),
    "a malformed body": (post(b"", length=False) + b"no size\r\n", 400),
    "trailers without end": (post(b"", length=False) + b"0\r\n" + b"X: y\r\n" * 60_000, 431),
    "a large head": (post(b"[]", b"X: " + b"y" * MAX_HEADER) + b"[]", 431),
    "a large body": (post(b"x" * (MAX_BODY + 1)) + b"x" * (MAX_BODY + 1), 413),
}


async def test_a_refusal_waits_for_its_turn(cutter, edge):
    """It must not be read as the answer to the good request before it, which is carried out."""
    good = array_of(2, 300)
    async with edge as served:
        for done, (what, size) in enumerate(itertools.product(REFUSED, (1448, 60_000, 150_000)), 1):
            text, refusal = REFUSED[what]
            answers = await send(served, cutter, every(post(good) + good + text, size), answers=2)
            assert (what, [status for status, _ in answers]) == (what, [201, refusal])
            assert await served.count() == 2 * done


async def test_after_a_refused_request_the_connection_serves_the_next(cutter, edge):
    async with edge as served:
        good, large = array_of(2, 86_000), array_of(2, MAX_BODY + 2000)
        text = post(large) + large + post(good, b"X: " + b"y" * MAX_HEADER) + good + post(good) + good
        answers = await send(served, cutter, every(text, 50_000), answers=3)
        assert [status for status, _ in answers] == [413, 431, 201]
        assert await served.count() == 2


async def test_trailers_are_no_headers(cutter, edge):
    """What comes after the body cannot add to the head that was judged before it."""
    async with edge as served:
        body = RUN % b"ada"
        text = post(body, length=False) + chunked(body, 10)[:-2] + b"Idempotency-Key: late\r\n\r\n"
        for _ in range(2):
            ((status, _),) = await send(served, cutter, [text[:90], text[90:]])
            assert status == 201
        assert await served.count() == 2
