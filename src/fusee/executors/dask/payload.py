"""What a run's payload asks a Dask cluster for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["Wanted", "allowed_function", "check_dask", "read_payload"]

FIELDS = ("function", "kwargs", "resources")

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Wanted:
    function: str
    """`package.module:function`, importable on the workers of the cluster."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


def check_dask(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that no cluster could run."""
    read_payload(payload)


def read_payload(payload: Mapping[str, Any]) -> Wanted:
    if not isinstance(payload, Mapping) or "function" not in payload:
        raise ValueError('a dask payload is an object such as {"function": "shop.jobs:report", "kwargs": {}}')
    if unknown := sorted(set(payload) - set(FIELDS)):
        raise ValueError(f"a dask payload has no {unknown[0]!r}; it has {', '.join(FIELDS)}")
    function = payload["function"]
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise ValueError(f"function must be module:name, such as shop.jobs:report, not {function!r:.100}")
    kwargs = payload.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ValueError("kwargs must be an object: the function's arguments by name")
    resources = payload.get("resources") or {}
    if not isinstance(resources, Mapping) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and amount > 0
        for amount in resources.values()
    ):
        raise ValueError('resources must be amounts by name, such as {"GPU": 1}')
    return Wanted(function, dict(kwargs), dict(resources))


def allowed_function(function: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns (`shop.jobs:*`) has it; without any pattern none is allowed."""
    return any(fnmatchcase(function, pattern) for pattern in patterns)
