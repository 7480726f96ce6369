"""A TCP proxy whose connections can die without a word: they stay open, and nothing comes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

__all__ = ["SilentProxy", "proxied"]


@dataclass(eq=False)
class _Link:
    """One connection of a client, and ours to the server on its behalf."""

    ours: asyncio.StreamWriter
    theirs: asyncio.StreamWriter
    dead: bool = False
    left: bool = False
    """The client closed it."""
    pumps: list[asyncio.Task[None]] = field(default_factory=list)


class SilentProxy:
    """What is sent on a dead connection is acknowledged by the kernel and goes nowhere; the server, too,
    hears nothing of its end. New connections work."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.links: list[_Link] = []
        self.own_port = 0
        self.flowing = asyncio.Event()
        """While it is cleared, everything waits, new connections too; nothing is lost."""
        self.flowing.set()
        self.peak = 0
        """The most connections that clients held, looked at a moment after each connect: a client that
        replaces one is seen to close it only then."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.flowing.wait()
        try:
            from_server, to_server = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        link = _Link(to_server, writer)
        self.links.append(link)
        asyncio.get_running_loop().call_later(0.2, self._count)
        link.pumps = [
            asyncio.ensure_future(self._pump(link, reader, to_server, from_client=True)),
            asyncio.ensure_future(self._pump(link, from_server, writer, from_client=False)),
        ]

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_client: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self.flowing.wait()
                if not link.dead:
                    writer.write(data)
                    await writer.drain()
        link.left = link.left or from_client
        if not link.dead:
            writer.close()

    def _count(self) -> None:
        self.peak = max(self.peak, self.open)

    def go_silent(self) -> int:
        """All connections that are open now die, without a word to anyone; returns how many."""
        dying = [link for link in self.links if not (link.dead or link.left)]
        for link in dying:
            link.dead = True
        return len(dying)

    @property
    def still_held(self) -> int:
        """Dead connections that a client has not closed."""
        return sum(link.dead and not link.left for link in self.links)

    @property
    def open(self) -> int:
        """Connections that clients hold, dead or alive."""
        return sum(not link.left for link in self.links)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[SilentProxy, str]]:
    """A proxy in front of the server of that URL, and the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    proxy = SilentProxy(parts.hostname, parts.port)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.own_port = server.sockets[0].getsockname()[1]
    user, at, _ = parts.netloc.rpartition("@")
    through = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{proxy.own_port}"))
    try:
        yield proxy, through
    finally:
        server.close()
        for link in proxy.links:
            for pump in link.pumps:
                pump.cancel()
            await asyncio.gather(*link.pumps, return_exceptions=True)
            link.ours.close()
            link.theirs.close()
