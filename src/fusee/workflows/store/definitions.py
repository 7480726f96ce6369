"""The definitions of workflows: creating, changing, deleting and reading them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import KeyedRequest, made_before, remember, write_once
from fusee.engine.store.rows import decode
from fusee.engine.store.set_aside import reading
from fusee.errors import Conflict, Invalid, NotFound
from fusee.workflows.model.workflow import Workflow, WorkflowSpec, WorkflowSummary
from fusee.workflows.store.tables import workflows

__all__ = ["LARGEST_DEFINITION", "WorkflowDefinitions", "WorkflowFilter", "spec_of"]

LARGEST_DEFINITION = 4 * 1024 * 1024
_SUMMARY = [column for column in workflows.c if column.name != "definition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFilter:
    """Which workflows to list: by name, from behind `after` when that is given."""

    prefix: str = ""
    after: str | None = None
    limit: int = 50


class WorkflowDefinitions:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def create_workflow(self, spec: WorkflowSpec, request: KeyedRequest | None = None) -> Workflow:
        """Create a workflow; raises `Conflict` when the name is taken."""
        definition = _written(spec)

        def work(connection: Connection) -> Workflow:
            if (made := made_before(connection, self.context.namespace, request)) is not None:
                return _workflow(self.workflow_row(connection, made))
            now = self.context.now(connection)
            remember(connection, self.context.namespace, request, spec.name, now)
            connection.execute(
                insert(workflows).values(
                    namespace=self.context.namespace,
                    name=spec.name,
                    live_name=spec.name,
                    version=1,
                    description=spec.description,
                    nodes=len(spec.nodes),
                    definition=definition,
                    created_at=now,
                    updated_at=now,
                )
            )
            return _workflow(self.workflow_row(connection, spec.name))

        try:
            return await write_once(self.context.database, work, request)
        except IntegrityError:
            raise Conflict(
                f"there is a workflow {spec.name!r} already: change that one, or choose another name"
            ) from None

    async def workflow(self, name: str) -> Workflow:
        return _workflow(
            await self.context.database.read(lambda connection: self.workflow_row(connection, name))
        )

    async def workflows(self, wanted: WorkflowFilter) -> list[WorkflowSummary]:
        """List workflows without their nodes: a page of large ones would be a gigabyte."""
        query = (
            select(*_SUMMARY)
            .where(workflows.c.namespace == self.context.namespace, workflows.c.live_name.is_not(None))
            .order_by(workflows.c.live_name)
            .limit(wanted.limit)
        )
        if wanted.prefix:
            query = query.where(workflows.c.live_name.startswith(wanted.prefix, autoescape=True))
        if wanted.after is not None:
            query = query.where(workflows.c.live_name > wanted.after)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [WorkflowSummary(**_facts(row)) for row in rows]

    async def update_workflow(self, name: str, spec: WorkflowSpec, version: int | None = None) -> Workflow:
        """Replace its definition; raises `Conflict` when it is not at `version` any more. Workflow runs that
        were started before continue unchanged; an equal definition changes nothing."""
        definition = _written(spec)

        def work(connection: Connection) -> Workflow:
            row = self.workflow_row(connection, name, lock=True)
            _at_version(row, version)
            if spec.name != row.name:
                raise Conflict(
                    f"a workflow keeps its name: make a new one called {spec.name!r}, delete this one"
                )
            if decode(row.definition) == decode(definition):
                return _workflow(row)
            values = {
                "version": row.version + 1,
                "description": spec.description,
                "nodes": len(spec.nodes),
                "definition": definition,
                "updated_at": self.context.now(connection),
            }
            connection.execute(update(workflows).where(workflows.c.id == row.id).values(values))
            return _workflow(self.workflow_row(connection, name))

        return await self.context.database.write(work)

    async def delete_workflow(self, name: str, version: int | None = None) -> None:
        """Delete it: it cannot be started any more, and its name is free. Its workflow runs continue."""

        def work(connection: Connection) -> None:
            row = self.workflow_row(connection, name, lock=True)
            _at_version(row, version)
            gone = {"live_name": None, "deleted_at": self.context.now(connection), "version": row.version + 1}
            connection.execute(update(workflows).where(workflows.c.id == row.id).values(gone))

        await self.context.database.write(work)

    def workflow_row(self, connection: Connection, name: str, *, lock: bool = False) -> Row[Any]:
        query = select(workflows).where(
            workflows.c.namespace == self.context.namespace, workflows.c.live_name == name
        )
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is None:
            raise NotFound(f"no workflow {name!r} in namespace {self.context.namespace!r}")
        return row


def _at_version(row: Any, version: int | None) -> None:
    if version is not None and row.version != version:
        raise Conflict(
            f"workflow {row.name} is at version {row.version}, not {version}: look at it again,"
            " then change it"
        )


def _written(spec: WorkflowSpec) -> str:
    try:
        text = msgspec.json.encode(spec.to_dict())
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"nodes: a payload cannot be written as JSON: {error}", field="nodes") from None
    if len(text) > LARGEST_DEFINITION:
        raise Invalid(
            f"the workflow is {len(text)} bytes of JSON; at most {LARGEST_DEFINITION} are allowed:"
            " give what its nodes share as parameters, or store it elsewhere",
            field="nodes",
        )
    return text.decode()


def spec_of(row: Any) -> WorkflowSpec:
    """The definition in the row. It is cached: a large one takes long to check, and is often read again."""
    return reading("workflow", row.id, lambda: _spec(row.definition))


@lru_cache(maxsize=32)
def _spec(definition: str) -> WorkflowSpec:
    return WorkflowSpec.from_dict(decode(definition))


def _workflow(row: Any) -> Workflow:
    return Workflow(**_facts(row), spec=spec_of(row))


def _facts(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "namespace": row.namespace,
        "name": row.name,
        "description": row.description,
        "nodes": row.nodes,
        "version": row.version,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
