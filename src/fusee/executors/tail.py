"""The last bytes of what a program printed, ready for a text column of a database."""

from __future__ import annotations

__all__ = ["Tail"]


class Tail:
    """Keeps the last `limit_bytes` written to it."""

    __slots__ = ("_kept", "_limit", "_written")

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"a tail keeps at least 1 byte, not {limit_bytes!r}")
        self._limit = limit_bytes
        self._kept = bytearray()
        self._written = 0

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._kept += data[-self._limit :]
        # Cut at twice the limit, not at every write: each byte is moved about once.
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    @property
    def dropped(self) -> int:
        """The number of bytes that came before the ones kept."""
        return self._written - min(len(self._kept), self._limit)

    def text(self) -> str:
        """Return what is kept, as text; it says how much is missing at the front."""
        kept = bytes(self._kept[-self._limit :])
        dropped = self.dropped
        if dropped:
            # The cut may have gone through a character: its rest is dropped too.
            start = 0
            while start < min(3, len(kept)) and kept[start] & 0xC0 == 0x80:
                start += 1
            kept, dropped = kept[start:], dropped + start
        text = kept.decode("utf-8", "replace").replace("\x00", "")
        return f"… {dropped} bytes dropped …\n{text}" if dropped else text

    def __len__(self) -> int:
        return min(len(self._kept), self._limit)
