"""A task as callers send it, described: made from its fields, which the service reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.surfaces.rest.asking import Body
from fusee.surfaces.rest.bodies import VERSION
from fusee.tasks.fields import ALIASES, STATUSES, TASK
from fusee.values.kinds import TEXT, Seconds, or_null

__all__ = ["CHANGE", "CREATE", "REPLACE"]


def _member(schema: dict[str, Any], says: str, **more: Any) -> dict[str, Any]:
    return {**or_null(schema), "description": says, "default": None, **more}


_TEXT, _OBJECT = TEXT.schema(), {"anyOf": [{"type": "object"}, {"type": "string"}]}
CALL: Mapping[str, dict[str, Any]] = {
    "target_url": _member(_TEXT, "An address to call: executor `http`, written flat."),
    "http_method": _member(_TEXT, "With `target_url`."),
    "headers_json": _member(_OBJECT, "With `target_url`; as an object, or as the JSON text of one."),
    "body_template": _member(_TEXT, "With `target_url`; `{{run_id}}` and its like are filled in."),
    "exec_type": _member(_TEXT, "With `target_url`: SYNC, or ASYNC, which waits for a callback."),
    "callback_method": _member(_TEXT, "With ASYNC: POST, PUT or PATCH, for the callback.", examples=["POST"]),
    "callback_timeout_sec": _member(Seconds().schema(), "With ASYNC: how long the callback may take."),
}
FROM_TEMPLATE: Mapping[str, dict[str, Any]] = {
    "template": _member(_TEXT, "A template to make it from; the other fields go over the template's."),
    "with": _member(_OBJECT, "With `template`: a value for each of its parameters that has no default."),
}
SWITCH: Mapping[str, dict[str, Any]] = {
    "enabled": _member({"type": "boolean"}, "false: it fires when it has been enabled."),
    "status": _member(_TEXT, "The older spelling of `enabled`.", examples=list(STATUSES)),
}


def _body(name: str, says: str, more: Mapping[str, Any], *, required: bool) -> Body:
    schema = TASK.schema(says, **CALL, **more)
    older = ", ".join(f"`{alias}` for `{field}`" for alias, field in ALIASES.items())
    schema |= {
        "description": f"{says} Older names are understood too: {older}.",
        # Apart from the properties: who writes both names is refused.
        "patternProperties": {f"^({'|'.join(ALIASES)})$": {}},
        "required": ["name"] if required else [],
    }
    return Body(name, schema)


CREATE = _body("TaskIn", "A task to make.", {**FROM_TEMPLATE, **SWITCH}, required=True)
REPLACE = _body(
    "TaskReplaceIn",
    "A task as it shall be; what is left out is its default. What the server adds to a task is ignored, so"
    " that an answer can be edited and sent back.",
    {**FROM_TEMPLATE, "version": VERSION},
    required=False,
)
CHANGE = _body(
    "TaskChangeIn",
    "The fields to change; null takes one back to its default.",
    {"version": VERSION},
    required=False,
)
