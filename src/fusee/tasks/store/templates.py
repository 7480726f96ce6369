"""Task templates, stored as they were written, with a version."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.database import Database
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.rows import decode, encode
from fusee.errors import Conflict, NotFound
from fusee.tasks.model.template import TaskTemplate, TemplateSpec
from fusee.tasks.store.tables import task_templates

__all__ = ["TaskTemplates"]


class TaskTemplates:
    """The templates of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace

    async def create(self, spec: TemplateSpec, request: KeyedRequest | None = None) -> TaskTemplate:
        """Create a template; raises `Conflict` when the name is taken."""
        definition = encode(spec.to_dict(), "the template")

        def work(connection: Connection) -> TaskTemplate:
            if (made := made_before(connection, self.namespace, request)) is not None:
                return _template(self._row(connection, made))
            now = self.database.read_clock(connection)
            remember(connection, self.namespace, request, spec.name, now)
            values = {"version": 1, "definition": definition, "created_at": now, "updated_at": now}
            row = {"namespace": self.namespace, "name": spec.name, **values}
            connection.execute(insert(task_templates).values(row))
            return _template(self._row(connection, spec.name))

        try:
            return await write_once(self.database, work, request)
        except IntegrityError:
            raise Conflict(f"there is a template {spec.name!r} already: choose another name") from None

    async def get(self, name: str) -> TaskTemplate:
        return _template(await self.database.read(lambda connection: self._row(connection, name)))

    async def list(self, *, after: str | None = None, limit: int = 50) -> list[TaskTemplate]:
        """By name."""
        query = select(task_templates).where(task_templates.c.namespace == self.namespace)
        if after is not None:
            query = query.where(task_templates.c.name > after)
        query = query.order_by(task_templates.c.name).limit(limit)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        return [_template(row) for row in rows]

    async def replace(self, name: str, spec: TemplateSpec, version: int | None = None) -> TaskTemplate:
        """Replace its definition; raises `Conflict` when it is not at `version`."""
        definition = encode(spec.to_dict(), "the template")

        def work(connection: Connection) -> TaskTemplate:
            row = self._row(connection, name, version, lock=True)
            if decode(row.definition) != decode(definition):
                now = self.database.read_clock(connection)
                values = {"version": row.version + 1, "definition": definition, "updated_at": now}
                connection.execute(update(task_templates).where(*self._key(name)).values(values))
            return _template(self._row(connection, name))

        return await self.database.write(work)

    async def delete(self, name: str, version: int | None = None) -> None:
        """Delete it; tasks that were created from it stay as they are."""

        def work(connection: Connection) -> None:
            self._row(connection, name, version, lock=True)
            connection.execute(delete(task_templates).where(*self._key(name)))

        await self.database.write(work)

    def _key(self, name: str) -> tuple[Any, ...]:
        return task_templates.c.namespace == self.namespace, task_templates.c.name == name

    def _row(
        self, connection: Connection, name: str, version: int | None = None, *, lock: bool = False
    ) -> Any:
        query = select(task_templates).where(*self._key(name))
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            raise NotFound(f"no template {name!r} in namespace {self.namespace!r}")
        if version is not None and row.version != version:
            raise Conflict(f"template {name!r} is at version {row.version}, not {version}: look at it again")
        return row


def _template(row: Any) -> TaskTemplate:
    return TaskTemplate(
        namespace=row.namespace,
        spec=TemplateSpec.from_dict(decode(row.definition)),
        version=row.version,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
