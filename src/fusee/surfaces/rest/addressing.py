"""Which task a request is about, and which version of it."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends, Header, Path

from fusee.errors import Invalid, NotFound
from fusee.surfaces.rest.problems import Problem
from fusee.values.names import NAME, check_name

__all__ = ["ETAG", "IfMatch", "TaskRef", "etag", "version_from"]

ETAG: dict[str, Any] = {
    "headers": {
        "ETag": {
            "description": "The version, for If-Match.",
            "required": True,
            "schema": {"type": "string"},
        }
    }
}
LARGEST = 2**63 - 1
_TAG = re.compile(r'"?([0-9]{1,18})"?')


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

IfMatch = Annotated[
    str | None,
    Header(description="The version that you saw, as ETag says it; the change is refused when it is stale."),
]


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def version_from(given: Any, if_match: str | None) -> int | None:
    """What the body and the header say; None: change it whatever its version."""
    if given is not None and (type(given) is not int or given < 1):
        raise Problem(422, f"version must be a whole number from 1 on, not {given!r:.60}", field="version")
    if if_match in (None, "", "*"):
        return given
    tag = _TAG.fullmatch(if_match.strip())
    if tag is None:
        raise Problem(422, f'If-Match must be a version such as "3", not {if_match!r:.60}', field="If-Match")
    said = int(tag[1])
    if given is not None and given != said:
        raise Problem(422, "version and If-Match say different things: send one of them", field="version")
    return said
