"""A mapping that stays as it was: it can be hashed, pickled and shared."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer

__all__ = ["Labels", "Table"]


class Table(Mapping[str, str]):
    """Text by name, immutable."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, name: str) -> str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


Labels = Annotated[
    Mapping[str, str], AfterValidator(Table), PlainSerializer(dict, return_type=dict[str, str])
]
