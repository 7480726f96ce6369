"""Workers: the registry, and asking one to leave."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from fusee.errors import Invalid
from fusee.runs.rest.shapes import WorkerOut, WorkerPage
from fusee.runs.service.workers import WorkerFilter, WorkerOperations
from fusee.surfaces.rest.asking import AnyCase, Operator, Viewer, audit
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.paths import named
from fusee.values.fields import shown
from fusee.values.names import NAME

__all__ = ["router"]

router = APIRouter(prefix="/api/v1")

WORKER, OF_WORKER = named("worker", "name", ["drain"])
Shown = dict[str, Any]

Name = Annotated[
    str,
    Path(
        description="The worker's name; a slash before `drain` that is part of it as `%2F`.",
        json_schema_extra={"pattern": f"^{NAME}$"},
    ),
]
State = Annotated[Literal["alive", "draining", "ended", "lost", "down"], AnyCase]
Label = Annotated[
    list[str] | None, Query(description="A label it must have, as `name=value`; may stand several times.")
]


@router.get("/workers", dependencies=[Viewer], tags=["workers"], response_model=WorkerPage)
async def list_workers(
    request: Request,
    all: Annotated[bool, Query(description="Also those that ended or were lost.")] = False,
    state: Annotated[State | None, Query(description="`down` is ended or lost.")] = None,
    queue: Annotated[str | None, Query(description="Those that take runs from this queue.")] = None,
    handler: Annotated[str | None, Query(description="Those that have this handler.")] = None,
    region: Annotated[str | None, Query(description="Those of this region; empty: of none.")] = None,
    version: Annotated[str | None, Query(description="Those that run this version.")] = None,
    label: Label = None,
) -> Shown:
    """The workers of this namespace: what each can run, has and does. Newest first."""
    wanted = WorkerFilter(
        state=state, queue=queue, handler=handler, region=region, version=version, labels=_labels(label or [])
    )
    sessions = await service_of(request, WorkerOperations).list(wanted, all_states=all)
    return {"items": [shown(session) for session in sessions]}


@router.post(
    f"/workers{OF_WORKER}/drain",
    dependencies=[Operator],
    tags=["workers"],
    status_code=202,
    response_model=WorkerPage,
)
async def drain_worker(request: Request, name: Name) -> Shown:
    """Have the worker leave: it claims nothing from now on, finishes or hands back what it has, and ends.

    Repeating the request returns the same. A drained worker cannot be resumed: start it anew.
    """
    sessions = await service_of(request, WorkerOperations).drain(name)
    audit(request, "worker drained", worker=name)
    return {"items": [shown(session) for session in sessions]}


@router.get(f"/workers{WORKER}", dependencies=[Viewer], tags=["workers"], response_model=WorkerOut)
async def get_worker(request: Request, name: Name) -> Shown:
    """The worker of that name; if it is down, its last life."""
    return shown(await service_of(request, WorkerOperations).get(name))


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Invalid(f"label must be name=value, not {text!r:.60}", field="label")
        labels[name] = value
    return labels
