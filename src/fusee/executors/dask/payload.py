"""What a payload asks of a Dask cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.executors.payload import check_fields

__all__ = ["FunctionCall", "check_dask", "read_payload"]

FIELDS = ("function", "kwargs", "resources")

# No dot after the colon: else `shop.jobs:*` would reach `shop.jobs:os.system`, as the module imports `os`.
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function, its arguments, and the resources that it needs."""

    function: str
    """`package.module:function`, importable on the workers of the cluster."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


def check_dask(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that no cluster could run."""
    read_payload(payload)


def read_payload(payload: Mapping[str, Any]) -> FunctionCall:
    example = '{"function": "shop.jobs:report", "kwargs": {}}'
    check_fields(payload, "a dask payload", FIELDS, "function", example)
    function = payload["function"]
    if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
        raise ValueError(
            "function must be module:name, such as shop.jobs:report, a function at the top level of its"
            f" module (no dot after the colon), not {function!r:.100}"
        )
    kwargs = payload.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ValueError("kwargs must be an object: the function's arguments by name")
    resources = payload.get("resources") or {}
    if not isinstance(resources, Mapping) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and amount > 0
        for amount in resources.values()
    ):
        raise ValueError('resources must be amounts by name, such as {"GPU": 1}')
    return FunctionCall(function, dict(kwargs), dict(resources))
