"""Runs as they go: wait for the end of one, or follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from msgspec.json import encode
from starlette.responses import StreamingResponse

from fusee.config import parse_duration
from fusee.engine.model.run import Run
from fusee.errors import FuseeError
from fusee.runs.rest.shapes import RunId, RunOut, run_shown
from fusee.runs.service.runs import RunOperations
from fusee.surfaces.rest.asking import Viewer
from fusee.surfaces.rest.context import context_of, service_of, services_of
from fusee.surfaces.rest.problems import Problem
from fusee.values.fields import shown

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

MOST_FOLLOWERS = 200
"""Requests held open at once; each asks the database a few times a second."""
LIFETIME = 600.0
"""Seconds after which a stream ends; the browser opens it again by itself."""
SIGN_OF_LIFE = 15.0
FASTEST, SLOWEST = 0.05, 1.0
"""Seconds between two looks at a run: short at first, longer while nothing happens."""
LAST = "end"


class Followers:
    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        if self.count >= self.most:
            raise Problem(
                429,
                f"{self.most} requests already wait for runs here: ask again later",
                headers={"Retry-After": "5"},
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


def _followers(request: Request) -> Followers:
    state = request.app.state
    if not hasattr(state, "followers"):
        state.followers = Followers(MOST_FOLLOWERS)
    followers: Followers = state.followers
    return followers


@router.get(
    "/{run_id}/wait",
    dependencies=[Viewer],
    responses={202: {"model": RunOut, "description": "It has not ended yet: ask again."}},
    response_model=RunOut,
)
async def wait_for_run(
    request: Request,
    response: Response,
    run_id: RunId,
    timeout: Annotated[
        str, Query(description="In seconds, or as `20s`; bounded by api.request_timeout.")
    ] = "20s",
) -> dict[str, Any]:
    """Wait for the end of the run; when the time is up, the status is 202 and the run has not ended."""
    services, runs = services_of(request), service_of(request, RunOperations)
    try:
        seconds = min(parse_duration(timeout), services.config.request_timeout * 0.9)
    except ValueError as error:
        raise Problem(422, f"timeout {error}", field="timeout") from None
    with _followers(request).one_more():
        await runs.peek(run_id)
        waiting = asyncio.ensure_future(runs.wait(run_id, seconds))
        closing = asyncio.ensure_future(services.closing.wait())
        try:
            await asyncio.wait((waiting, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            waiting.cancel()
            await asyncio.gather(waiting, closing, return_exceptions=True)
    found = await runs.get(run_id)
    response.status_code = 200 if found.run.ended else 202
    return run_shown(found)


@router.get(
    "/{run_id}/events",
    dependencies=[Viewer],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "The end was told before."}},
)
async def follow_run(
    request: Request, run_id: RunId, last_event_id: Annotated[str | None, Header()] = None
) -> Response:
    """Server-sent events: `state` whenever the run changes, `end` when it has ended."""
    runs = service_of(request, RunOperations)
    run = await runs.peek(run_id)
    if last_event_id == LAST and run.ended:
        return Response(status_code=204)  # the one answer that stops a browser from coming back
    followers = _followers(request)
    with followers.one_more():
        pass
    context_of(request).extend(LIFETIME + 30)
    closing = services_of(request).closing
    return StreamingResponse(
        _events(runs, run, closing, followers),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(
    runs: RunOperations, run: Run, closing: asyncio.Event, followers: Followers
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    began = spoke = loop.time()
    told: tuple[object, ...] | None = None
    number = 0
    pause = FASTEST
    with followers.one_more():
        yield "retry: 2000\n\n"
        while True:
            state = (run.status, run.attempt, run.cancel_requested_at, run.due_at)
            if state != told:
                number, told, pause, spoke = number + 1, state, FASTEST, loop.time()
                yield _event("end" if run.ended else "state", LAST if run.ended else str(number), run)
            elif loop.time() - spoke > SIGN_OF_LIFE:
                spoke = loop.time()
                yield ": still here\n\n"
            if run.ended or closing.is_set() or loop.time() - began > LIFETIME:
                return
            try:
                await asyncio.wait_for(closing.wait(), pause)
            except TimeoutError:
                pass
            pause = min(pause * 1.3, SLOWEST)
            try:
                run = await runs.peek(run.id)
            except FuseeError:
                return  # pruned, or no database for now: the browser asks again and gets the real answer


def _event(kind: str, event_id: str, run: Run) -> str:
    return f"event: {kind}\nid: {event_id}\ndata: {encode(shown(run, brief=True)).decode()}\n\n"
