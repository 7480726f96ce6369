"""What machines ask: is it up, is it ready, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from fusee.surfaces.rest.context import context_of, services_of
from fusee.surfaces.rest.docs_page import CSP, PAGE
from fusee.surfaces.rest.problems import Problem

__all__ = ["router"]

router = APIRouter(tags=["platform"])


class ReadyOut(BaseModel):
    ready: bool
    reasons: list[str] = []
    warnings: list[str] = []
    """What is wrong with the work; the process is ready all the same."""


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """The process is up; asks nobody."""
    return {"status": "ok", "version": services_of(request).version}


@router.get("/readyz", responses={503: {"description": "Not ready; `reasons` says why."}})
async def readyz(request: Request) -> ReadyOut:
    """The database answers, its schema fits, no loop keeps failing."""
    services = services_of(request)
    reasons = ["shutting down"] if services.closing.is_set() else list(await services.health())
    if reasons:
        raise Problem(
            503,
            "not ready: " + "; ".join(reasons),
            headers={"Retry-After": "2"},
            ready=False,
            reasons=reasons,
        )
    caller = context_of(request).caller
    return ReadyOut(
        ready=True, warnings=list(services.warnings(None if caller is None else caller.namespace))
    )


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics: of this process and its namespace, or of the namespace of the key."""
    render = services_of(request).metrics
    if render is None:
        raise Problem(404, "metrics are off: set metrics.enabled = true")
    caller = context_of(request).caller
    assert caller is not None
    return Response(await render(caller.namespace), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": CSP})
