"""The databases that are measured: private servers with default settings, but for PostgreSQL's memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tools import servers

__all__ = ["Databases"]

POSTGRES = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""As on any server that is meant to be one: by default a million runs fit into neither."""


class Databases:
    """Makes databases, on servers that run for as long as `opened` lasts."""

    def __init__(self, folder: Path, running: dict[str, servers.Database]) -> None:
        self.folder = folder
        self.servers = running
        self._made = 0

    @classmethod
    @contextmanager
    def opened(cls, kinds: Iterable[str]) -> Iterator[Databases]:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fusee-bench-"))
            running: dict[str, servers.Database] = {}
            if "postgres" in kinds:
                running["postgres"] = stack.enter_context(servers.postgres())
                _give_memory(running["postgres"])
            if "mysql" in kinds:
                running["mysql"] = stack.enter_context(servers.mysql())
            yield cls(Path(folder), running)

    def create(self, kind: str) -> str:
        """The URL of a new, empty database."""
        if kind in self.servers:
            return self.servers[kind].create_database()
        self._made += 1
        place = self.folder / str(self._made)
        place.mkdir()
        return f"sqlite:///{place}/fusee.db"

    @asynccontextmanager
    async def fresh(self, kind: str) -> AsyncIterator[str]:
        """A new one that is gone afterwards: nothing of it is left to be tidied up in the background."""
        url = self.create(kind)
        try:
            yield url
        finally:
            if kind in self.servers:
                self.servers[kind].drop_database(url)
            else:
                shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)


def _give_memory(server: servers.Database) -> None:
    if not server.pids:
        return  # not ours to restart
    for name, value in POSTGRES.items():
        servers.run_sql(server.url, f"alter system set {name} = '{value}'")
    server.restart()
