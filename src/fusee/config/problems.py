"""The errors of a configuration, collected so that all of them are reported at once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

from fusee.errors import ConfigError

__all__ = ["Place", "Problems", "nearest"]


@dataclass(frozen=True)
class Place:
    """Where a setting was written: a line of a file, or an environment variable or override by name."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return f"from {self.source}" if self.line is None else f"at {self.source}:{self.line}"


@dataclass
class Problems:
    found: list[tuple[Place, str]] = field(default_factory=list)

    def add(self, place: Place, text: str) -> None:
        self.found.append((place, text))

    def raise_any(self) -> None:
        if not self.found:
            return
        # Sorted by line: the order in which they were found means nothing to a reader.
        texts = [
            text
            for place, text in sorted(self.found, key=lambda one: (one[0].line is None, one[0].line or 0))
        ]
        if len(texts) == 1:
            raise ConfigError(texts[0])
        raise ConfigError("\n  ".join([f"the configuration has {len(texts)} problems:", *texts]))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar name, if one is similar enough."""
    matches = get_close_matches(name, list(names), n=1, cutoff=0.65)
    return matches[0] if matches else None
