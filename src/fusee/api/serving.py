"""The API on a socket: uvicorn, with every limit set and every answer a problem or a success."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from fusee.api.gate import refuse_open_bind
from fusee.api.problems import MEDIA_TYPE, Problem
from fusee.api.services import Services
from fusee.errors import ConfigError

__all__ = ["ApiServer", "StatusServer"]

KEEP_ALIVE = 30
GRACE = 10
"""Seconds that requests under way get when the server stops."""
BACKLOG = 1024


class ApiServer:
    """`await server.run()` until `server.stop()`; `server.url` once it has `started`."""

    setting = "api.bind_address"

    def __init__(self, api: FastAPI) -> None:
        self.services: Services = api.state.services
        self.started = asyncio.Event()
        config = self.services.config
        self._server = _Server(
            uvicorn.Config(
                api,
                http=_protocol(config.max_header),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=GRACE,
                h11_max_incomplete_event_size=_head_bound(config.max_header),
            ),
            self.started,
        )
        self._socket: socket.socket | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port that was given when 0 was asked for."""
        assert self._socket is not None, "the server does not run"
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self) -> None:
        config = self.services.config
        await self._may_listen()
        with _bound(self.setting, config.host, config.port) as listening:
            self._socket = listening
            await self._server.serve([listening])

    def stop(self) -> None:
        self.services.closing.set()
        self._server.should_exit = True

    async def _may_listen(self) -> None:
        keys = self.services.operations(self.services.namespace).keys
        refuse_open_bind(self.services.config, await keys.any())


class StatusServer(ApiServer):
    """Health and metrics of a process without the API: it may listen widely before there is a key, since
    health tells nobody anything and the gate asks for a key before it shows the metrics."""

    setting = "status.bind_address"

    def drain(self) -> None:
        """From now on say that this process is not ready; go on answering."""
        self.services.closing.set()

    async def _may_listen(self) -> None:
        return


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, begun: asyncio.Event) -> None:
        super().__init__(config)
        self.begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the program that runs us


@contextmanager
def _bound(setting: str, host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{setting} {host}:{port}: {error.strerror or error}") from None
    with listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError as error:
            raise ConfigError(
                f"{setting} {host}:{port} cannot be used: {error.strerror}; choose another port"
            ) from None
        listening.listen(BACKLOG)
        yield listening


def _head_bound(max_header: int) -> int:
    """Our own limit answers first, with a problem; this one ends what never comes to an end."""
    return max(64 * 2**10, 2 * max_header)


def _protocol(max_header: int) -> type[asyncio.Protocol]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return _H11
    bound = _head_bound(max_header)

    class HttpTools(HttpToolsProtocol):
        """The parser has no limit on the head: a client could send header after header without end."""

        _in_head = True
        _head = 0

        def on_message_begin(self) -> None:
            self._in_head, self._head = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_head, self._head = False, 0
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            began_in_head = self._in_head
            super().data_received(data)
            # A part that began elsewhere holds a body, which has its own limit.
            if began_in_head and self._in_head:
                self._head += len(data)
                if self._head > bound and not self.transport.is_closing():
                    self.transport.write(_raw(431, f"the request head is over {max_header} bytes"))
                    self.transport.close()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._in_head = True

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_raw(400, "this is not HTTP/1.1 as we understand it"))
            self.transport.close()

    return HttpTools


class _H11(H11Protocol):
    def send_400_response(self, msg: str) -> None:
        self.transport.write(_raw(400, "this is not HTTP/1.1 as we understand it, or its head is too large"))
        self.transport.close()


def _raw(status: int, detail: str) -> bytes:
    """An answer to what is not a request."""
    body: dict[str, Any] = Problem(status, detail).body("-", {})
    text = json.dumps(body).encode()
    reason = {400: "Bad Request", 431: "Request Header Fields Too Large"}[status]
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text
