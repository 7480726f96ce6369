"""Tasks: make, list, look, replace, change, delete; many at once as code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from fusee.surfaces.rest.asking import (
    AllowUnknown,
    IdempotencyKey,
    Operator,
    Viewer,
    audit,
    body_of,
    checked_key,
)
from fusee.surfaces.rest.bodies import ETAG, IfMatch, version_from
from fusee.surfaces.rest.context import context_of, service_of
from fusee.surfaces.rest.definitions import Definition
from fusee.surfaces.rest.paging import Page, Pager, name_at
from fusee.surfaces.rest.problems import Problem
from fusee.surfaces.rest.reading import read_json, read_object
from fusee.tasks.fields import STATUSES, enabled_from, task_shown
from fusee.tasks.fields import TASK as FORM
from fusee.tasks.model.task import Task, TaskStatus
from fusee.tasks.rest.addressing import TASK, TaskRef
from fusee.tasks.rest.shapes import (
    APPLY,
    CHANGE,
    CREATE,
    REPLACE,
    ApplyIn,
    ApplyOut,
    PreviewOut,
    TaskOut,
    TaskPage,
)
from fusee.tasks.service.apply import apply, plan
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.tasks import TaskFilter
from fusee.values.fields import shown
from fusee.values.names import PREFIX, check_name, check_prefix

__all__ = ["answer", "router"]

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"])

TASKS = Pager("t1", name_at)
Shown = dict[str, Any]
DEFINITION = Definition(
    noun="task",
    place="tasks",
    form=FORM,
    answer=TaskOut,
    create=CREATE,
    replace=REPLACE,
    example={"name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "handler": "greet"},
    kept=frozenset({"status", "version"}),
    made={
        "headers": {
            **ETAG["headers"],
            "Location": {"description": "The task.", "required": True, "schema": {"type": "string"}},
        }
    },
)
_ANY_STATUS = BeforeValidator(
    lambda value: {"active": "enabled", "inactive": "disabled"}.get(value.lower(), value.lower())
)
"""In any case, and also in the words of older designs."""


def answer(request: Request, response: Response, task: Task) -> Shown:
    """The task, with its version as ETag."""
    shown = task_shown(task, service_of(request, TaskOperations).upcoming(task))
    return DEFINITION.at_version(response, task.version, shown)


@router.post("", **DEFINITION.creating)
async def create_task(
    request: Request,
    response: Response,
    allow_unknown: AllowUnknown = False,
    idempotency_key: IdempotencyKey = None,
) -> Shown:
    """Create a task; the answer contains its next five fires."""
    fields = await DEFINITION.fields(request)
    enabled = enabled_from(fields) is not False
    tasks = service_of(request, TaskOperations)
    key = checked_key(idempotency_key)
    task, new = await tasks.create_once(key, fields, enabled=enabled, allow_unknown=allow_unknown)
    DEFINITION.created(request, response, task.id, new, task=task.name, task_id=task.id)
    return answer(request, response, task)


@router.post(
    "/preview",
    dependencies=[Viewer],
    openapi_extra=body_of(CREATE, example=DEFINITION.example),
    response_model=PreviewOut,
)
async def preview_task(request: Request, allow_unknown: AllowUnknown = False) -> Shown:
    """Check a task and show when it would fire; nothing is created."""
    fields = await DEFINITION.fields(request)
    enabled_from(fields)
    tasks = service_of(request, TaskOperations)
    # A caller who may only read must not learn through our resolver which names of hosts exist.
    spec = await tasks.checked(fields, allow_unknown=allow_unknown, resolve=False)
    return task_shown(spec, tasks.preview(spec))


@router.post(
    "/apply",
    dependencies=[Operator],
    openapi_extra=body_of(APPLY),
    responses={409: {"description": "A task to prune is waited for; `changes` tells what was done."}},
    response_model=ApplyOut,
)
async def apply_tasks(request: Request, allow_unknown: AllowUnknown = False) -> Shown:
    """Tasks as code: make the tasks what the documents say, and return each change.

    All documents are checked first. Then each task is one transaction; when one fails, `changes` of the
    problem lists those that were made.
    """
    wanted = await read_json(request, ApplyIn, "the request")
    check_name(wanted.group, "group")
    tasks = service_of(request, TaskOperations)
    how: dict[str, Any] = {"group": wanted.group, "prune": wanted.prune, "allow_unknown": allow_unknown}
    if wanted.dry_run:
        planned = await plan(tasks, wanted.documents, **how)
        return {"dry_run": True, "changes": [shown(change) for change in planned]}
    notes = context_of(request).notes
    done = notes.setdefault("changes", [])
    changes = await apply(tasks, wanted.documents, **how, tell=lambda change: done.append(shown(change)))
    counts = {change.action: 0 for change in changes}
    for change in changes:
        counts[change.action] += 1
    audit(
        request, "tasks applied", group=wanted.group, **{f"tasks_{action}": n for action, n in counts.items()}
    )
    return {"dry_run": False, "changes": [shown(change) for change in changes]}


@router.get("", dependencies=[Viewer], response_model=TaskPage)
async def list_tasks(
    request: Request,
    page: Page,
    status: Annotated[
        list[Annotated[Literal["enabled", "paused", "disabled"], _ANY_STATUS]] | None,
        Query(description="May be repeated."),
    ] = None,
    prefix: Annotated[
        str, Query(description="How the name begins.", json_schema_extra={"pattern": f"^{PREFIX}$"})
    ] = "",
) -> Shown:
    """By name."""
    check_prefix(prefix, "prefix")
    wanted = TaskFilter(
        status=[TaskStatus(one) for one in status or ()],
        prefix=prefix,
        after=TASKS.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, TaskOperations).list(wanted)
    return TASKS.page(page, found, lambda task: task.name, lambda task: shown(task, brief=True))


@router.get(TASK, **DEFINITION.getting)
async def get_task(request: Request, response: Response, ref: TaskRef) -> Shown:
    return answer(request, response, await service_of(request, TaskOperations).get(ref))


@router.put(TASK, **DEFINITION.replacing)
async def replace_task(
    request: Request,
    response: Response,
    ref: TaskRef,
    allow_unknown: AllowUnknown = False,
    if_match: IfMatch = None,
) -> Shown:
    """Replace its definition as a whole."""
    fields = await DEFINITION.replacement(request)
    tasks = service_of(request, TaskOperations)
    before = await tasks.get(ref)
    version = _change_of(fields, before, if_match)
    fields.setdefault("name", before.name)
    task = await tasks.replace(before.id, fields, version=version, allow_unknown=allow_unknown)
    audit(request, "task replaced", task=task.name, version=task.version)
    return answer(request, response, task)


@router.patch(TASK, **DEFINITION.changing(CHANGE, {"cron": "0 4 * * *", "version": 1}))
async def change_task(
    request: Request,
    response: Response,
    ref: TaskRef,
    allow_unknown: AllowUnknown = False,
    if_match: IfMatch = None,
) -> Shown:
    """Change the given fields; null resets a field to its default."""
    fields = await read_object(request, "a change is an object with the fields to change")
    tasks = service_of(request, TaskOperations)
    before = await tasks.get(ref)
    version = _change_of(fields, before, if_match)
    if fields.get("name", "") is None:
        raise Problem(422, "name must be text: a task keeps its name", field="name")
    task = await tasks.change(before.id, fields, version=version, allow_unknown=allow_unknown)
    audit(request, "task changed", task=task.name, version=task.version, fields=sorted(fields)[:50])
    return answer(request, response, task)


@router.delete(
    TASK,
    status_code=204,
    dependencies=[Operator],
    responses={409: {"description": "Others wait for it, or it is at another version."}},
)
async def delete_task(request: Request, ref: TaskRef, if_match: IfMatch = None) -> Response:
    """Delete it; its name is free again. Its runs and fires are kept until they are pruned. Running fires
    continue; fires that wait are recorded as skipped."""
    task = await service_of(request, TaskOperations).delete(ref, version=version_from(None, if_match))
    audit(request, "task deleted", task=task.name, task_id=task.id)
    return Response(status_code=204)


def _change_of(fields: dict[str, Any], before: Task, if_match: str | None) -> int | None:
    """Take version and status out of the fields, which may contain both, since an answer does. A change of
    status is another command, so that no change is half done."""
    version = version_from(fields.pop("version", None), if_match)
    status = fields.pop("status", None)
    enabled = fields.pop("enabled", None)
    said = status.upper() if isinstance(status, str) else status
    same = said in (None, before.status.upper()) or (
        # An older word for it: what is paused is none of them.
        before.status is not TaskStatus.PAUSED
        and STATUSES.get(str(said)) is (before.status is TaskStatus.ENABLED)
    )
    if same and enabled in (None, before.status is not TaskStatus.DISABLED):
        return version
    raise Problem(
        422,
        f"task {before.name} is {before.status}: POST …/enable, /disable, /pause or /resume changes that",
        field="enabled" if same else "status",
    )
