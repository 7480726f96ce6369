"""`{{name}}` in the texts of a payload, replaced by a value. Not a template language, on purpose.

Only the names that are known are replaced; others stay as they are, for whoever reads the payload next
(the http executor knows `{{run_id}}`, `{{attempt}}` and `{{fire_time}}`). What a value holds is never
looked at again, so a value cannot smuggle in another placeholder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["fill", "names_in"]

# Spaces belong to the name until it is read: two loops over them beside a third are cubic.
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")


def names_in(value: Any) -> Iterator[str]:
    """Every name between double braces, in every text; the keys of objects are no texts."""
    if isinstance(value, str):
        for found in _PLACE.finditer(value):
            yield found[1].strip()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from names_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)


def fill(value: Any, names: Mapping[str, Any], *, typed: bool = True) -> Any:
    """The same value with known names replaced.

    `typed`: a text that is one placeholder and nothing else takes the value with its type.
    """
    if isinstance(value, str):
        return _fill_text(value, names, typed) if "{{" in value else value
    if isinstance(value, Mapping):
        return {key: fill(item, names, typed=typed) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, names, typed=typed) for item in value]
    return value


def _fill_text(text: str, names: Mapping[str, Any], typed: bool) -> Any:
    whole = _PLACE.fullmatch(text) if typed else None
    if whole is not None and whole[1].strip() in names:
        return names[whole[1].strip()]

    def replaced(found: re.Match[str]) -> str:
        name = found[1].strip()
        return _plain(names[name]) if name in names else found[0]

    return _PLACE.sub(replaced, text)


def _plain(value: Any) -> str:
    """Inside a longer text: text as it is, nothing for null, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
