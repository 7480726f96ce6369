"""A TCP proxy that can keep back what passes through it, and cut off clients while the server goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Proxy", "through_proxy"]


class Proxy:
    """`hold()` keeps everything back, new connections too, until `release()`.

    `cut()` ends the clients' side of each connection and leaves the server's side open, so that the server
    goes on with what it was asked for.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._passing = asyncio.Event()
        self._passing.set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._servers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self) -> None:
        self._passing.clear()

    def release(self) -> None:
        self._passing.set()

    def cut(self) -> int:
        """Returns how many clients were cut off."""
        cut, self._clients = self._clients, set()
        for client in cut:
            client.transport.abort()
        return len(cut)

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        await self._passing.wait()
        try:
            answers, server = await asyncio.open_connection(self.host, self.port)
        except OSError:
            client.transport.abort()
            return
        self._clients.add(client)
        self._servers.add(server)
        for source, sink in ((reader, server), (answers, client)):
            task = asyncio.ensure_future(self._pump(source, sink, client))
            self._tasks.add(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
        if client in self._clients:  # one side hung up by itself: so does the other
            sink.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._clients | self._servers:
            writer.transport.abort()


@asynccontextmanager
async def through_proxy(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy in front of that server, and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    user, at, _ = parts.netloc.rpartition("@")
    port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
    finally:
        listening.close()
        await proxy.close()
