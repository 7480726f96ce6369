"""Where a page ended, as text that callers pass back without reading it."""

from __future__ import annotations

import base64
import binascii

from fusee.surfaces.rest.problems import Problem

__all__ = ["close_cursor", "open_cursor", "wrong_cursor"]

LONGEST = 256


def close_cursor(kind: str, place: str) -> str:
    """`kind` tells the cursors of one list from those of another."""
    return base64.urlsafe_b64encode(f"{kind}:{place}".encode()).decode().rstrip("=")


def open_cursor(kind: str, cursor: str) -> str:
    """The place; refuses what `close_cursor` did not write."""
    try:
        padded = cursor[:LONGEST] + "=" * (-len(cursor[:LONGEST]) % 4)
        found, _, place = base64.urlsafe_b64decode(padded).decode("ascii").partition(":")
        if found == kind:
            return place
    except (binascii.Error, ValueError):
        pass
    raise wrong_cursor()


def wrong_cursor() -> Problem:
    return Problem(422, "cursor must be a next_cursor that this API answered", field="cursor")
