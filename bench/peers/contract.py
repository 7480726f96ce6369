"""What a peer can be asked, whichever language it is written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Peer", "Sizes", "Unavailable"]


class Unavailable(Exception):
    """The peer cannot run here, and why: no npm, no network, a failed install."""


@dataclass(frozen=True)
class Sizes:
    """Jobs a measurement takes, so that it lasts roughly 2 to 6 seconds for this peer."""

    enqueue: int
    drain: int


@dataclass(frozen=True)
class Peer(ABC):
    """One job queue at its best settings. Every method leaves the database as `prepare` left it."""

    name: str
    version: str
    sizes: Sizes
    settings: dict[str, Any] = field(default_factory=dict)

    @abstractmethod
    def install(self) -> None:
        """Fetches the peer into the cache folder unless it is there. Raises `Unavailable`."""

    @abstractmethod
    async def prepare(self, url: str) -> None:
        """Creates the peer's schema in an empty database."""

    @abstractmethod
    async def enqueue(self, url: str, n: int) -> float:
        """Seconds one process takes to enqueue n jobs by the peer's best bulk call."""

    @abstractmethod
    async def drain(self, url: str, n: int, processes: int) -> float:
        """Seconds from the first job's start until the table says that all n are done."""

    @abstractmethod
    async def latency(self, url: str, samples: int) -> list[float]:
        """Seconds from just before each enqueue call to its handler's start, the worker being idle."""
