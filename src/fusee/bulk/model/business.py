"""A business that is reached over HTTP: which address is called for what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fusee.bulk.model.job import LARGEST_CHUNK
from fusee.values.names import check_name

__all__ = ["CALLBACKS", "HttpBusiness", "KnownBusiness", "RegisteredBusiness"]

CALLBACKS = ("on_create", "before_run", "on_stop", "on_finish")
LONGEST_URL = 2000
LONGEST_CALL = 3600.0
LONGEST_PREPARATION = 1800.0
"""Seconds: what a before-run callback may take."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBusiness:
    """What a caller registers; checked when it is made. Addresses are POSTed to, see `docs/bulk.md`."""

    name: str
    item: str | None = None
    """Called for each item; or `chunk`, never both."""
    chunk: str | None = None
    """Called for up to `chunk_size` items at once."""
    chunk_size: int = 100
    undo: str | None = None
    """Called as `item` or `chunk` is, for what is to be undone."""
    on_create: str | None = None
    before_run: str | None = None
    on_stop: str | None = None
    on_finish: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call; shown to nobody."""
    timeout: float = 15.0
    """Seconds for a call about items, and for the callbacks other than `before_run`."""
    before_run_timeout: float = LONGEST_PREPARATION
    with_data: bool = False
    """Whether calls about items carry the job's data; callbacks always do."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a job that its caller left out."""
    description: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if len(self.name) > 120:
            raise ValueError("name must be at most 120 characters")
        for what in ("item", "chunk", "undo", *CALLBACKS):
            _check_url(what, getattr(self, what))
        if (self.item is None) == (self.chunk is None):
            raise ValueError("item or chunk must be the address that handles items: give one of the two")
        if type(self.chunk_size) is not int or not 1 <= self.chunk_size <= LARGEST_CHUNK:
            raise ValueError(f"chunk_size must be a whole number from 1 to {LARGEST_CHUNK}")
        _check_headers(self.headers)
        for what, most in (("timeout", LONGEST_CALL), ("before_run_timeout", LONGEST_PREPARATION)):
            seconds = getattr(self, what)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most:
                raise ValueError(f"{what} must be seconds, above 0 and at most {most:g}")
        if not isinstance(self.with_data, bool):
            raise ValueError("with_data must be true or false")
        if not isinstance(self.defaults, Mapping):
            raise ValueError("defaults must be an object of fields of a bulk job")
        if not isinstance(self.description, str) or len(self.description) > 500:
            raise ValueError("description must be at most 500 characters")

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

    namespace: str
    spec: HttpBusiness
    version: int
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBusiness:
    """A business as people see it: of the registry, or one that workers brought along."""

    name: str
    kind: str
    """`http`, or `python`."""
    registered: RegisteredBusiness | None = None


def _check_url(what: str, url: object) -> None:
    if url is None:
        return
    good = isinstance(url, str) and len(url) <= LONGEST_URL and url.isprintable() and " " not in url
    try:
        parts = urlsplit(str(url))
        good = good and parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{what} must be an http:// or https:// address without a user, not {url!r:.80}")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise ValueError("headers must be an object of texts")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"headers has {name!r:.60}, which is no name of a header")
        if not isinstance(value, str) or not value.isprintable() or len(value) > 8000:
            raise ValueError(f"headers: {name} must be one line of text")
