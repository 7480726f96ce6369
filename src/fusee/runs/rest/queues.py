"""Queues."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from fusee.engine.model.queue import LIMITS
from fusee.runs.rest.shapes import LIMIT, LIMIT_CHANGE, QueueOut, QueuePage, StrategyIn
from fusee.runs.service.queues import QueueOperations
from fusee.surfaces.rest.asking import Operator, Viewer, audit, body_of
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.paths import named
from fusee.surfaces.rest.reading import read_json, read_object
from fusee.values.fields import shown
from fusee.values.names import NAME

__all__ = ["router"]

router = APIRouter(prefix="/api/v1")

QUEUE, OF_QUEUE = named("queue", "name", ["pause", "resume", "strategy"])
Shown = dict[str, Any]
SAYS = f"limits are an object such as {LIMITS.example}"

Name = Annotated[
    str,
    Path(
        description="The queue's name; a slash before `pause` and the like that is part of it as `%2F`.",
        json_schema_extra={"pattern": f"^{NAME}$"},
    ),
]


@router.get("/queues", dependencies=[Viewer], tags=["queues"], response_model=QueuePage)
async def list_queues(request: Request) -> Shown:
    """Every queue that has work or limits."""
    return {"items": [shown(stats) for stats in await service_of(request, QueueOperations).list()]}


@router.post(f"/queues{OF_QUEUE}/pause", dependencies=[Operator], tags=["queues"], response_model=QueueOut)
async def pause_queue(request: Request, name: Name) -> Shown:
    """Stop starting runs of this queue; running ones continue."""
    return await _pause(request, name, True)


@router.post(f"/queues{OF_QUEUE}/resume", dependencies=[Operator], tags=["queues"], response_model=QueueOut)
async def resume_queue(request: Request, name: Name) -> Shown:
    return await _pause(request, name, False)


@router.put(
    f"/queues{OF_QUEUE}/strategy",
    dependencies=[Operator],
    tags=["queues"],
    openapi_extra=body_of(StrategyIn),
    response_model=QueueOut,
)
async def place_queue(request: Request, name: Name) -> Shown:
    """Choose how the queue's runs find their worker; workers follow within a second."""
    wanted = await read_json(request, StrategyIn, "strategy")
    stats = await service_of(request, QueueOperations).place(name, wanted.strategy)
    audit(request, "queue placed", queue=name, strategy=wanted.strategy)
    return shown(stats)


@router.get(f"/queues{QUEUE}", dependencies=[Viewer], tags=["queues"], response_model=QueueOut)
async def get_queue(request: Request, name: Name) -> Shown:
    return shown(await service_of(request, QueueOperations).get(name))


@router.put(
    f"/queues{QUEUE}",
    dependencies=[Operator],
    tags=["queues"],
    openapi_extra=body_of(LIMIT),
    response_model=QueueOut,
)
async def limit_queue(request: Request, name: Name) -> Shown:
    """Replace the queue's limits; they hold across all workers within a second."""
    limits = LIMITS.read(await read_object(request, SAYS))
    stats = await service_of(request, QueueOperations).limit(name, limits)
    audit(request, "queue limited", queue=name, **{field: getattr(limits, field) for field in LIMITS.fields})
    return shown(stats)


@router.patch(
    f"/queues{QUEUE}",
    dependencies=[Operator],
    tags=["queues"],
    openapi_extra=body_of(LIMIT_CHANGE),
    response_model=QueueOut,
)
async def change_queue(request: Request, name: Name) -> Shown:
    """Change the given limits; null removes one, and the others stay."""
    changes = LIMITS.named(await read_object(request, SAYS))
    stats = await service_of(request, QueueOperations).change(name, changes)
    audit(request, "queue limited", queue=name, **changes)
    return shown(stats)


async def _pause(request: Request, name: str, paused: bool) -> Shown:
    stats = await service_of(request, QueueOperations).pause(name, paused)
    audit(request, "queue paused" if paused else "queue resumed", queue=name)
    return shown(stats)
