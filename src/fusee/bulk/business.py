"""A business: the bulk handler with its callbacks, registered under a name.

In Python it is a function with callbacks around it (`Business`); a service in any language is one by its
addresses (`HttpBusiness`).
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from fusee.bulk.model.job import LARGEST_CHUNK
from fusee.errors import FuseeError, Invalid
from fusee.values.fields import Mark, conform
from fusee.values.kinds import FLAG, OBJECT, TIME, Kind, Name, Seconds, Text, Whole
from fusee.values.names import check_name

__all__ = [
    "HIDDEN",
    "BulkContext",
    "Business",
    "Businesses",
    "ChunkFailed",
    "HttpBusiness",
    "KnownBusiness",
    "RegisteredBusiness",
    "SelfStart",
    "call_back",
    "parameters_of",
]

CALLBACKS = ("on_create", "before_run", "on_stop", "on_finish")
LONGEST_URL = 2000
LONGEST_CALL = 3600.0
LONGEST_PREPARATION = 1800.0
"""Seconds that a before-run callback may take."""

HIDDEN = "***"
"""Shown instead of the value of a header; when it is sent back, the value stays as it is."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkContext:
    """The job that a handler or callback works for; receive it as a parameter `job: BulkContext`."""

    job_id: int
    name: str
    business: str
    data: Any = None
    """The business's own data."""
    total: int | None = None
    undo: bool = False
    status: str | None = None
    """The job's status when the handler's segment began, or when the callback was called."""
    reason: str | None = None
    ended: int = 0
    """The number of items that were done or quarantined by then."""
    quarantined: int = 0
    occasion: str = ""
    """Distinguishes one call of a callback from the job's other calls of it; the same for every attempt."""

    def idempotency_key(self, index: int) -> str:
        """Returns a key that is the same for every attempt of an item; pass it to services that accept
        one."""
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
    """A business in Python, as this process has it."""

    name: str
    function: Callable[..., Any]
    chunk: int | None
    """The most items that the function takes at once; None: it takes one item, not a list."""
    undo: Callable[..., Any] | None = None
    on_create: Callable[..., Any] | None = None
    before_run: Callable[..., Any] | None = None
    on_stop: Callable[..., Any] | None = None
    on_finish: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values for fields of a job that its caller left out."""

    @property
    def callbacks(self) -> tuple[str, ...]:
        """The callbacks that are called after the end."""
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
    """The parameters of a handler besides its item."""

    index: str | None
    """The parameter that takes the item's index; of a chunk handler, the indexes."""
    job: str | None
    """The parameter that takes the `BulkContext`."""


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Finds them by annotation (`job: BulkContext`) and by name (`index`); the first other one takes the
    item."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return Parameters(None, None)
    job = next((p.name for p in parameters if _is_context(p.annotation)), None)
    others = [p for p in parameters if p.name != job]
    if not others:
        raise FuseeError(f"{function!r} takes no item: give it a parameter for the item")
    index = next((p.name for p in others[1:] if p.name == "index"), None)
    return Parameters(index, job)


async def call_back(function: Callable[..., Any], context: BulkContext) -> Any:
    """Call a callback, async or sync, with the job if it takes a parameter."""
    takes = bool(inspect.signature(function).parameters)
    given = (context,) if takes else ()
    if inspect.iscoroutinefunction(function):
        return await function(*given)
    return await asyncio.to_thread(function, *given)


def _is_context(annotation: Any) -> bool:
    return annotation is BulkContext or annotation in ("BulkContext", "fusee.BulkContext", "bulk.BulkContext")


class _Address(Kind):
    """An address that is called."""

    def read(self, value: Any, what: str) -> Any:
        good = isinstance(value, str) and len(value) <= LONGEST_URL and value.isprintable()
        try:
            parts = urlsplit(str(value))
            good = good and " " not in value and parts.scheme in ("http", "https") and bool(parts.hostname)
            good = good and "@" not in parts.netloc
        except ValueError:
            good = False
        if not good:
            raise Invalid(
                f"{what} must be an http:// or https:// address without a user, not {value!r:.80}", field=what
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": LONGEST_URL, "examples": ["https://crm.example/mail"]}


class _Headers(Kind):
    """Headers by name; their values are never shown."""

    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, Mapping):
            raise Invalid(f"{what} must be an object of texts", field=what)
        for name, text in value.items():
            if not isinstance(name, str) or not _HEADER.fullmatch(name):
                raise Invalid(f"{what} has {name!r:.60}, which is not the name of a header", field=what)
            if not isinstance(text, str) or not text.isprintable() or len(text) > 8000:
                raise Invalid(f"{what}: {name} must be one line of text", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": ["string", "null"]}}

    def show(self, value: Any) -> Any:
        return dict.fromkeys(value, HIDDEN)


Address = Annotated[str | None, _Address()]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBusiness:
    """A business that is called over HTTP, as a caller registers it; see `docs/bulk.md`."""

    name: Annotated[str, Name(120), "A name that no worker serves in Python."]
    item: Annotated[Address, "Called with POST for each item; set this or `chunk`."] = None
    chunk: Annotated[Address, "Called with POST for up to `chunk_size` items; set this or `item`."] = None
    chunk_size: Annotated[int, Whole(1, LARGEST_CHUNK), "The most items in one call of `chunk`."] = 100
    undo: Annotated[Address, "Called like `item` or `chunk`, by an undo job."] = None
    on_create: Annotated[Address, "Called before the job exists; a 4xx response refuses the job."] = None
    before_run: Annotated[Address, "Called before the first item; it may take `before_run_timeout`."] = None
    on_stop: Annotated[
        Address, "Called when a job stopped and nothing of it runs any more; tried five times."
    ] = None
    on_finish: Annotated[Address, "Called when a job finished; tried five times."] = None
    headers: Annotated[
        Mapping[str, str], _Headers(), "Sent with every call; their values are never shown."
    ] = field(default_factory=dict)
    timeout: Annotated[
        float,
        Seconds(0, LONGEST_CALL, above=True),
        "The longest that a call about items, or a callback other than `before_run`, may take.",
    ] = 15.0
    before_run_timeout: Annotated[
        float, Seconds(0, LONGEST_PREPARATION, above=True), "The longest that `before_run` may take."
    ] = LONGEST_PREPARATION
    with_data: Annotated[
        bool, FLAG, "Whether calls about items carry the job's `data`; callbacks always do."
    ] = False
    defaults: Annotated[Mapping[str, Any], OBJECT, "Values for fields of a job that its caller left out."] = (
        field(default_factory=dict)
    )
    description: Annotated[str, Text(500, lines=True), "A text for people."] = ""

    def __post_init__(self) -> None:
        conform(self)
        if (self.item is None) == (self.chunk is None):
            raise Invalid(
                "item or chunk must be the address that handles items: give one of the two", field="item"
            )

    @property
    def handles(self) -> str:
        """The address that handles items."""
        return self.item or self.chunk or ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses at which it may be called."""
        every = (getattr(self, what) for what in ("item", "chunk", "undo", *CALLBACKS))
        return tuple(address for address in every if address is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBusiness:
    """A registered business at one version."""

    namespace: Annotated[str, Mark.HIDDEN]
    spec: Annotated[HttpBusiness, Mark.FLAT]
    version: int
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBusiness:
    """A business as people see it: a registered one, or one that workers have."""

    registered: Annotated[RegisteredBusiness | None, Mark.FLAT] = None
    name: str
    kind: Annotated[str, "`http`, or `python`, of which only the name is known here."]
