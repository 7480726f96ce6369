"""Queues."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from fusee.errors import Invalid
from fusee.surfaces.rest.asking import Operator, Viewer, audit, body_of
from fusee.surfaces.rest.bodies import LimitsChangeIn, LimitsIn, StrategyIn
from fusee.surfaces.rest.context import operations_of
from fusee.surfaces.rest.paths import OF_QUEUE, QUEUE
from fusee.surfaces.rest.reading import read_json
from fusee.surfaces.rest.shapes import QueueOut, QueuePage
from fusee.values.names import NAME

__all__ = ["router"]

router = APIRouter(prefix="/api/v1")

Name = Annotated[
    str,
    Path(
        description="The queue's name; a slash before `pause` and the like that is part of it as `%2F`.",
        json_schema_extra={"pattern": f"^{NAME}$"},
    ),
]


@router.get("/queues", dependencies=[Viewer], tags=["queues"])
async def list_queues(request: Request) -> QueuePage:
    """Every queue that has work or limits."""
    return QueuePage(items=[QueueOut.of(stats) for stats in await operations_of(request).queues.list()])


@router.post(f"/queues{OF_QUEUE}/pause", dependencies=[Operator], tags=["queues"])
async def pause_queue(request: Request, name: Name) -> QueueOut:
    """Nothing of this queue starts any more; what runs goes on."""
    return await _pause(request, name, True)


@router.post(f"/queues{OF_QUEUE}/resume", dependencies=[Operator], tags=["queues"])
async def resume_queue(request: Request, name: Name) -> QueueOut:
    return await _pause(request, name, False)


@router.put(
    f"/queues{OF_QUEUE}/strategy",
    dependencies=[Operator],
    tags=["queues"],
    openapi_extra=body_of(StrategyIn),
)
async def place_queue(request: Request, name: Name) -> QueueOut:
    """Choose how the queue's runs find their worker; workers follow within a second."""
    wanted = await read_json(request, StrategyIn, "strategy")
    stats = await operations_of(request).queues.place(name, wanted.strategy)
    audit(request, "queue placed", queue=name, strategy=wanted.strategy)
    return QueueOut.of(stats)


@router.get(f"/queues{QUEUE}", dependencies=[Viewer], tags=["queues"])
async def get_queue(request: Request, name: Name) -> QueueOut:
    return QueueOut.of(await operations_of(request).queues.get(name))


@router.put(f"/queues{QUEUE}", dependencies=[Operator], tags=["queues"], openapi_extra=body_of(LimitsIn))
async def limit_queue(request: Request, name: Name) -> QueueOut:
    """Replace the queue's limits; they hold across all workers within a second."""
    wanted = await read_json(request, LimitsIn, "limits")
    try:
        limits = wanted.limits()
    except ValueError as error:
        raise Invalid(str(error), field=str(error).split(" ", 1)[0]) from None
    stats = await operations_of(request).queues.limit(name, limits)
    audit(request, "queue limited", queue=name, **wanted.model_dump())
    return QueueOut.of(stats)


@router.patch(
    f"/queues{QUEUE}", dependencies=[Operator], tags=["queues"], openapi_extra=body_of(LimitsChangeIn)
)
async def change_queue(request: Request, name: Name) -> QueueOut:
    """Change the limits that are given; null lifts one, and what is left out stays."""
    wanted = await read_json(request, LimitsChangeIn, "limits")
    changes = wanted.model_dump(exclude_unset=True)
    stats = await operations_of(request).queues.change(name, changes)
    audit(request, "queue limited", queue=name, **changes)
    return QueueOut.of(stats)


async def _pause(request: Request, name: str, paused: bool) -> QueueOut:
    stats = await operations_of(request).queues.pause(name, paused)
    audit(request, "queue paused" if paused else "queue resumed", queue=name)
    return QueueOut.of(stats)
