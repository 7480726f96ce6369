"""A business that is reached over HTTP: which address is called for what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from fusee.bulk.model.job import LARGEST_CHUNK
from fusee.errors import Invalid
from fusee.values.fields import Mark, conform
from fusee.values.kinds import FLAG, OBJECT, TIME, Kind, Name, Seconds, Text, Whole

__all__ = ["CALLBACKS", "HIDDEN", "HttpBusiness", "KnownBusiness", "RegisteredBusiness"]

CALLBACKS = ("on_create", "before_run", "on_stop", "on_finish")
LONGEST_URL = 2000
LONGEST_CALL = 3600.0
LONGEST_PREPARATION = 1800.0
"""Seconds: what a before-run callback may take."""

HIDDEN = "***"
"""What is shown for a header's value; sent back, the value stays."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
    """Headers by name; their values are shown to nobody."""

    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, Mapping):
            raise Invalid(f"{what} must be an object of texts", field=what)
        for name, text in value.items():
            if not isinstance(name, str) or not _HEADER.fullmatch(name):
                raise Invalid(f"{what} has {name!r:.60}, which is no name of a header", field=what)
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
    """What a caller registers; checked when it is made. Addresses are POSTed to, see `docs/bulk.md`."""

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
        Mapping[str, str], _Headers(), "Sent with every call; their values are shown to nobody."
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
        """All that it may be called at."""
        every = (getattr(self, what) for what in ("item", "chunk", "undo", *CALLBACKS))
        return tuple(address for address in every if address is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBusiness:
    """A business of the registry, at some version."""

    namespace: Annotated[str, Mark.HIDDEN]
    spec: Annotated[HttpBusiness, Mark.FLAT]
    version: int
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBusiness:
    """A business as people see it: of the registry, or one that workers brought along."""

    registered: Annotated[RegisteredBusiness | None, Mark.FLAT] = None
    name: str
    kind: Annotated[str, "`http`, or `python`, of which only the name is known here."]
