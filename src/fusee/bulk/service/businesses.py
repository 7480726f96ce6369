"""Businesses: register one that is reached over HTTP, change it, list all that are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fusee.bulk.business import Businesses
from fusee.bulk.fields import BULK, BUSINESS, NO_DEFAULTS
from fusee.bulk.model.business import HIDDEN, HttpBusiness, KnownBusiness, RegisteredBusiness
from fusee.bulk.model.job import handler_of_business
from fusee.bulk.store.store import BulkStore
from fusee.engine.store.request_keys import KeyedRequest, asked
from fusee.errors import Conflict, Invalid, NotFound
from fusee.values.merging import merged
from fusee.values.names import check_name

__all__ = ["BusinessOperations"]

MOST_LISTED = 1000


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
        """Those in Python that this process has."""
        self.known_elsewhere = known_elsewhere
        self.check = check
        """Refuses an address that no call may go to."""

    async def register(self, fields: Mapping[str, Any] | HttpBusiness) -> RegisteredBusiness:
        return (await self.register_once(None, fields))[0]

    async def register_once(
        self, idempotency_key: str | None, fields: Mapping[str, Any] | HttpBusiness
    ) -> tuple[RegisteredBusiness, bool]:
        """(the business, whether it is new): the same request under the same key gets the same one."""
        spec = fields if isinstance(fields, HttpBusiness) else business_from(fields)
        self._check(spec)
        if spec.name in await self._in_python():
            raise Conflict(f"workers serve a business {spec.name!r} in Python: choose another name")
        request = KeyedRequest.of(idempotency_key, "business", asked(spec))
        business = await self.store.businesses.register_business(spec, request)
        return business, request is None or not request.repeated

    async def get(self, name: str) -> KnownBusiness:
        """Registered, or brought along by a worker."""
        registered = await self.store.businesses.business(_name(name))
        if registered is not None:
            return KnownBusiness(name=name, kind="http", registered=registered)
        known = await self._in_python()
        if name in known:
            return KnownBusiness(name=name, kind="python")
        every = sorted(known | {one.spec.name for one in await self.store.businesses.registered_businesses()})
        raise NotFound(f"no business {name!r}; known are: {', '.join(every) or 'none yet'}")

    async def list(self, *, after: str | None = None, limit: int = 50) -> Sequence[KnownBusiness]:
        """By name; those of workers among them."""
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
        """Other values for some of its fields, and for some members of headers and defaults; null takes one
        away."""
        there = await self.get(name)
        if there.registered is None:
            raise Conflict(f"business {name!r} is in Python: workers bring it along, as their code has it")
        registered = there.registered
        if version is None:
            version = registered.version  # what we merge with must still be so when it is written
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
            raise Conflict(f"business {name!r} is in Python: it goes when no worker has it any more")
        await self.store.businesses.delete_business(name, version)

    def _check(self, spec: HttpBusiness) -> None:
        try:
            self.check(spec)
        except (ValueError, OSError) as error:
            raise Invalid(str(error), field="item" if spec.item else "chunk") from None

    async def _in_python(self) -> set[str]:
        prefix = handler_of_business("")
        elsewhere = await self.known_elsewhere()
        there = {name.removeprefix(prefix) for name in elsewhere if name.startswith(prefix)}
        return there | {business.name for business in self.businesses}


def business_from(given: Any) -> HttpBusiness:
    """A business as callers write it."""
    spec = BUSINESS.read(given)
    _check_defaults(spec)
    return spec


def _check_defaults(spec: HttpBusiness) -> None:
    """They must make a good job, whatever its source."""
    for name in spec.defaults:
        if name in NO_DEFAULTS or name not in BULK.fields:
            fields = ", ".join(field for field in BULK.fields if field not in NO_DEFAULTS)
            raise Invalid(f"defaults has {name!r:.60}; it may have {fields}", field="defaults")
    BULK.read({"name": "a", "business": spec.name, "source": 0, **spec.defaults})


def _name(name: str) -> str:
    return check_name(name, "business")
