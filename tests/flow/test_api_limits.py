"""What one request may cost: head, body, time; and answers to what is hardly a request."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import closing

import pytest

from fusee.errors import StoreUnavailable
from fusee.runs.rest import intake
from fusee.runs.service.runs import RunOperations
from fusee.surfaces.rest import protocols
from fusee.surfaces.rest import serving as serving_module
from fusee.surfaces.rest.serving import ApiServer

RUNS = "/api/v1/runs"


async def talk(served, text: bytes) -> tuple[int, dict]:
    """Send raw bytes; (status, body) of the answer."""
    reader, writer = await asyncio.open_connection(*served.server.address)
    try:
        writer.write(text)
        await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        assert b"application/problem+json" in head
        return int(head.split(b" ")[1]), json.loads(await reader.readexactly(length))
    finally:
        writer.close()


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    """With and without the optional parser."""
    if request.param == "h11":
        monkeypatch.setattr(serving_module, "protocol_for", lambda max_header: protocols.H11)
    return request.param


async def test_a_large_head(parser, serving):
    async with serving(api={"max_header": 2048}) as served:
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        status, body = await talk(served, head + b"X: " + b"x" * 3000 + b"\r\n\r\n")
        assert (status, body["type"]) == (431, "urn:fusee:problem:head-too-large")
        status, body = await talk(served, b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 431


async def test_a_head_without_end(parser, serving):
    async with serving(api={"max_header": 2048}) as served:
        status, _ = await talk(served, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000)
        assert status == 431
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_what_is_not_http(parser, served):
    status, body = await talk(served, b"HELO there\r\n\r\n")
    assert (status, body["type"]) == (400, "urn:fusee:problem:malformed")


async def test_a_chunked_body_without_a_length(parser, serving):
    async with serving(api={"max_body": 4096}) as served:

        async def body():
            yield b'{"handler": "greet", "payload": {"a": "'
            for _ in range(100):
                yield b"x" * 1000

        status, problem, _ = await served.ask(
            "POST", RUNS, data=body(), headers={"Content-Type": "application/json"}
        )
        assert status == 413 and "4096" in problem["detail"]
        assert await served.count() == 0
        # The connection is still good for the next one.
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}))[0] == 201


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_client_that_writes_all_before_it_reads_is_told_413(parser, serving, chunked):
    body = b"x" * 12_000_000

    def ask(url: str) -> int:
        host, _, port = url.removeprefix("http://").partition(":")
        headers = {"Content-Type": "application/json"}
        sent = iter([body]) if chunked else body
        with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
            connection.request("POST", RUNS, sent, headers, encode_chunked=chunked)
            with connection.getresponse() as answer:
                return answer.status

    async with serving(api={"max_body": 4096}) as served:
        assert await asyncio.to_thread(ask, served.url) == 413
        assert await served.count() == 0


async def test_a_large_body_that_stops_coming_is_refused_all_the_same(parser, serving):
    async with serving(api={"max_body": 4096}) as served:
        head = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        status, _ = await talk(served, head + b"Content-Length: 9000\r\n\r\n{")
        assert status == 413


async def test_a_length_that_lies(served):
    huge = b"Content-Length: 99999999999999999999\r\nContent-Type: application/json\r\n\r\n"
    status, _ = await talk(served, b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n" + huge)
    assert status in (400, 413)


async def test_a_body_that_never_comes(serving):
    async with serving(api={"request_timeout": 0.2}) as served:
        head = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        status, body = await talk(served, head + b"Content-Length: 100\r\n\r\n{")
        assert (status, body["type"]) == (504, "urn:fusee:problem:deadline")


async def test_work_that_takes_too_long_is_cancelled(serving, monkeypatch):
    cancelled = asyncio.Event()

    async def stuck(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(api={"request_timeout": 0.1}) as served:
        monkeypatch.setattr(served.server.services.of("default")[RunOperations], "list", stuck)
        status, body, _ = await served.ask("GET", RUNS)
        assert (status, body["status"]) == (504, 504)
        assert cancelled.is_set()


async def test_a_stream_lives_as_long_as_data_flows(serving, monkeypatch):
    monkeypatch.setattr(intake, "CHUNK", 10)
    async with serving(api={"request_timeout": 0.5}) as served:
        runs = served.server.services.of("default")[RunOperations]
        submit, taken = runs.submit, asyncio.Event()

        async def seen(specs, **options):
            answer = await submit(specs, **options)
            taken.set()
            return answer

        runs.submit = seen
        line = b'{"handler": "greet"}\n'

        async def body():
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 1.2:
                taken.clear()
                yield line * 10
                await taken.wait()
            yield line
            await asyncio.Event().wait()  # and then nothing more, without an end

        status, problem, _ = await served.ask(
            "POST", RUNS, data=body(), headers={"Content-Type": "application/x-ndjson"}
        )
        assert status == 504
        assert problem["accepted"] == await served.count() >= 20


async def test_the_database_is_away(served, monkeypatch, caplog):
    async def away(*_: object) -> None:
        raise StoreUnavailable("the database did not answer: db.internal refused user fusee")

    monkeypatch.setattr(served.server.services.of("default")[RunOperations], "list", away)
    status, body, headers = await served.ask("GET", RUNS)
    assert (status, headers["Retry-After"]) == (503, "2")
    assert "db.internal" not in str(body)
    assert "db.internal" in caplog.records[-1].error


async def test_an_unexpected_error_is_logged_under_its_request_id(served, monkeypatch, caplog):
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(served.server.services.of("default")[RunOperations], "list", broken)
    status, body, headers = await served.ask("GET", RUNS, headers={"X-Request-Id": "trace-7"})
    assert (status, body["request_id"], headers["X-Request-Id"]) == (500, "trace-7", "trace-7")
    assert "secret" not in str(body) and "Traceback" not in str(body)
    (record,) = [one for one in caplog.records if one.exc_info]
    assert (record.request_id, record.path) == ("trace-7", RUNS)


async def test_a_request_id_that_is_no_id_is_replaced(served):
    _, _, headers = await served.ask("GET", "/healthz", headers={"X-Request-Id": "a b;c"})
    assert headers["X-Request-Id"] != "a b;c"


async def test_a_port_that_is_taken(served):
    from fusee.config import load
    from fusee.errors import ConfigError

    port = served.server.address[1]
    served.app.config = load(env={}, overrides={"api": {"bind_address": f"127.0.0.1:{port}"}})
    with pytest.raises(ConfigError, match="choose another port"):
        await ApiServer(served.app.api()).run()
