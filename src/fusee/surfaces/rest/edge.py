"""The outermost layer: every request gets an id, every error an answer that is not a traceback."""

from __future__ import annotations

import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fusee.errors import StoreUnavailable
from fusee.facts import facts
from fusee.surfaces.rest.context import Context
from fusee.surfaces.rest.problems import Problem, problem_of

__all__ = ["Edge"]

log = logging.getLogger("fusee.api")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Edge:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        context = Context(given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8))
        context.keep_to(scope)
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = context.request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                self._tell(error, scope, context)
                raise
            response = self._answer(error, scope, context).response(context.request_id, context.notes)
            await response(scope, receive, send_marked)

    def _answer(self, error: Exception, scope: Scope, context: Context) -> Problem:
        problem = problem_of(error)
        if problem is None:
            self._tell(error, scope, context)
            return Problem(
                500,
                f"an unexpected error; it is in the server's log under request id {context.request_id}",
            )
        if isinstance(error, StoreUnavailable):
            log.warning("store unavailable", extra=facts(_about(scope, context), error=str(error)))
        return problem

    @staticmethod
    def _tell(error: Exception, scope: Scope, context: Context) -> None:
        log.error("request failed", exc_info=error, extra=facts(_about(scope, context)))


def _about(scope: Scope, context: Context) -> dict[str, str]:
    return {"request_id": context.request_id, "method": scope["method"], "path": scope["path"]}
