"""A kind of work that runs belong to, as workers and logs know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RunKind", "log_fields_of"]

LogFields = Callable[[int | None, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""(owner id, options, payload) → what an event about the run says of its owner; None is left out."""


def _no_fields(
    owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class RunKind:
    """What the engine asks about a kind of work where there is no store; in the store it asks the `Owner`."""

    name: str
    """The kind that the runs carry."""
    log_fields: LogFields = _no_fields
    ends_with_handler: bool = False
    """Whether a canceled run ends only when its handler has ended, because the next one must not start
    beside it."""


def log_fields_of(
    kind: RunKind | None, owner_id: int | None, options: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run belongs to, for an event: such as the task of a fire; nothing for an ad-hoc run."""
    if kind is None:
        return {}
    found = kind.log_fields(owner_id, options, payload)
    return {name: value for name, value in found.items() if value is not None}
