"""Businesses: find one by name, register one that is called over HTTP, change it, list all of them.

The business is the bulk handler with its callbacks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fusee.bulk.business import HIDDEN, Business, Businesses, HttpBusiness, KnownBusiness, RegisteredBusiness
from fusee.bulk.fields import BULK, BUSINESS, NO_DEFAULTS
from fusee.bulk.model.job import handler_of_business
from fusee.bulk.store.store import BulkStore
from fusee.engine.store.request_keys import KeyedRequest, asked
from fusee.errors import Conflict, Invalid, NotFound
from fusee.values.merging import merged
from fusee.values.names import check_name

__all__ = ["BusinessFinder", "BusinessOperations"]

MOST_LISTED = 1000


class BusinessFinder:
    """Finds a business by its name: in the registry, in this process, or on workers."""

    def __init__(
        self,
        store: BulkStore,
        businesses: Businesses,
        known_elsewhere: Callable[[], Awaitable[frozenset[str]]],
        remote: Callable[[HttpBusiness], Business],
    ) -> None:
        self.store = store
        self.businesses = businesses
        """The businesses in Python that this process has."""
        self.known_elsewhere = known_elsewhere
        self.remote = remote
        """Makes a registered business one that can be called."""

    async def here(self, name: object) -> Business | None:
        """Returns the business that this process can call; None when it is neither registered nor here."""
        try:
            registered = await self.store.businesses.business(check_name(name, "business"))
        except ValueError:
            return None
        if registered is not None:
            return self.remote(registered.spec)
        return self.businesses.get(str(name))

    async def find(self, name: str) -> Business | None:
        """The same, but raises `Invalid` when no worker has it either."""
        business = await self.here(name)
        if business is None:
            await self.check(name)
        return business

    async def check(self, name: str) -> None:
        """Raises `Invalid` when no worker has the business."""
        if handler_of_business(name) not in await self.known_elsewhere():
            known = await known_names(self.store, self.businesses, self.known_elsewhere)
            raise Invalid(f"no worker knows business {name!r}; known are: {known}", field="business")


class BusinessOperations:
    """The registry of one namespace."""

    def __init__(
        self,
        store: BulkStore,
        businesses: Businesses,
        known_elsewhere: Callable[[], Awaitable[frozenset[str]]],
        check: Callable[[HttpBusiness], None],
    ) -> None:
        self.store = store
        self.businesses = businesses
        """The businesses in Python that this process has."""
        self.known_elsewhere = known_elsewhere
        self.check = check
        """Refuses an address that may not be called."""

    async def register(self, fields: Mapping[str, Any] | HttpBusiness) -> RegisteredBusiness:
        return (await self.register_once(None, fields))[0]

    async def register_once(
        self, idempotency_key: str | None, fields: Mapping[str, Any] | HttpBusiness
    ) -> tuple[RegisteredBusiness, bool]:
        """Returns the business, and whether it is new: a repeated request with the same key returns the same
        one."""
        spec = fields if isinstance(fields, HttpBusiness) else business_from(fields)
        self._check(spec)
        if spec.name in await self._in_python():
            raise Conflict(f"workers serve a business {spec.name!r} in Python: choose another name")
        request = KeyedRequest.of(idempotency_key, "business", asked(spec))
        business = await self.store.businesses.register_business(spec, request)
        return business, request is None or not request.repeated

    async def get(self, name: str) -> KnownBusiness:
        """Returns a business that is registered, or that a worker has."""
        registered = await self.store.businesses.business(_name(name))
        if registered is not None:
            return KnownBusiness(name=name, kind="http", registered=registered)
        known = await self._in_python()
        if name in known:
            return KnownBusiness(name=name, kind="python")
        every = await known_names(self.store, self.businesses, self.known_elsewhere)
        raise NotFound(f"no business {name!r}; known are: {every}")

    async def list(self, *, after: str | None = None, limit: int = 50) -> Sequence[KnownBusiness]:
        """Returns businesses by name, including those that workers have."""
        if not 1 <= limit <= MOST_LISTED:
            raise Invalid(f"limit must be from 1 to {MOST_LISTED}", field="limit")
        registered = await self.store.businesses.registered_businesses(after=after, limit=limit)
        found = {
            one.spec.name: KnownBusiness(name=one.spec.name, kind="http", registered=one)
            for one in registered
        }
        for name in await self._in_python():
            if after is None or name > after:
                found.setdefault(name, KnownBusiness(name=name, kind="python"))
        return [found[name] for name in sorted(found)][:limit]

    async def update(
        self, name: str, changes: Mapping[str, Any], *, version: int | None = None
    ) -> RegisteredBusiness:
        """Change some of its fields, and some members of headers and defaults; null removes one."""
        there = await self.get(name)
        if there.registered is None:
            raise Conflict(f"business {name!r} is in Python: it is as the code of the workers defines it")
        registered = there.registered
        if version is None:
            version = registered.version  # what we merge with must not have changed when it is written
        before = asdict(registered.spec)
        if isinstance(changes.get("headers"), Mapping):
            said = {key: value for key, value in changes["headers"].items() if value != HIDDEN}
            changes = {**changes, "headers": said}
        if changes.get("name", name) != name:
            raise Conflict("a business keeps its name: register another, and delete this one")
        spec = business_from(merged(before, changes))
        self._check(spec)
        return await self.store.businesses.update_business(name, spec, version)

    async def delete(self, name: str, *, version: int | None = None) -> None:
        """Refused while a job that is not finished needs it."""
        if (await self.get(name)).registered is None:
            raise Conflict(f"business {name!r} is in Python: it disappears when no worker has it any more")
        await self.store.businesses.delete_business(name, version)

    def _check(self, spec: HttpBusiness) -> None:
        try:
            self.check(spec)
        except (ValueError, OSError) as error:
            raise Invalid(str(error), field="item" if spec.item else "chunk") from None

    async def _in_python(self) -> set[str]:
        return await _in_python(self.businesses, self.known_elsewhere)


async def _in_python(
    businesses: Businesses, known_elsewhere: Callable[[], Awaitable[frozenset[str]]]
) -> set[str]:
    """Returns the names of the businesses in Python that this process or a worker has."""
    prefix = handler_of_business("")
    there = {name.removeprefix(prefix) for name in await known_elsewhere() if name.startswith(prefix)}
    return there | {business.name for business in businesses}


async def known_names(
    store: BulkStore, businesses: Businesses, known_elsewhere: Callable[[], Awaitable[frozenset[str]]]
) -> str:
    """Returns the names of all known businesses, for an error message."""
    registered = {one.spec.name for one in await store.businesses.registered_businesses()}
    return ", ".join(sorted(registered | await _in_python(businesses, known_elsewhere))) or "none yet"


def business_from(given: Any) -> HttpBusiness:
    """Returns a business from its fields as callers write them."""
    spec = BUSINESS.read(given)
    _check_defaults(spec)
    return spec


def _check_defaults(spec: HttpBusiness) -> None:
    """Check that the defaults make a valid job, whatever its source is."""
    for name in spec.defaults:
        if name in NO_DEFAULTS or name not in BULK.fields:
            fields = ", ".join(field for field in BULK.fields if field not in NO_DEFAULTS)
            raise Invalid(f"defaults has {name!r:.60}; it may have {fields}", field="defaults")
    BULK.read({"name": "a", "business": spec.name, "source": 0, **spec.defaults})


def _name(name: str) -> str:
    return check_name(name, "business")
