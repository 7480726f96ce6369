"""When tasks fire: the fire history, explanations, the next fires, and the simulation of a policy."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from fusee.surfaces.rest.asking import Viewer, body_of
from fusee.surfaces.rest.bodies import Time
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.paging import Page, Pager
from fusee.surfaces.rest.problems import Problem
from fusee.surfaces.rest.reading import read_json
from fusee.tasks.cron import Cron, CronError, next_fires
from fusee.tasks.fields import words_of
from fusee.tasks.model.policy import Decision
from fusee.tasks.model.schedule import zone_named
from fusee.tasks.rest.addressing import OF_TASK, TaskRef
from fusee.tasks.rest.shapes import (
    CronOut,
    CronWords,
    ExplanationOut,
    FirePage,
    NextOut,
    SimulateIn,
    SimulationOut,
)
from fusee.tasks.service.tasks import TaskOperations
from fusee.tasks.store.history import FireFilter
from fusee.values.fields import shown
from fusee.values.times import show_times

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["tasks"], dependencies=[Viewer])

MOST_FIRES = 100
"""Of a schedule that fires once in four years, 1,000 took half a second to find."""

Count = Annotated[int, Query(ge=1, le=MOST_FIRES)]


def _fire_at(place: str) -> tuple[int, int]:
    at, _, shard = place.partition(":")
    if not (at.isdecimal() and shard.isdecimal() and len(at) < 19 and len(shard) < 10):
        raise ValueError("a place among fires is a time and a shard")
    return int(at), int(shard)


FIRES = Pager("f1", _fire_at)


@router.get(f"/tasks{OF_TASK}/runs", response_model=FirePage)
async def list_fires(
    request: Request,
    page: Page,
    ref: TaskRef,
    decision: Annotated[list[Decision] | None, Query(description="May be repeated.")] = None,
    since: Annotated[Time | None, Query(description="Due then or later.")] = None,
    until: Annotated[Time | None, Query(description="Due then or earlier.")] = None,
) -> dict[str, Any]:
    """Its fire history, newest first: for each due time the decision, the rule and the run."""
    wanted = FireFilter(
        since=since,
        until=until,
        decision=decision or (),
        before=FIRES.after(page.cursor),
        limit=page.asked,
    )
    found = await service_of(request, TaskOperations).fires(ref, wanted)
    return FIRES.page(page, found, lambda fire: f"{fire.fire_time}:{fire.shard}", shown)


@router.get(f"/tasks{OF_TASK}/explain", response_model=ExplanationOut)
async def explain_task(
    request: Request,
    ref: TaskRef,
    at: Annotated[Time, Query(description="Of a whole second, any fire within it counts.")],
) -> dict[str, Any]:
    """Explain why it ran at that time, or did not."""
    return shown(await service_of(request, TaskOperations).explain(ref, at))


@router.get(f"/tasks{OF_TASK}/next")
async def next_of_task(request: Request, ref: TaskRef, count: Count = 5) -> NextOut:
    """Its next fires; none while it is not enabled, or when it has no schedule."""
    tasks = service_of(request, TaskOperations)
    task = await tasks.get(ref)
    return NextOut(task=task.name, next_fires=show_times(tasks.upcoming(task, count)))


@router.post(f"/tasks{OF_TASK}/simulate", openapi_extra=body_of(SimulateIn), response_model=SimulationOut)
async def simulate_task(request: Request, ref: TaskRef) -> Response:
    """Show what another policy would have done, beside what was done; nothing is changed."""
    wish = await read_json(request, SimulateIn, "a simulation")
    done = await service_of(request, TaskOperations).simulate(
        ref, wish.begin, wish.end, policy=wish.policy, duration=wish.duration
    )
    # Encoding 20,000 fires takes more than half a second: other requests are served meanwhile.
    text = await asyncio.to_thread(lambda: msgspec.json.encode(shown(done)))
    return Response(text, media_type="application/json")


@router.get("/cron")
async def read_cron(
    request: Request,
    expression: Annotated[str, Query(description="As `cron` of a task.", examples=["0 3 * * MON-FRI"])],
    timezone: Annotated[str, Query(description="A zone of the IANA database.")] = "UTC",
    count: Count = 5,
) -> CronOut:
    """Describe a cron expression in words, with its normalised form and its next fires."""
    try:
        cron = Cron.parse(expression)
    except CronError as error:
        problem = Problem(422, str(error), field="expression")
        if error.field is not None:
            problem.extra |= {"part": error.field, "position": error.position}
        raise problem from None
    zone = zone_named(timezone)
    now = service_of(request, TaskOperations).now_us()
    return CronOut(
        expression=expression,
        cron=cron.text,
        timezone=timezone,
        description_words=CronWords(**words_of(cron)),
        next_fires=show_times(next_fires(cron, now, zone, count)),
    )
