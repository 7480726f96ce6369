"""Labels that a run asks of its worker, and the text by which its lane tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

from fusee.errors import Invalid

__all__ = ["has_labels", "requires_from", "requires_text"]

MOST = 10
LONGEST = 64


def requires_text(given: object) -> str:
    """`gpu=true&zone=a` of {"zone": "a", "gpu": "true"}: sorted, so that equal wishes share a lane."""
    if not given:
        return ""
    if isinstance(given, str):
        given = requires_from(given)
    if not isinstance(given, Mapping) or len(given) > MOST:
        raise Invalid(
            f'requires must be an object of at most {MOST} labels, such as {{"gpu": "true"}}',
            field="requires",
        )
    for name, value in given.items():
        good = isinstance(name, str) and isinstance(value, str) and 0 < len(name) <= LONGEST
        if not good or len(value) > LONGEST:
            raise Invalid(
                f"requires has {name!r:.80}: {value!r:.80}; both must be texts of up to {LONGEST} characters",
                field="requires",
            )
    return "&".join(f"{quote(name, safe='/')}={quote(given[name], safe='/')}" for name in sorted(given))


@lru_cache(maxsize=1024)
def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in text.split("&")) if text else ()
    return tuple((unquote(name), unquote(value)) for name, _, value in pairs)


def requires_from(text: str) -> dict[str, str]:
    """The labels of such a text."""
    return dict(_pairs(text))


def has_labels(labels: Mapping[str, str], requires: str) -> bool:
    """Whether a worker with these labels has all that is asked for, with the same values."""
    return not requires or all(labels.get(name) == value for name, value in _pairs(requires))
