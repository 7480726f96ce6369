"""What callers send about tasks and their fires, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from fusee.surfaces.rest.answers import answer_of, inner_answer, page_of
from fusee.surfaces.rest.asking import REF, Body
from fusee.surfaces.rest.bodies import VERSION, DueAt, Incoming, Reason, Seconds, line_of_text
from fusee.tasks.fields import ALIASES, STATUSES, TASK
from fusee.tasks.model.fire import Fire
from fusee.tasks.model.task import Task, TaskSpec
from fusee.tasks.service.apply import Change
from fusee.tasks.service.explain import Explanation
from fusee.tasks.service.simulation import Simulation
from fusee.tasks.store.backfills import Backfilled
from fusee.tasks.store.triggers import Triggered
from fusee.values.kinds import TEXT, or_null
from fusee.values.kinds import Seconds as Duration

__all__ = [
    "APPLY",
    "CHANGE",
    "CREATE",
    "REPLACE",
    "ApplyIn",
    "ApplyOut",
    "BackfillIn",
    "BackfillOut",
    "ClearQueueIn",
    "CronOut",
    "CronWords",
    "ExplanationOut",
    "FireOut",
    "FirePage",
    "NextOut",
    "PreviewOut",
    "QueueClearedOut",
    "SimulateIn",
    "SimulationOut",
    "TaskOut",
    "TaskPage",
    "TaskSteerIn",
    "TriggerIn",
    "TriggeredOut",
]

FireReason = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(line_of_text)]
"""Stored with a fire, whose column is shorter than those of other reasons."""

MOST_DOCUMENTS = 1000


# --- a task as callers write it: its declared fields, and what may stand beside them


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
    "callback_timeout_sec": _member(Duration().schema(), "With ASYNC: how long the callback may take."),
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
        # Apart from the properties: a body with both names is refused.
        "patternProperties": {f"^({'|'.join(ALIASES)})$": {}},
        "required": ["name"] if required else [],
    }
    return Body(name, schema)


CREATE = _body("TaskIn", "A task to make.", {**FROM_TEMPLATE, **SWITCH}, required=True)
REPLACE = _body(
    "TaskReplaceIn",
    "A task as it shall be; a field that is not given has its default. What the server adds to a task is"
    " ignored, so that an answer can be edited and sent back.",
    {**FROM_TEMPLATE, "version": VERSION},
    required=False,
)
CHANGE = _body(
    "TaskChangeIn",
    "The fields to change; null takes one back to its default.",
    {"version": VERSION},
    required=False,
)


# --- the other requests


class ApplyIn(Incoming):
    """Tasks as they shall be."""

    documents: list[dict[str, Any]] = Field(
        max_length=MOST_DOCUMENTS,
        description="Each a task, as `POST /api/v1/tasks` takes it.",
    )
    group: str = Field(default="default", description="Their group: prune deletes only within it.")
    prune: bool = Field(default=False, description="Delete those of the group that are not listed.")
    dry_run: bool = Field(default=False, description="Only show what would change.")


_APPLY = ApplyIn.model_json_schema()
_APPLY["properties"]["documents"]["items"] = {"$ref": REF.format(model="TaskIn")}
APPLY = Body("ApplyIn", _APPLY)


class TaskSteerIn(Incoming):
    """Why a task is paused, resumed, enabled or disabled; and which version of it was meant."""

    reason: Reason | None = None
    version: int | None = Field(default=None, ge=1)


class ClearQueueIn(Incoming):
    """Why the queue of a task is emptied."""

    reason: FireReason = Field(default="cleared by hand", description="Kept with each fire that is skipped.")


class TriggerIn(Incoming):
    """A fire by hand."""

    payload: dict[str, Any] | None = Field(
        default=None, description="Goes over the task's own, member by member."
    )
    reason: FireReason = Field(default="triggered by hand", description="Kept with the fire.")


_BEGIN: Any = Field(alias="from", description="RFC 3339 with an offset.")
_END: Any = Field(alias="to", description="The last moment that counts.")


class BackfillIn(Incoming):
    """A past range of time; its fires that did not run shall run."""

    begin: DueAt = _BEGIN
    end: DueAt = _END
    concurrency: int = Field(default=1, description="Fires in progress at once, 1 to 1000.")
    dry_run: bool = Field(default=False, description="Only show what would run.")


class SimulateIn(Incoming):
    """A policy to simulate over a range of time."""

    begin: DueAt = _BEGIN
    end: DueAt = _END
    policy: dict[str, Any] = Field(
        default_factory=dict, description="Policy fields of a task; the others stay as the task has them."
    )
    duration: Seconds | None = Field(
        default=None,
        description="Of fires without a recorded one; when it is not given, the median of those recorded.",
    )


# --- answers


class CronWords(BaseModel):
    """A cron expression in words."""

    en: str
    zh: str


_MORE: dict[str, Any] = {
    "next_fires": (list[str], "Five at most; none while it is not enabled."),
    "description_words": (CronWords | None, "Of a task with cron."),
}
PreviewOut = answer_of("PreviewOut", TaskSpec, **_MORE)
TaskOut = answer_of("TaskOut", Task, **_MORE)
TaskPage = page_of(answer_of("TaskSummary", Task, brief=True))
FireOut = inner_answer("FireOut", Fire)
FirePage = page_of(FireOut)
ExplanationOut = answer_of("ExplanationOut", Explanation)
TriggeredOut = answer_of("TriggeredOut", Triggered)
BackfillOut = answer_of("BackfillOut", Backfilled)
SimulationOut = answer_of("SimulationOut", Simulation)
TaskChangeOut = answer_of("TaskChangeOut", Change)


class NextOut(BaseModel):
    """When a task fires next."""

    task: str
    next_fires: list[str]


class CronOut(BaseModel):
    """A cron expression, read."""

    expression: str
    cron: str = Field(description="The same with six fields, as it is stored.")
    timezone: str
    description_words: CronWords
    next_fires: list[str]


class ApplyOut(BaseModel):
    """What was done, or, in a dry run, what would be."""

    dry_run: bool
    changes: list[TaskChangeOut]  # type: ignore[valid-type]


class QueueClearedOut(BaseModel):
    """How many queued fires were skipped."""

    cleared: int
