"""HTTP calls against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from fusee.clock import ManualClock
from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.callbacks import Callback, CallbackTerms
from fusee.engine.worker.executor import Job
from fusee.errors import LeaseLost, StoreUnavailable
from fusee.executors.http.executor import HttpExecutor, retry_after

LOOPBACK = ["127.0.0.0/8"]


class Server:
    """Answers with what the test last put into `answer`; remembers requests."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.peers: list[Any] = []
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = self.ok

    async def ok(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text="fine")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peername"))
        self.arrived.set()
        return await self.answer(request)

    def replies(self, status: int, **fields: Any) -> None:
        async def reply(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, **fields)

        self.answer = reply


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    this = Server()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", this.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield this, f"http://127.0.0.1:{port}"
    this.release.set()
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[HttpExecutor]:
    executor = HttpExecutor(timeout=5, allow_private=LOOPBACK, max_response=10_000, output_tail=200)
    yield executor
    await executor.close()


async def test_a_call_succeeds(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server
    this = job(url=f"{url}/a?run={{{{run_id}}}}", body={"try": "{{attempt}}"}, headers={"Cookie": "a=b"})
    ended = await http.execute(this)
    assert (ended.end, ended.effect, ended.output) == (End.SUCCEEDED, Effect.APPLIED, "fine")
    assert this.output == "fine"
    result = json.loads(ended.result or "")
    assert result["status"] == 200
    assert result["headers"]["content-type"] == "text/plain; charset=utf-8"
    request = site.seen[0]
    assert (request.method, str(request.rel_url), site.bodies[0]) == ("POST", "/a?run=7", b'{"try": "2"}')
    assert request.headers["Idempotency-Key"] == "fusee-run-7"
    assert request.headers["X-Fusee-Run-Id"] == "7"
    assert request.headers["X-Fusee-Attempt"] == "2"


async def test_connections_are_reused_and_cookies_forgotten(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server
    site.replies(200, headers={"Set-Cookie": "session=secret"})
    for _ in range(3):
        assert (await http.execute(job(url=url))).end is End.SUCCEEDED
    assert len(set(site.peers)) == 1
    assert not any("Cookie" in request.headers for request in site.seen)


async def test_a_status_out_of_range_fails(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server
    site.replies(404, text="no such thing")
    ended = await http.execute(job(url=f"{url}/secret-token"))
    assert (ended.end, ended.effect, ended.output) == (End.FAILED, Effect.UNKNOWN, "no such thing")
    assert ended.error == f"HTTP 404 Not Found (GET {url})"
    assert (await http.execute(job(url=url, success=[404]))).end is End.SUCCEEDED


async def test_a_redirect_is_not_followed(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server
    site.replies(302, headers={"Location": "http://169.254.169.254/"})
    ended = await http.execute(job(url=url))
    assert ended.end is End.FAILED
    assert "redirects are not followed" in (ended.error or "")
    assert len(site.seen) == 1


@pytest.mark.parametrize(("status", "after"), [(429, 17.0), (503, 17.0), (404, None)])
async def test_the_servers_wish_to_wait_is_kept(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job], status: int, after: float | None
) -> None:
    site, url = server
    site.replies(status, headers={"Retry-After": "17"})
    assert (await http.execute(job(url=url))).after == after


def test_retry_after_is_seconds_or_a_date() -> None:
    now = ManualClock(start_us=1_800_000_000_000_000).now_us() / 1e6  # 2027-01-15 08:00:00 UTC
    assert retry_after("Fri, 15 Jan 2027 08:00:30 GMT", now) == 30
    assert retry_after("Fri, 15 Jan 2027 07:00:00 GMT", now) == 0
    assert retry_after(" 5 ", now) == 5
    assert retry_after("9" * 50, now) == 30 * 86400
    assert [retry_after(text, now) for text in (None, "", "-1", "soon", "1.5")] == [None] * 5


async def test_a_long_answer_is_cut_off(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 4096)
        except ConnectionError:
            site.release.set()
        return response

    site.answer = endless
    ended = await asyncio.wait_for(http.execute(job(url=url)), 5)
    assert ended.end is End.SUCCEEDED
    assert (ended.output or "").endswith("x\n… cut off at 10000 bytes …")
    await asyncio.wait_for(site.release.wait(), 5)  # the server sees that nobody listens


async def test_no_connection_means_that_nothing_was_done(http: HttpExecutor, job: Callable[..., Job]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        ended = await http.execute(job(url=f"http://127.0.0.1:{taken.getsockname()[1]}/"))
    assert (ended.end, ended.effect) == (End.FAILED, Effect.NONE)
    assert (ended.error or "").startswith("no connection (GET http://127.0.0.1:")


async def test_a_connection_lost_leaves_it_open(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server

    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    site.answer = hang_up
    ended = await http.execute(job(url=url, method="POST"))
    assert (ended.end, ended.effect) == (End.FAILED, Effect.UNKNOWN)
    assert "the connection broke" in (ended.error or "")


async def test_half_an_answer_is_no_success(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    site.answer = half
    this = job(url=url)
    ended = await http.execute(this)
    assert (ended.end, ended.effect, this.output) == (End.FAILED, Effect.UNKNOWN, "half")


async def silent(site: Server) -> None:
    async def wait(_request: web.Request) -> web.StreamResponse:
        await site.release.wait()
        return web.Response()

    site.answer = wait


async def test_a_timeout_leaves_it_open(server: tuple[Server, str], job: Callable[..., Job]) -> None:
    site, url = server
    await silent(site)
    executor = HttpExecutor(timeout=0.2, allow_private=LOOPBACK)
    ended = await executor.execute(job(url=url))
    assert (ended.end, ended.effect) == (End.TIMED_OUT, Effect.UNKNOWN)
    assert "no complete answer within 0.2 s" in (ended.error or "")
    await executor.close()


async def test_cancelled_it_leaves_at_once(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job]
) -> None:
    site, url = server
    await silent(site)
    this = job(url=url, grace=60, timeout=60)
    task = asyncio.create_task(http.execute(this))
    await asyncio.wait_for(site.arrived.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 5)
    assert this.effect is Effect.UNKNOWN


# --- the guard, from outside -------------------------------------------------------------------------


class Rebinding(AbstractResolver):
    """Answers differently each time it is asked, as an attacker's DNS server does."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(hostname=host, host=text, port=port, family=socket.AF_INET, proto=0, flags=0)
            for text in found
        ]

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "127.1",
        "１２７.0.0.1",
    ],
)
async def test_this_machine_is_out_of_reach(
    server: tuple[Server, str], job: Callable[..., Job], host: str
) -> None:
    site, url = server
    executor = HttpExecutor()
    ended = await executor.execute(job(url=url.replace("127.0.0.1", host)))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE), ended
    assert site.seen == []
    await executor.close()


async def test_a_name_that_turns_private_is_refused(
    server: tuple[Server, str], job: Callable[..., Job]
) -> None:
    """First allowed, then private: each connection goes to an address that was itself judged."""
    site, url = server
    name = url.replace("127.0.0.1", "rebind.example")
    resolver = Rebinding(["127.0.0.1"], ["127.0.0.2"], ["8.8.8.8", "127.0.0.1"])
    executor = HttpExecutor(allow_private=["127.0.0.1"], resolver=resolver)
    assert (await executor.execute(job(url=name, headers={"X": "1"}))).end is End.SUCCEEDED
    assert resolver.asked == 1  # once: what was judged is what was called
    assert site.seen[0].host.startswith("rebind.example")
    await executor.close()
    executor = HttpExecutor(resolver=resolver)
    for _ in range(2):
        ended = await executor.execute(job(url=name))
        assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
        assert "rebind.example (127.0.0." in (ended.error or "")
    assert len(site.seen) == 1
    await executor.close()


async def test_an_allowed_host_may_be_private(server: tuple[Server, str], job: Callable[..., Job]) -> None:
    _, url = server
    executor = HttpExecutor(allow_private=["svc.internal"], resolver=Rebinding(["127.0.0.1"]))
    ended = await executor.execute(job(url=url.replace("127.0.0.1", "svc.internal")))
    assert ended.end is End.SUCCEEDED
    ended = await executor.execute(job(url=url.replace("127.0.0.1", "other.internal")))
    assert ended.end is End.ABANDONED
    await executor.close()


async def test_a_name_without_an_address_fails_and_may_be_tried_again(job: Callable[..., Job]) -> None:
    executor = HttpExecutor(resolver=Rebinding([]))
    ended = await executor.execute(job(url="http://nowhere.example/"))
    assert (ended.end, ended.effect) == (End.FAILED, Effect.NONE)
    assert "nowhere.example has no address" in (ended.error or "")
    await executor.close()


async def test_a_proxy_of_the_environment_is_not_used(
    server: tuple[Server, str], http: HttpExecutor, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, url = server
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await http.execute(job(url=url))).end is End.SUCCEEDED
    assert len(site.seen) == 1


async def test_a_wrong_payload_is_abandoned(http: HttpExecutor, job: Callable[..., Job]) -> None:
    ended = await http.execute(job(url="http://h/{{nope}}"))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
    await HttpExecutor().close()


# --- calls that are answered later --------------------------------------------------------------------


class Desk:
    """Opens callbacks, or refuses to."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.refusal = refusal
        self.opened: list[tuple[int, int, CallbackTerms]] = []

    async def open(self, job: Job, terms: CallbackTerms) -> Callback:
        if self.refusal is not None:
            raise self.refusal
        self.opened.append((job.run_id, job.attempt, terms))
        return Callback(f"https://f.example/api/v1/callbacks/{job.run_id}", "s3cret")


@pytest.fixture
async def calling() -> AsyncIterator[Callable[[Desk], HttpExecutor]]:
    """`calling(desk)`: an executor whose calls can be answered."""
    made: list[HttpExecutor] = []

    def make(desk: Desk) -> HttpExecutor:
        made.append(HttpExecutor(timeout=5, allow_private=LOOPBACK, open_callback=desk.open))
        return made[-1]

    yield make
    for executor in made:
        await executor.close()


async def test_an_asynchronous_call_that_is_accepted_has_not_ended(
    server: tuple[Server, str], calling: Callable[[Desk], HttpExecutor], job: Callable[..., Job]
) -> None:
    site, url = server
    desk = Desk()

    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(status=202, text=f"will do, {request.headers['X-Fusee-Callback-Token']}")

    site.answer = echo
    this = job(url=url, mode="async", callback_timeout=60, callback_hmac=True)
    ended = await calling(desk).execute(this)
    assert (ended.end, ended.effect, ended.result) == (End.ACCEPTED, Effect.UNKNOWN, None)
    assert ended.output == this.output == "will do, ***", "whoever reads a run cannot thereby end it"
    assert desk.opened == [(7, 2, CallbackTerms(60.0, signed=True))]
    assert site.seen[0].headers["X-Fusee-Callback-Url"] == "https://f.example/api/v1/callbacks/7"


@pytest.mark.parametrize(("status", "end"), [(500, End.FAILED), (302, End.FAILED), (409, End.ACCEPTED)])
async def test_an_asynchronous_call_that_is_not_accepted_fails(
    server: tuple[Server, str],
    calling: Callable[[Desk], HttpExecutor],
    job: Callable[..., Job],
    status: int,
    end: End,
) -> None:
    site, url = server
    site.replies(status)
    ended = await calling(Desk()).execute(job(url=url, mode="async", success=["200-299", 409]))
    assert (ended.end, ended.effect) == (end, Effect.UNKNOWN)


@pytest.mark.parametrize(
    ("refusal", "end", "error"),
    [
        (LeaseLost("attempt 2 of run 7 is lost"), End.LOST, "attempt 2 of run 7 is lost"),
        (
            StoreUnavailable("no answer from db.internal"),
            End.FAILED,
            "not called: the database did not answer",
        ),
        (ValueError("set api.public_url"), End.ABANDONED, "set api.public_url"),
    ],
)
async def test_nothing_is_called_when_no_answer_could_be_taken(
    server: tuple[Server, str],
    calling: Callable[[Desk], HttpExecutor],
    job: Callable[..., Job],
    refusal: Exception,
    end: End,
    error: str,
) -> None:
    site, url = server
    ended = await calling(Desk(refusal)).execute(job(url=url, mode="async"))
    assert (ended.end, ended.error, ended.effect) == (end, error, Effect.NONE)
    assert site.seen == []


async def test_an_asynchronous_call_needs_someone_to_answer_to(
    http: HttpExecutor, job: Callable[..., Job]
) -> None:
    ended = await http.execute(job(url="http://127.0.0.1:9/", mode="async"))
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
    assert "needs a worker that can be called back" in (ended.error or "")
