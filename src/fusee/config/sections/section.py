"""What every section of the configuration is."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["SECRET", "Secret", "Section"]


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
