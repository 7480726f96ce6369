"""Fingerprints: few reads decide whether a source still has the content that a job was launched with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Self

from fusee.bulk.sources.base import ItemSource
from fusee.errors import Conflict

__all__ = ["Fingerprint", "digest_of_file", "look_at", "spans", "time_of"]

SAMPLES = 16
SAMPLE = 1 << 16
"""The bytes of a sample: content up to 1 MiB is read completely, of longer content 1 MiB is read."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Size, modification time and sampled content; the content decides, the others are for the message."""

    size: int
    sample: str
    modified: str = ""
    etag: str = ""

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Self:
        return cls(**{name: kept[name] for name in cls.__slots__ if name in kept})

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value != ""}

    def __str__(self) -> str:
        parts = [f"{self.size} bytes"]
        if self.modified:
            parts.append(f"changed at {self.modified}")
        if self.etag:
            parts.append(f"ETag {self.etag[:80]}")
        return ", ".join([*parts, f"content {self.sample[:12]}"])


def spans(size: int) -> list[tuple[int, int]]:
    """Returns (offset, bytes) of the samples for this size: its first and last bytes, and even steps
    between."""
    if size <= SAMPLES * SAMPLE:
        return [(0, size)] if size else []
    last = size - SAMPLE
    return [(last * number // (SAMPLES - 1), SAMPLE) for number in range(SAMPLES)]


def digest_of_file(file: BinaryIO, size: int) -> str:
    """Returns the digest of the samples of its first `size` bytes."""
    digest = hashlib.sha256()
    for offset, many in spans(size):
        file.seek(offset)
        digest.update(file.read(many))
    return digest.hexdigest()[:32]


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refuse(what: str, kept: Fingerprint, found: Fingerprint, why: str = "") -> None:
    """Raises `Conflict` with both values."""
    raise Conflict(
        f"source: {what} changed since the job was launched{why}: it had {kept}; it has {found}:"
        " restore the former content and resume the job, or create a new job for the new content"
    )


async def look_at(
    source: ItemSource, kept: Mapping[str, Any] | None = None
) -> tuple[tuple[int, int], dict[str, Any] | None]:
    """Returns the bounds of a source and its fingerprint; raises `Conflict` when it is not the content of
    `kept`, or when it was replaced while it was counted."""
    before = await source.fingerprint() if kept is None else kept
    bounds = await source.bounds()
    found = await source.fingerprint()
    if before is not None:
        await source.verify(before)
    return bounds, found
