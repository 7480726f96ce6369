"""Tasks as code: tasks as documents, and bringing the stored tasks in line with a list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from fusee.errors import Conflict, Invalid, NotFound
from fusee.tasks.fields import TASK, enabled_from, fields_from, task_from
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.tasks import TaskFilter
from fusee.values.durations import duration_text, seconds_from
from fusee.values.fields import Inner
from fusee.values.kinds import Kind, Seconds

__all__ = [
    "DURATIONS",
    "LABEL",
    "Change",
    "Difference",
    "apply",
    "differences",
    "document_of",
    "plan",
    "read_document",
]


class _Action(Kind):
    shown = Literal["create", "update", "unchanged", "delete", "enable", "disable"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a task as it is, and as it will be."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Change:
    """What applying does to one task."""

    name: str
    action: Annotated[str, _Action()]
    differences: Annotated[Sequence[Difference], Inner(Difference, "DifferenceOut", many=True)] = ()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between two tasks, each written as its fields."""
    return [Difference(name, before[name], after[name]) for name in after if before[name] != after[name]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    spec: TaskSpec
    enabled: bool


async def plan(
    tasks: TaskOperations,
    documents: Sequence[Mapping[str, Any]],
    *,
    group: str = "default",
    prune: bool = False,
    allow_unknown: bool = False,
) -> list[Change]:
    """What `apply` would do; refuses what it would refuse."""
    wanted = await _read(tasks, documents, group)
    await _check_all(tasks, wanted, allow_unknown)
    changes = [await _compare(tasks, one, prune) for one in wanted]
    return changes + [Change(name, "delete") for name in await _surplus(tasks, wanted, group, prune)]


async def apply(
    tasks: TaskOperations,
    documents: Sequence[Mapping[str, Any]],
    *,
    group: str = "default",
    prune: bool = False,
    allow_unknown: bool = False,
    tell: Callable[[Change], None] = lambda change: None,
) -> list[Change]:
    """Create, update and, with `prune`, delete; upstreams before what waits for them.

    Every document is checked before the first is written, then each task is one transaction; `tell` is called
    with each change that was made. Applying the same documents again changes nothing.
    """
    wanted = await _read(tasks, documents, group)
    await _check_all(tasks, wanted, allow_unknown)
    changes: list[Change] = []

    def done(change: Change) -> None:
        changes.append(change)
        tell(change)

    for one in wanted:
        done(await _make_so(tasks, one, prune, allow_unknown))
    for name in await _surplus(tasks, wanted, group, prune):
        await tasks.delete(name)
        done(Change(name, "delete"))
    return changes


async def _check_all(tasks: TaskOperations, wanted: Sequence[_Wanted], allow_unknown: bool) -> None:
    for one in wanted:
        try:
            match (await _compare(tasks, one, prune=False)).action:
                case "create":
                    await tasks.checked(one.spec, allow_unknown=allow_unknown)
                case "update":
                    await tasks.check_runnable(one.spec, allow_unknown)
        except Invalid as error:
            raise Invalid(f"task {one.spec.name}: {error}", field=error.field) from None


async def _read(tasks: TaskOperations, documents: Sequence[Mapping[str, Any]], group: str) -> list[_Wanted]:
    found: dict[str, _Wanted] = {}
    for document in documents:
        try:
            document = await tasks.plain(document)
        except Invalid as error:
            raise Invalid(f"task {str(document.get('name'))[:60]}: {error}", field=error.field) from None
        spec, enabled = read_document(document)
        if spec.name in found:
            raise Invalid(f"task {spec.name} is there twice", field="name")
        found[spec.name] = _Wanted(replace(spec, labels={**spec.labels, LABEL: group}), enabled)
    sorter = TopologicalSorter({name: set(one.spec.after) & found.keys() for name, one in found.items()})
    try:
        return [found[name] for name in sorter.static_order()]
    except CycleError as error:
        raise Invalid(f"after closes a cycle: {' → '.join(error.args[1])}", field="after") from None


async def _make_so(tasks: TaskOperations, wanted: _Wanted, prune: bool, allow_unknown: bool) -> Change:
    change = await _compare(tasks, wanted, prune)
    if change.action == "create":
        try:
            await tasks.create(wanted.spec, enabled=wanted.enabled, allow_unknown=allow_unknown)
            return change
        except Conflict:
            change = await _compare(tasks, wanted, prune)
            if change.action == "create":
                raise
            # Another process created it just now: two that start at the same time apply the same documents.
    if change.action == "update":
        await tasks.replace(wanted.spec.name, wanted.spec, allow_unknown=allow_unknown)
    await _switch(tasks, wanted)
    return change


async def _compare(tasks: TaskOperations, wanted: _Wanted, prune: bool) -> Change:
    try:
        task = await tasks.get(wanted.spec.name)
    except NotFound:
        return Change(wanted.spec.name, "create")
    before, after = fields_from(task.spec), fields_from(wanted.spec)
    if not prune:
        # The group matters to prune only: a task as it was exported is unchanged, no matter who created it.
        before["labels"] = before["labels"] | {LABEL: after["labels"][LABEL]}
    found = differences(before, after)
    if _is_on(task) != wanted.enabled:
        found.append(Difference("enabled", _is_on(task), wanted.enabled))
    if not found:
        return Change(wanted.spec.name, "unchanged")
    if [one.field for one in found] == ["enabled"]:
        return Change(wanted.spec.name, "enable" if wanted.enabled else "disable", found)
    return Change(wanted.spec.name, "update", found)


async def _switch(tasks: TaskOperations, wanted: _Wanted) -> None:
    task = await tasks.get(wanted.spec.name)
    if _is_on(task) != wanted.enabled:
        await tasks.steer(wanted.spec.name, "enable" if wanted.enabled else "disable", reason="applied")


def _is_on(task: Task) -> bool:
    """A paused task counts as on: applying does not undo a pause by a person or by a failure."""
    return task.status is not TaskStatus.DISABLED


async def _surplus(tasks: TaskOperations, wanted: Sequence[_Wanted], group: str, prune: bool) -> list[str]:
    """Tasks of this group that no document names; downstream tasks first."""
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


LABEL = "applied"
"""Tasks that were applied carry their group's name under this label: prune looks at no others."""

DURATIONS = tuple(field.name for field in TASK.fields.values() if isinstance(field.kind, Seconds))


def document_of(task: Task) -> dict[str, Any]:
    """Only what differs from the defaults; `read_document` makes the same task of it.

    A paused task is written as enabled: that it was paused is no part of what it is.
    """
    spec = task.spec
    fields = fields_from(spec)
    plain = fields_from(TaskSpec(name=spec.name, handler="any"))
    plain["handler"] = None if spec.executor == "python" else spec.executor  # when nothing is said
    document = {name: value for name, value in fields.items() if value != plain[name]}
    labels = {name: value for name, value in spec.labels.items() if name != LABEL}
    if document.pop("labels", None) and labels:
        document["labels"] = labels
    if spec.alerts is not None:
        document["alerts"] = {name: value for name, value in fields["alerts"].items() if value is not None}
    for name in DURATIONS:
        if name in document:
            document[name] = _duration(document[name])
    document = {name: value for name, value in document.items() if value is not None}
    if task.status is TaskStatus.DISABLED:
        document["enabled"] = False
    return {"name": spec.name, **document}


def read_document(document: Mapping[str, Any]) -> tuple[TaskSpec, bool]:
    """(the task, whether it is enabled); says which task and which field is wrong."""
    if not isinstance(document, Mapping):
        raise Invalid(
            f"a task is an object with a name, a schedule and a handler or target, not {document!r:.60}"
        )
    fields = dict(document)
    name = fields.get("name")
    called = f"task {name[:60]}" if isinstance(name, str) else "a task without a name"
    try:
        enabled = enabled_from(fields)
        return task_from(fields), enabled is not False
    except Invalid as error:
        raise Invalid(f"{called}: {error}", field=error.field) from None


def _duration(seconds: float) -> float | str:
    """`1h30m` where that says it all; else the number."""
    text = duration_text(seconds)
    try:
        return text if seconds_from(text, "the duration") == seconds else seconds
    except ValueError:  # 1e-05s
        return seconds
