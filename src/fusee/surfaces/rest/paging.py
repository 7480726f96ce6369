"""Lists in pages: how many are wanted, and the cursor at which the next page begins.

A cursor is text that callers pass back without reading it. Each list has a kind of its own, so a cursor of
one list is refused by another.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query

from fusee.surfaces.rest.problems import Problem
from fusee.values.names import check_name

__all__ = ["LONGEST_PAGE", "Cursor", "Page", "Pager", "Wanted", "name_at", "number_at"]

LONGEST_PAGE = 1000
LONGEST_CURSOR = 256

P = TypeVar("P")
T = TypeVar("T")

Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The page that a request asks for."""

    limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 50
    cursor: Cursor = None

    @property
    def asked(self) -> int:
        """How many to read: one more than is shown tells whether there is another page."""
        return min(self.limit + 1, LONGEST_PAGE)


Page = Annotated[Wanted, Depends(Wanted)]


def number_at(place: str) -> int:
    if not place.isdecimal() or int(place) >= 2**63:
        raise ValueError("a place in this list is a number")
    return int(place)


def name_at(place: str) -> str:
    return check_name(place, "cursor")


@dataclass(frozen=True, slots=True)
class Pager(Generic[P]):
    """The pages of one list, which goes on after a place such as a number or a name."""

    kind: str
    read: Callable[[str], P]

    def after(self, cursor: str | None) -> P | None:
        """The place at which a page begins; refuses a cursor that `cursor` did not write."""
        if cursor is None:
            return None
        try:
            padded = cursor[:LONGEST_CURSOR] + "=" * (-len(cursor[:LONGEST_CURSOR]) % 4)
            kind, _, place = base64.urlsafe_b64decode(padded).decode("ascii").partition(":")
            if kind == self.kind:
                return self.read(place)
        except (binascii.Error, ValueError):
            pass
        raise Problem(422, "cursor must be a next_cursor that this API returned", field="cursor")

    def cursor(self, place: object) -> str:
        return base64.urlsafe_b64encode(f"{self.kind}:{place}".encode()).decode().rstrip("=")

    def page(
        self, wanted: Wanted, found: Sequence[T], place: Callable[[T], object], shown: Callable[[T], Any]
    ) -> dict[str, Any]:
        """The answer, of `wanted.asked` things that were read."""
        items = found[: wanted.limit]
        more = len(found) > wanted.limit or len(found) == LONGEST_PAGE
        return {
            "items": [shown(one) for one in items],
            "next_cursor": self.cursor(place(items[-1])) if more else None,
        }
