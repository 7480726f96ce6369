"""Which task a request is about."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path

from fusee.errors import Invalid, NotFound
from fusee.surfaces.rest.paths import named
from fusee.values.names import NAME, check_name

__all__ = ["OF_TASK", "TASK", "TaskRef"]

LARGEST = 2**63 - 1
TASK, OF_TASK = named(
    "task",
    "task",
    [
        *("runs", "explain", "next", "simulate", "trigger", "restart", "backfill"),
        *("pause", "resume", "enable", "disable", "clear-queue"),
    ],
    alone=["preview", "apply"],
)


async def _ref(
    task: Annotated[
        str,
        Path(
            description="The task's name, or its number: digits alone are always a number. A slash is written"
            " as it is; before a word that follows a name here, such as `runs`, as `%2F`.",
            json_schema_extra={"pattern": f"^{NAME}$"},
        ),
    ],
) -> str | int:
    try:
        check_name(task, "task")
    except ValueError as error:
        raise Invalid(str(error), field="task") from None
    if not task.isdecimal():
        return task
    if int(task) > LARGEST:
        raise NotFound(f"no task {task}: a name of digits alone is taken for a number")
    return int(task)


TaskRef = Annotated[str | int, Depends(_ref)]
