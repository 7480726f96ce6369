"""What every section of the configuration is, and the tables of text in it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer

__all__ = ["SECRET", "Labels", "Secret", "Section", "Table"]


class Secret:
    """Marks a field whose value is never shown: not in a repr, not in an error."""


SECRET = Secret()


class Section(BaseModel):
    """A group of settings, immutable once read."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            secret = name and any(isinstance(mark, Secret) for mark in type(self).model_fields[name].metadata)
            yield name, self.shown(name, value) if name and secret and value else value

    def shown(self, name: str, value: Any) -> str:
        """A secret as it may be shown."""
        return "***"


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
