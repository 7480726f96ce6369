"""A task as a document: the way it stands in a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.errors import Invalid
from fusee.tasks.fields import TASK, enabled_from, fields_from, task_from
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus
from fusee.values.durations import duration_text, seconds_from
from fusee.values.kinds import Seconds

__all__ = ["DURATIONS", "LABEL", "document_of", "read_document"]

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
