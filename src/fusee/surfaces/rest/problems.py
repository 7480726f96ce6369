"""What goes wrong, as RFC 9457 tells it: `application/problem+json` with a detail that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fusee.errors import (
    Conflict,
    Denied,
    FuseeError,
    Invalid,
    NotFound,
    StoreUnavailable,
    TooLarge,
    TooManyTries,
    Unreadable,
)

__all__ = ["KINDS", "MEDIA_TYPE", "Problem", "problem_of"]

MEDIA_TYPE = "application/problem+json"

KINDS: Mapping[int, tuple[str, str]] = {
    400: ("malformed", "The request cannot be read"),
    401: ("no-key", "A valid API key is needed"),
    403: ("forbidden", "Not allowed"),
    404: ("not-found", "Not found"),
    405: ("method", "The method does not fit the path"),
    409: ("conflict", "The state does not allow this"),
    413: ("too-large", "Over a size limit"),
    415: ("media-type", "The content type is not supported"),
    422: ("invalid", "The input cannot be accepted"),
    429: ("too-many", "Too many requests"),
    431: ("head-too-large", "The request head is over its limit"),
    500: ("internal", "Something went wrong on our side"),
    503: ("unavailable", "Not available at the moment"),
    504: ("deadline", "The request took too long"),
}
"""Status → (last part of the type, title); docs/rest.md has a line for each."""


class Problem(Exception):
    """An answer that is not a success."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra

    def body(self, request_id: str, notes: Mapping[str, Any]) -> dict[str, Any]:
        kind, title = KINDS.get(self.status) or ("other", HTTPStatus(self.status).phrase)
        return {
            "type": f"urn:fusee:problem:{kind}",
            "title": title,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
            **notes,
            "request_id": request_id,
        }

    def response(self, request_id: str, notes: Mapping[str, Any]) -> Response:
        return Response(
            msgspec.json.encode(self.body(request_id, notes)),
            self.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )


def problem_of(error: BaseException) -> Problem | None:
    """The answer to an error that was raised on purpose; None when it was not."""
    match error:
        case Problem():
            return error
        case Invalid(field=field):
            problem = Problem(422, str(error))
            if field:
                problem.extra["field"] = field
            return problem
        case NotFound():
            return Problem(404, str(error))
        case Conflict():
            return Problem(409, str(error))
        case Denied(known=True):
            return Problem(403, str(error))
        case Denied():
            return Problem(401, str(error), headers={"WWW-Authenticate": 'Bearer realm="fusee"'})
        case TooManyTries():
            return Problem(429, str(error), headers={"Retry-After": str(error.retry_after)})
        case TooLarge():
            return Problem(413, str(error))
        case StoreUnavailable():
            # Without the driver's own text, which may name hosts and users; the log has it.
            detail = f"{error.public}; send the same request again"
            return Problem(503, detail, headers={"Retry-After": str(error.retry_after)})
        case Unreadable():
            return Problem(500, str(error))
        case FuseeError():
            return None
        case HTTPException(status_code=404):
            return Problem(404, "no such path: /docs lists those there are")
        case HTTPException(status_code=status, detail=detail, headers=headers):
            return Problem(status, str(detail), headers=headers)
    return None
