"""What is known of one request, from the first middleware to the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import HTTPConnection
from starlette.types import Scope

from fusee.access.principal import Caller
from fusee.surfaces.rest.services import Services

__all__ = ["Context", "context_of", "service_of", "services_of"]

_KEY = "fusee"
S = TypeVar("S")


@dataclass(slots=True)
class Context:
    request_id: str
    caller: Caller | None = None
    deadline: asyncio.Timeout | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """Told in the answer should the request fail: how far it came."""

    def keep_to(self, scope: Scope) -> None:
        scope[_KEY] = self

    def extend(self, seconds: float) -> None:
        """The request may take that long from now on."""
        if self.deadline is not None and not self.deadline.expired():
            self.deadline.reschedule(asyncio.get_running_loop().time() + seconds)


def context_of(request: HTTPConnection) -> Context:
    context: Context = request.scope[_KEY]
    return context


def services_of(request: HTTPConnection) -> Services:
    services: Services = request.app.state.services
    return services


def service_of(request: HTTPConnection, kind: type[S]) -> S:
    """The service of that class for the namespace of the caller, each call checked against the table of
    actions. A route has no other way to a service."""
    caller = context_of(request).caller
    assert caller is not None
    return services_of(request).of(caller.namespace).for_caller(kind, caller)
