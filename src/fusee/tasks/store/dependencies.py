"""The dependencies between tasks: never a cycle, even when two people edit at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, insert, select

from fusee.engine.store.context import StoreContext
from fusee.engine.store.edit_lock import EditLock
from fusee.errors import Conflict, Invalid
from fusee.tasks.store.tables import task_edges, tasks
from fusee.values.chunks import chunks

__all__ = ["TaskDependencies"]


class TaskDependencies:
    def __init__(self, context: StoreContext, edit_lock: EditLock) -> None:
        self.context = context
        self.edit_lock = edit_lock

    def set_upstreams(self, connection: Connection, task_id: int, name: str, after: Sequence[str]) -> None:
        """Replace the upstreams of a task; refused when that would close a cycle.

        Edits of dependencies exclude each other: two that are harmless each on its own can close a cycle
        together.
        """
        self.edit_lock.take_turn(connection, "task-edges")
        known = self._ids_of(connection, after)
        missing = [upstream for upstream in after if upstream not in known]
        if missing:
            raise Invalid(f"after names {missing[0]!r}, which is no task: create it first", field="after")
        if cycle := self._reaches(connection, known.values(), task_id):
            shown = " → ".join([*self._names_of(connection, cycle), name])
            raise Invalid(f"after would close a cycle: {shown}", field="after")
        connection.execute(delete(task_edges).where(task_edges.c.downstream_id == task_id))
        if known:
            rows = [
                {"upstream_id": upstream, "downstream_id": task_id, "namespace": self.context.namespace}
                for upstream in known.values()
            ]
            connection.execute(insert(task_edges), rows)

    def refuse_if_upstream(self, connection: Connection, task_id: int, name: str) -> None:
        """Refuse to delete a task that other tasks wait for."""
        self.edit_lock.take_turn(connection, "task-edges")
        query = (
            select(tasks.c.name)
            .join(task_edges, task_edges.c.downstream_id == tasks.c.id)
            .where(task_edges.c.upstream_id == task_id, tasks.c.live_name.is_not(None))
            .limit(5)
        )
        waiting = list(connection.execute(query).scalars())
        if waiting:
            raise Conflict(
                f"{name} is waited for by {', '.join(waiting)}: take it out of their `after` first"
            )
        connection.execute(delete(task_edges).where(task_edges.c.downstream_id == task_id))

    def _reaches(self, connection: Connection, starts: Iterable[int], goal: int) -> list[int]:
        """The path upstream from one of `starts` to `goal`, or nothing. Reads each edge once."""
        came_from: dict[int, int | None] = dict.fromkeys(starts)
        frontier = list(came_from)
        while frontier:
            found: list[int] = []
            for part in chunks(frontier):
                query = select(task_edges.c.downstream_id, task_edges.c.upstream_id).where(
                    task_edges.c.downstream_id.in_(part)
                )
                for down, up in connection.execute(query):
                    if up not in came_from:
                        came_from[up] = down
                        found.append(up)
            if goal in came_from:
                way: list[int] = [goal]
                while (previous := came_from[way[-1]]) is not None:
                    way.append(previous)
                return way
            frontier = found
        return []

    def _ids_of(self, connection: Connection, names: Sequence[str]) -> dict[str, int]:
        if not names:
            return {}
        query = select(tasks.c.live_name, tasks.c.id).where(
            tasks.c.namespace == self.context.namespace, tasks.c.live_name.in_(names)
        )
        return {row.live_name: row.id for row in connection.execute(query)}

    def _names_of(self, connection: Connection, ids: Sequence[int]) -> list[str]:
        query = select(tasks.c.id, tasks.c.name).where(tasks.c.id.in_(ids))
        names = {row.id: row.name for row in connection.execute(query)}
        return [names[task_id] for task_id in ids]
