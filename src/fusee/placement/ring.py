"""A ring of names: each key belongs to the next name on it, so when one comes or goes few keys move."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b

__all__ = ["Ring", "hash_of"]

POINTS = 128
"""Of each name, so that shares are even: tests/unit/test_model_ring.py says how even."""


def hash_of(text: str) -> int:
    """The same in every process and version: `hash` is not."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class Ring:
    """`ring.owner(key)`; made anew when the names change."""

    __slots__ = ("_names", "_points", "names")

    def __init__(self, names: Iterable[str], points: int = POINTS) -> None:
        self.names = frozenset(names)
        placed = sorted((hash_of(f"{name}#{n}"), name) for name in self.names for n in range(points))
        self._points = [at for at, _ in placed]
        self._names = [name for _, name in placed]

    def owner(self, key: str) -> str | None:
        """None on an empty ring."""
        return next(self.preference(key), None)

    def preference(self, key: str) -> Iterator[str]:
        """All names, the owner first, then who would be it without those before."""
        seen: set[str] = set()
        start = bisect_right(self._points, hash_of(key))
        for n in range(len(self._names)):
            name = self._names[(start + n) % len(self._names)]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self.names):
                    return
