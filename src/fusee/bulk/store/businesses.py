"""The registry of businesses that are called over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.bulk.business import HttpBusiness, RegisteredBusiness
from fusee.bulk.model.job import BulkStatus, handler_of_business
from fusee.bulk.store.tables import bulk_jobs, businesses
from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.sessions import Sessions
from fusee.engine.store.set_aside import reading
from fusee.errors import Conflict, NotFound

__all__ = ["BusinessRegistry"]

UNFINISHED = tuple(status for status in BulkStatus if status is not BulkStatus.FINISHED)
"""A job in one of these states may still call its business: a failed job can be resumed."""


class BusinessRegistry:
    def __init__(self, context: StoreContext, sessions: Sessions) -> None:
        self.context = context
        self.sessions = sessions

    async def defaults(self, business: str) -> Mapping[str, Any]:
        """Returns the fields of a job that this business sets, according to the newest worker that has it."""
        abilities = await self.sessions.newest_with(handler_of_business(business))
        found: Mapping[str, Any] = abilities.get("defaults", {}).get(business, {})
        return found

    async def checks(self, business: str) -> bool:
        """Returns whether it is asked before a job is accepted, according to the newest worker that has
        it."""
        return business in (await self.sessions.newest_with(handler_of_business(business))).get("checks", ())

    async def register_business(
        self, spec: HttpBusiness, request: KeyedRequest | None = None
    ) -> RegisteredBusiness:
        """Raises `Conflict` when the name is taken, or when unfinished jobs use a business of workers under
        it."""
        definition = _written(spec)

        def work(connection: Connection) -> RegisteredBusiness:
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                row = self.business_row(connection, made)
                if row is None:
                    raise Conflict(f"business {made!r} was created with this key and has been deleted since")
                return _registered(row)
            self._refuse_in_use(connection, spec.name, "is served by workers")
            now = self.context.now(connection)
            remember(connection, self.context.namespace, request, spec.name, now)
            connection.execute(
                insert(businesses).values(
                    namespace=self.context.namespace,
                    name=spec.name,
                    version=1,
                    definition=definition,
                    created_at=now,
                    updated_at=now,
                )
            )
            return _registered(self.business_row(connection, spec.name))

        try:
            return await write_once(self.context.database, work, request)
        except IntegrityError:
            raise Conflict(
                f"there is a business {spec.name!r} already: change that one, or choose another name"
            ) from None

    async def business(self, name: str) -> RegisteredBusiness | None:
        row = await self.context.database.read(lambda connection: self.business_row(connection, name))
        return None if row is None else _registered(row)

    async def registered_businesses(
        self, *, after: str | None = None, limit: int = 1000
    ) -> list[RegisteredBusiness]:
        """Returns registered businesses in the order of their names."""
        query = select(businesses).where(businesses.c.namespace == self.context.namespace)
        if after is not None:
            query = query.where(businesses.c.name > after)
        query = query.order_by(businesses.c.name)
        return await self.context.page(
            query,
            limit,
            lambda last: businesses.c.name > last.name,
            "business",
            _registered,
            id_of=lambda row: str(row.name),
        )

    async def update_business(
        self, name: str, spec: HttpBusiness, version: int | None = None
    ) -> RegisteredBusiness:
        """Replace its definition; running jobs use it when they take their next segment."""
        definition = _written(spec)

        def work(connection: Connection) -> RegisteredBusiness:
            row = self._locked_business(connection, name, version)
            if decode(row.definition) == decode(definition):
                return _registered(row)
            values = {
                "version": row.version + 1,
                "definition": definition,
                "updated_at": self.context.now(connection),
            }
            connection.execute(update(businesses).where(*_key(self.context.namespace, name)).values(values))
            return _registered(self.business_row(connection, name))

        return await self.context.database.write(work)

    async def delete_business(self, name: str, version: int | None = None) -> None:
        """Delete it; raises `Conflict` while an unfinished job needs it."""

        def work(connection: Connection) -> None:
            self._locked_business(connection, name, version)
            self._refuse_in_use(connection, name, "is in use")
            connection.execute(delete(businesses).where(*_key(self.context.namespace, name)))

        await self.context.database.write(work)

    def business_row(self, connection: Connection, name: str, *, lock: bool = False) -> Any:
        query = select(businesses).where(*_key(self.context.namespace, name))
        return connection.execute(query.with_for_update() if lock else query).one_or_none()

    def _locked_business(self, connection: Connection, name: str, version: int | None) -> Any:
        row = self.business_row(connection, name, lock=True)
        if row is None:
            raise NotFound(f"no business {name!r} is registered in namespace {self.context.namespace!r}")
        if version is not None and row.version != version:
            raise Conflict(f"business {name!r} is at version {row.version}, not {version}: look at it again")
        return row

    def _refuse_in_use(self, connection: Connection, name: str, how: str) -> None:
        query = (
            select(bulk_jobs.c.id, bulk_jobs.c.status)
            .where(bulk_jobs.c.status.in_(UNFINISHED), bulk_jobs.c.business == name)
            .where(bulk_jobs.c.namespace == self.context.namespace)
            .order_by(bulk_jobs.c.id)
            .limit(1)
        )
        job = connection.execute(query).one_or_none()
        if job is not None:
            raise Conflict(
                f"business {name!r} {how}: bulk job {job.id} is {job.status}; let its jobs finish first,"
                " or use another name"
            )


def _key(namespace: str, name: str) -> tuple[Any, ...]:
    return businesses.c.namespace == namespace, businesses.c.name == name


def _written(spec: HttpBusiness) -> str:
    return encode(asdict(spec), "the business")


def _registered(row: Any) -> RegisteredBusiness:
    return reading("business", row.name, lambda: _read(row))


def _read(row: Any) -> RegisteredBusiness:
    given: Mapping[str, Any] = decode(row.definition)
    known = {key: value for key, value in given.items() if key in HttpBusiness.__slots__}
    return RegisteredBusiness(
        namespace=row.namespace,
        spec=HttpBusiness(**known),
        version=row.version,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
