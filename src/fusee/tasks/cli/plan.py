"""What applying changes, as people read a plan: + create, ~ change, - delete, = as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.output import clean
from fusee.tasks.cli.view import value_text

if TYPE_CHECKING:
    from rich.text import Text

    from fusee.tasks.service.apply import Change

__all__ = ["changed", "differences_lines", "lines_of", "plan_object", "summary"]

MARKS = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "enable": ("~", "yellow"),
    "disable": ("~", "yellow"),
    "delete": ("-", "red"),
    "unchanged": ("=", "dim"),
}


def changed(changes: Iterable[Change]) -> bool:
    return any(change.action != "unchanged" for change in changes)


def lines_of(change: Change, written: Mapping[str, Any] | None) -> list[Text]:
    """One line for the task, and one for each field that changes; `written` is what a new one is made of."""
    from rich.text import Text

    mark, style = MARKS[change.action]
    lines = [Text(f"{mark} {clean(change.name)}", style) + Text(f"  {change.action}", "dim")]
    if change.action == "create":
        fields = [(name, value) for name, value in (written or {}).items() if name != "name"]
        width = max((len(name) for name, _ in fields), default=0)
        return lines + [Text(f"    {name:{width}}  {clean(value_text(value))}") for name, value in fields]
    return lines + differences_lines(change.differences)


def differences_lines(differences: Sequence[tuple[str, Any, Any]]) -> list[Text]:
    """`    every  15m → 1h`."""
    from rich.text import Text

    width = max((len(field) for field, _, _ in differences), default=0)
    return [
        Text(f"    {field:{width}}  ")
        + Text(clean(_value(field, before)), "red")
        + Text(" → ")
        + Text(clean(_value(field, after)), "green")
        for field, before, after in differences
    ]


def _value(field: str, value: Any) -> str:
    from fusee.tasks.service.documents import DURATIONS
    from fusee.values.durations import duration_text

    if field in DURATIONS and isinstance(value, float):
        return duration_text(value)
    return value_text(value)


def summary(changes: Sequence[Change], *, done: bool) -> str:
    """`2 created, 1 updated, 4 unchanged`."""
    words = {
        "create": ("to create", "created"),
        "update": ("to update", "updated"),
        "enable": ("to enable", "enabled"),
        "disable": ("to disable", "disabled"),
        "delete": ("to delete", "deleted"),
        "unchanged": ("unchanged", "unchanged"),
    }
    counts = Counter(change.action for change in changes)
    return ", ".join(f"{counts[a]} {words[a][done]}" for a in words if counts[a]) or "no tasks"


def plan_object(changes: Sequence[Change], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "changes": [
            {
                "name": change.name,
                "action": change.action,
                "differences": [{"field": f, "before": b, "after": a} for f, b, a in change.differences],
            }
            for change in changes
        ],
    }
