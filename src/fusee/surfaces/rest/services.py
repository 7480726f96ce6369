"""What the API stands on; the composition root fills it in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fusee.access.actions import guarded
from fusee.access.authenticator import Authenticator
from fusee.access.principal import Caller
from fusee.config import ApiConfig, TlsConfig

__all__ = ["NamespaceServices", "Services"]

S = TypeVar("S")


class NamespaceServices:
    """The services of one namespace, each under the noun of its actions.

    A route asks for one by its class (`service_of`), so this kit knows none of them."""

    def __init__(self, **services: object) -> None:
        self._by_class = {type(service): (noun, service) for noun, service in services.items()}

    def __getitem__(self, kind: type[S]) -> S:
        """The service itself, without the check of what a caller may do."""
        service = self._by_class[kind][1]
        assert isinstance(service, kind)
        return service

    def for_caller(self, kind: type[S], caller: Caller) -> S:
        """The service as this caller may use it: each call is checked against the table of actions."""
        return guarded(self[kind], self._by_class[kind][0], caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    config: ApiConfig
    namespace: str
    """The namespace of callers without a key, and of configured keys."""
    of: Callable[[str], NamespaceServices]
    """Namespace → its services; returns the same object for the same namespace."""
    authenticator: Authenticator
    tls: TlsConfig
    health: Callable[[], Awaitable[Sequence[str]]]
    """The reasons why this process is not ready; empty when it is."""
    warnings: Callable[[str | None], Sequence[str]] = lambda namespace: ()
    """What is wrong with the work of a namespace, such as a queue that has stalled; None: name no queue."""
    metrics: Callable[[str], Awaitable[bytes]] | None = None
    """The metrics that a caller of that namespace may see, in Prometheus format; None: metrics are off."""
    version: str = "0"
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server shuts down: requests that are held open return now."""
