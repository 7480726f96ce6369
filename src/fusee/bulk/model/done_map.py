"""A set of small numbers as a few bytes: the smaller of a bitmap and a run-length code.

Items that are done out of order mostly form runs, and the code of runs has a few bytes. When every second
item is done, the bitmap is smaller: an eighth of a byte for each item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["decode_done", "done_runs", "encode_done", "encode_runs", "is_sparse"]

BITMAP, RUNS, SPARSE = 0, 1, 2
"""SPARSE: runs that may be very far apart; they are never expanded."""
LONGEST, LONGEST_SPARSE = 42, 63
"""The most bits of a number."""
MOST = 2**20
"""The most numbers that a code may contain: more than any window has."""
_RUN = re.compile(b"\x01+")


def encode_done(done: bytes) -> bytes:
    """Encodes a byte for each number from 0 on: 1 when it is in the set. Trailing zeros cost nothing."""
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


def encode_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """Encodes the numbers of these runs (first, end), which are in order, however far apart they are."""
    found, end = bytearray((SPARSE,)), 0
    for first, until in runs:
        _put(found, first - end)
        _put(found, until - first)
        end = until
    return bytes(found) if len(found) > 1 else b""


def is_sparse(data: bytes) -> bool:
    return data[:1] == bytes((SPARSE,))


def done_runs(data: bytes) -> list[tuple[int, int]]:
    """Returns the numbers of any of these codes as runs (first, end), in order."""
    if is_sparse(data):
        numbers, runs, at = _numbers(data[1:], LONGEST_SPARSE), [], 0
        for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
            runs.append((at + gap, at + gap + length))
            at += gap + length
        return runs
    return [run.span() for run in _RUN.finditer(decode_done(data))]


def decode_done(data: bytes) -> bytearray:
    """Returns the bytes that were encoded, without trailing zeros; raises `ValueError` for another code."""
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
        raise ValueError("a done map contains more numbers than a window has")
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        done += bytes(gap) + b"\x01" * length
    return done


_TO_BYTES = bytes.maketrans(b"01", b"\x00\x01")


def _bits(done: bytes) -> bytes:
    text = bytes(done)[::-1].translate(bytes.maketrans(b"\x00\x01", b"01"))
    return int(text, 2).to_bytes((len(done) + 7) // 8, "little")


def _put(out: bytearray, number: int) -> None:
    """Append a number, seven bits in each byte, the lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes, longest: int = LONGEST) -> list[int]:
    found: list[int] = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > longest:
            raise ValueError("a done map's run is too long")
        if not byte & 0x80:
            found.append(number)
            number = shift = 0
    if shift or len(found) % 2:
        raise ValueError("a done map ends in the middle of a number")
    return found
