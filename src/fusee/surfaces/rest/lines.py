"""A body that comes as lines, each read as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request

from fusee.surfaces.rest.problems import Problem
from fusee.values.names import MOST_PAYLOAD

__all__ = ["LONGEST_LINE", "lines_of"]

LONGEST_LINE = MOST_PAYLOAD + 64 * 2**10
"""The largest payload, and room for the fields around it."""


async def lines_of(request: Request) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Complete lines as they arrive, each with its number from 1; blank ones are left out."""
    number = 0
    pieces: list[bytes] = []
    size = 0
    async for part in request.stream():
        *ends, rest = part.split(b"\n")
        lines = []
        for end in ends:
            number += 1
            _check_length(size + len(end), number)
            line = b"".join((*pieces, end))
            pieces, size = [], 0
            if line.strip():
                lines.append((number, line))
        if rest:
            pieces.append(rest)
            size += len(rest)
            _check_length(size, number + 1)
        if lines:
            yield lines
    last = b"".join(pieces)
    if last.strip():
        yield [(number + 1, last)]


def _check_length(size: int, number: int) -> None:
    if size > LONGEST_LINE:
        raise Problem(
            413,
            f"line {number} is over {LONGEST_LINE} bytes: put one object on a line, and large data elsewhere",
            line=number,
        )
