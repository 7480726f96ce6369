"""A set of small numbers as a few bytes: the smaller of a bitmap and a run-length code.

Out of order done items are mostly runs: after a crash-free minute the code is a handful of bytes; when every
second item is done it is the bitmap, an eighth of a byte each.
"""

from __future__ import annotations

import re

__all__ = ["decode_done", "encode_done"]

BITMAP, RUNS = 0, 1
MOST = 2**20
"""Numbers that a code may tell of: more than any window has."""
_RUN = re.compile(b"\x01+")


def encode_done(done: bytes) -> bytes:
    """`done` holds a byte for each number from 0 on: 1 when it is in the set. Trailing zeros cost nothing."""
    done = done.rstrip(b"\x00")
    if not done:
        return b""
    runs = bytearray((RUNS,))
    end = 0
    for run in _RUN.finditer(done):
        _put(runs, run.start() - end)
        _put(runs, run.end() - run.start())
        end = run.end()
        if len(runs) > len(done) // 8 + 2:
            break
    else:
        return bytes(runs)
    return bytes((BITMAP,)) + _bits(done)


def decode_done(data: bytes) -> bytearray:
    """The bytes that were encoded, without trailing zeros; `ValueError` when it is not such a code."""
    if not data:
        return bytearray()
    kind, body = data[0], data[1:]
    if kind == BITMAP:
        ones = int.from_bytes(body, "little")
        text = bin(ones)[:1:-1].encode()  # lowest first
        return bytearray(text.translate(_TO_BYTES).rstrip(b"\x00"))
    if kind != RUNS:
        raise ValueError(f"a done map begins with {BITMAP} or {RUNS}, not {kind}")
    done = bytearray()
    numbers = _numbers(body)
    if sum(numbers) > MOST:
        raise ValueError("a done map tells of more numbers than a window has")
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        done += bytes(gap) + b"\x01" * length
    return done


_TO_BYTES = bytes.maketrans(b"01", b"\x00\x01")


def _bits(done: bytes) -> bytes:
    text = bytes(done)[::-1].translate(bytes.maketrans(b"\x00\x01", b"01"))
    return int(text, 2).to_bytes((len(done) + 7) // 8, "little")


def _put(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> list[int]:
    found: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 42:
            raise ValueError("a done map's run is too long")
        if not byte & 0x80:
            found.append(number)
            number = shift = 0
    if shift or len(found) % 2:
        raise ValueError("a done map ends in the middle of a number")
    return found
