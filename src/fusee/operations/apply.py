"""Tasks as code: make the store's tasks what a list of documents says, and tell what that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from fusee.errors import Invalid, NotFound
from fusee.model.task import Task, TaskSpec, TaskStatus
from fusee.operations.task_fields import fields_from, task_from
from fusee.operations.tasks import TaskOperations
from fusee.store import TaskFilter

__all__ = ["LABEL", "Change", "apply", "plan"]

LABEL = "applied"
"""Tasks that were applied carry their group's name under this label: prune looks at no others."""


@dataclass(frozen=True, slots=True)
class Change:
    """What applying does to one task."""

    name: str
    action: str
    """create, update, unchanged, delete, enable or disable."""
    differences: Sequence[tuple[str, Any, Any]] = ()
    """(field, as it is, as it will be)."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    spec: TaskSpec
    enabled: bool


async def plan(
    tasks: TaskOperations, documents: Sequence[Mapping[str, Any]], *, group: str, prune: bool = False
) -> list[Change]:
    """What `apply` would do."""
    wanted = _read(documents, group)
    changes = [await _compare(tasks, one) for one in wanted]
    return changes + [Change(name, "delete") for name in await _surplus(tasks, wanted, group, prune)]


async def apply(
    tasks: TaskOperations,
    documents: Sequence[Mapping[str, Any]],
    *,
    group: str = "default",
    prune: bool = False,
    allow_unknown: bool = False,
) -> list[Change]:
    """Create, update and, with `prune`, delete; upstreams before what waits for them.

    Each task is one transaction. Applying the same documents again changes nothing.
    """
    wanted = _read(documents, group)
    changes: list[Change] = []
    for one in wanted:
        change = await _compare(tasks, one)
        match change.action:
            case "create":
                await tasks.create(one.spec, enabled=one.enabled, allow_unknown=allow_unknown)
            case "update":
                await tasks.replace(one.spec.name, one.spec, allow_unknown=allow_unknown)
        if change.action != "create":
            await _switch(tasks, one)
        changes.append(change)
    for name in await _surplus(tasks, wanted, group, prune):
        await tasks.delete(name)
        changes.append(Change(name, "delete"))
    return changes


def _read(documents: Sequence[Mapping[str, Any]], group: str) -> list[_Wanted]:
    found: dict[str, _Wanted] = {}
    for number, document in enumerate(documents, 1):
        if not isinstance(document, Mapping):
            raise Invalid(f"task {number} must be an object, not {document!r:.60}")
        fields = dict(document)
        enabled = fields.pop("enabled", None)
        status = fields.pop("status", None)  # the older spelling: ENABLED, DISABLED
        if enabled is None:
            enabled = status is None or str(status).upper() == "ENABLED"
        name = fields.get("name", f"number {number}")
        try:
            spec = task_from(fields)
        except Invalid as error:
            raise Invalid(f"task {name}: {error}", field=error.field) from None
        if spec.name in found:
            raise Invalid(f"task {spec.name} is there twice", field="name")
        found[spec.name] = _Wanted(replace(spec, labels={**spec.labels, LABEL: group}), bool(enabled))
    sorter = TopologicalSorter({name: set(one.spec.after) & found.keys() for name, one in found.items()})
    try:
        return [found[name] for name in sorter.static_order()]
    except CycleError as error:
        raise Invalid(f"after closes a circle: {' → '.join(error.args[1])}", field="after") from None


async def _compare(tasks: TaskOperations, wanted: _Wanted) -> Change:
    try:
        task = await tasks.get(wanted.spec.name)
    except NotFound:
        return Change(wanted.spec.name, "create")
    before, after = fields_from(task.spec), fields_from(wanted.spec)
    differences = [(key, before[key], after[key]) for key in after if before[key] != after[key]]
    if _is_on(task) != wanted.enabled:
        differences.append(("enabled", _is_on(task), wanted.enabled))
    if not differences:
        return Change(wanted.spec.name, "unchanged")
    if [field for field, _, _ in differences] == ["enabled"]:
        return Change(wanted.spec.name, "enable" if wanted.enabled else "disable", differences)
    return Change(wanted.spec.name, "update", differences)


async def _switch(tasks: TaskOperations, wanted: _Wanted) -> None:
    task = await tasks.get(wanted.spec.name)
    if _is_on(task) != wanted.enabled:
        await tasks.steer(wanted.spec.name, "enable" if wanted.enabled else "disable", reason="applied")


def _is_on(task: Task) -> bool:
    """A paused task is on: applying does not undo what someone, or a failure, paused."""
    return task.status is not TaskStatus.DISABLED


async def _surplus(tasks: TaskOperations, wanted: Sequence[_Wanted], group: str, prune: bool) -> list[str]:
    """Tasks of this group that are not wanted any more; those that wait for others first."""
    if not prune:
        return []
    names = {one.spec.name for one in wanted}
    surplus: dict[str, Task] = {}
    cursor: str | None = None
    while page := await tasks.list(TaskFilter(after=cursor, limit=500)):
        surplus |= {t.name: t for t in page if t.spec.labels.get(LABEL) == group and t.name not in names}
        cursor = page[-1].name
    sorter = TopologicalSorter(
        {name: set(task.spec.after) & surplus.keys() for name, task in surplus.items()}
    )
    return list(reversed(list(sorter.static_order())))
