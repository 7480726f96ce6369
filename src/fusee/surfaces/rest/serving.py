"""The API on a socket: uvicorn, with every limit set and every answer a problem or a success."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from fusee.errors import ConfigError
from fusee.surfaces.rest.gate import refuse_open_bind
from fusee.surfaces.rest.protocols import head_bound, protocol_for
from fusee.surfaces.rest.services import Services
from fusee.surfaces.tls import Certificates

__all__ = ["ApiServer", "StatusServer"]

KEEP_ALIVE = 30
GRACE = 10
"""Seconds that requests under way get when the server stops."""
BACKLOG = 1024


class ApiServer:
    """`await server.run()` until `server.stop()`; `server.url` once it has `started`."""

    setting = "api.bind_address"
    encrypts = True

    def __init__(self, api: FastAPI) -> None:
        self.services: Services = api.state.services
        self.started = asyncio.Event()
        config = self.services.config
        self._server = _Server(
            uvicorn.Config(
                api,
                http=protocol_for(config.max_header),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=GRACE,
                h11_max_incomplete_event_size=head_bound(config.max_header),
            ),
            self.started,
        )
        self._socket: socket.socket | None = None
        self.certificates: Certificates | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port that was given when 0 was asked for."""
        assert self._socket is not None, "the server does not run"
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        scheme = "http" if self.certificates is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def run(self) -> None:
        config = self.services.config
        await self._may_listen()
        with _bound(self.setting, config.host, config.port) as listening:
            self._socket = listening
            follow = self._use_tls()
            try:
                await self._server.serve([listening])
            finally:
                if follow is not None:
                    follow.cancel()

    def _use_tls(self) -> asyncio.Task[None] | None:
        """Serve TLS where it is configured; returns the task that watches the certificate's files."""
        if not self.encrypts or not self.services.tls.enabled:
            return None
        self.certificates = Certificates(self.services.tls)
        self._server.config.load()
        self._server.config.ssl = self.certificates.context
        return asyncio.create_task(self.certificates.follow())

    def stop(self) -> None:
        self.services.closing.set()
        self._server.should_exit = True

    async def _may_listen(self) -> None:
        refuse_open_bind(
            self.services.config, self.services.tls, await self.services.authenticator.keys.any()
        )


class StatusServer(ApiServer):
    """Health and metrics of a process without the API: it may listen widely before there is a key, since
    health tells nobody anything and the gate asks for a key before it shows the metrics."""

    setting = "status.bind_address"
    encrypts = False  # probes of an orchestrator speak plain HTTP

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
