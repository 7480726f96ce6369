"""Where a service that accepted a call says how it ended; its token is all that it needs."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from fusee.engine.model.states import RunStatus
from fusee.errors import Denied
from fusee.facts import facts
from fusee.runs.rest.shapes import CallbackIn, CallbackOut, RunId
from fusee.runs.service.callbacks import CallbackOperations
from fusee.surfaces.rest.asking import body_of
from fusee.surfaces.rest.context import context_of, services_of
from fusee.surfaces.rest.reading import read_json

__all__ = ["is_callback", "router"]

log = logging.getLogger("fusee.api")

router = APIRouter(prefix="/api/v1/callbacks", tags=["callbacks"])

LONGEST_TOKEN = 200
METHODS = ("POST", "PUT", "PATCH")
"""All mean the same: a service calls back with the one it can."""
_PATH = re.compile(r"/api/v1/callbacks/[0-9]{1,19}")


def is_callback(method: str, path: str) -> bool:
    """Whether that request is let in without a key: this route and no other."""
    return method in METHODS and _PATH.fullmatch(path) is not None


_ROUTE: dict[str, Any] = {
    "openapi_extra": {**body_of(CallbackIn, required=False), "security": [{"callback": []}, {"bearer": []}]},
    "responses": {
        202: {"model": CallbackOut, "description": "Kept until the call itself has ended."},
        409: {"description": "It was answered before, or is over without that."},
    },
}


@router.post("/{run_id}", **_ROUTE)
@router.put("/{run_id}", **_ROUTE)
@router.patch("/{run_id}", **_ROUTE)
async def answer_call(
    request: Request,
    response: Response,
    run_id: RunId,
    x_fusee_callback_token: Annotated[str | None, Header(description="From the call's own header.")] = None,
    x_fusee_signature: Annotated[
        str | None, Header(description="`sha256=…`, where the call asked for it.")
    ] = None,
) -> CallbackOut:
    """Say how a call in async mode ended; no body means that it succeeded. The first answer counts."""
    token = _checked(x_fusee_callback_token or _bearer(request))
    services = services_of(request)
    callbacks = services.of(services.namespace)[CallbackOperations]
    # Before the body is read: who has no token shall not make us parse megabytes.
    known = await callbacks.known(run_id, token)
    callbacks.verify(known, token, await request.body(), x_fusee_signature)
    said = await read_json(request, CallbackIn, "a callback", optional=True)
    answer = await callbacks.answer(known, said.ended())
    response.status_code = 202 if answer.status is RunStatus.RUNNING else 200
    about = {"run_id": run_id, "attempt": known.attempt, "request_id": context_of(request).request_id}
    log.info("call answered", extra=facts(about, end=said.status, status=str(answer.status)))
    return CallbackOut(id=run_id, status=answer.status)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _checked(token: str) -> str:
    if not 0 < len(token) <= LONGEST_TOKEN:
        raise Denied("send the token of the call that you answer: `X-Fusee-Callback-Token: TOKEN`")
    return token
