"""A business: the handler of a bulk job's items, with the callbacks around it; registered under a name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.bulk.model.job import LARGEST_CHUNK
from fusee.errors import FuseeError
from fusee.values.names import check_name

__all__ = ["BulkContext", "Business", "Businesses", "ChunkFailed", "SelfStart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkContext:
    """The job that a handler or callback works for: take it as a parameter `job: BulkContext`."""

    job_id: int
    name: str
    business: str
    data: Any = None
    """The business's own data."""
    total: int | None = None
    undo: bool = False
    status: str | None = None
    """What the job was when the handler's segment began, or when the callback was called."""
    reason: str | None = None
    ended: int = 0
    """Items that were done or quarantined by then."""
    quarantined: int = 0
    occasion: str = ""
    """Tells one call of a callback from the job's other calls of it; the same at every try of a call."""

    def idempotency_key(self, index: int) -> str:
        """The same at every try of an item: give it to services that take one."""
        return f"fusee-bulk-{self.job_id}-{index}"


@dataclass(frozen=True, slots=True)
class SelfStart:
    """Returned by a before-run callback: the business will start the job itself."""


class ChunkFailed(Exception):
    """Raised (or returned) by a chunk handler: these items of the chunk failed, the others are done.

    Keys are positions within the chunk, from 0; values are errors or texts."""

    def __init__(self, failed: Mapping[int, BaseException | str]) -> None:
        super().__init__(f"{len(failed)} items of the chunk failed")
        self.failed = dict(failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """What is known of a business in this process."""

    name: str
    function: Callable[..., Any]
    chunk: int | None
    """Items that the function takes at once; None: one item, not a list."""
    undo: Callable[..., Any] | None = None
    on_create: Callable[..., Any] | None = None
    before_run: Callable[..., Any] | None = None
    on_stop: Callable[..., Any] | None = None
    on_finish: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a job that its caller left out."""

    @property
    def callbacks(self) -> tuple[str, ...]:
        """Those that are called after the end."""
        found = {"stop": self.on_stop, "finish": self.on_finish}
        return tuple(name for name, function in found.items() if function is not None)


class Businesses:
    """Name → business."""

    def __init__(self) -> None:
        self._known: dict[str, Business] = {}

    def register(self, business: Business) -> Business:
        check_name(business.name, "business")
        if len(business.name) > 120:
            raise FuseeError("the name of a business has at most 120 characters")
        if business.name in self._known:
            raise FuseeError(f"business {business.name!r} is registered already")
        if business.chunk is not None and not 1 <= business.chunk <= LARGEST_CHUNK:
            raise FuseeError(f"chunk must be from 1 to {LARGEST_CHUNK}, not {business.chunk!r}")
        for what in (business.function, business.undo):
            if what is not None:
                parameters_of(what)
        self._known[business.name] = business
        return business

    def get(self, name: str) -> Business | None:
        return self._known.get(name)

    def __iter__(self) -> Iterator[Business]:
        return iter(self._known.values())


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a handler wants to know beside its item."""

    index: str | None
    """The parameter that takes the item's index (a chunk: the index of its first item)."""
    job: str | None
    """The parameter that takes the `BulkContext`."""


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """By annotation (`job: BulkContext`) and by name (`index`); the first other one takes the item."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Parameters(None, None)
    job = next((p.name for p in parameters if _is_context(p.annotation)), None)
    others = [p for p in parameters if p.name != job]
    if not others:
        raise FuseeError(f"{function!r} takes no item: give it a parameter for it")
    index = next((p.name for p in others[1:] if p.name == "index"), None)
    return Parameters(index, job)


async def call_back(function: Callable[..., Any], context: BulkContext) -> Any:
    """Call a callback, async or sync, with the job when it takes one."""
    takes = bool(inspect.signature(function).parameters)
    given = (context,) if takes else ()
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    return await asyncio.to_thread(function, *given)


def _is_context(annotation: Any) -> bool:
    return annotation is BulkContext or annotation in ("BulkContext", "fusee.BulkContext", "bulk.BulkContext")
