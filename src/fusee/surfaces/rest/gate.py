"""Who may come in: a key, or, on a loopback address without any keys, whoever is on this machine."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fusee.access.service import Caller
from fusee.config import ApiConfig
from fusee.config.addresses import is_loopback
from fusee.errors import ConfigError, Denied
from fusee.runs.rest.callbacks import is_callback
from fusee.surfaces.rest.context import Context
from fusee.surfaces.rest.keyring import Keyring
from fusee.surfaces.rest.paths import path_of
from fusee.surfaces.rest.services import Services

__all__ = ["Gate", "refuse_open_bind"]

OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json")
"""They hold nothing of anyone. Whatever is not named here needs a caller, also a path that does not exist."""
HARMLESS = ("GET", "HEAD", "OPTIONS")


def refuse_open_bind(config: ApiConfig, any_keys: bool) -> None:
    """The API is not offered to a network before there is a key."""
    if not config.loopback and not any_keys:
        raise ConfigError(
            f"api.bind_address {config.bind_address} can be reached from other machines, and there is no API"
            " key: make one with `fusee key create NAME --role admin`, or bind to 127.0.0.1"
        )


class Gate:
    """Puts the caller into the request's context, or refuses."""

    def __init__(self, app: ASGIApp, services: Services, keyring: Keyring) -> None:
        self.app = app
        self.services = services
        self.keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            context: Context = scope["fusee"]
            context.caller = await self._admit(scope)
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller | None:
        path = path_of(scope)
        if path in OPEN:
            # Who has a key learns more from /readyz; who sends a wrong one should know.
            return await self._with_key(scope) if path == "/readyz" and _key(scope) is not None else None
        if path == "/metrics":
            local = _key(scope) is None and self.services.config.loopback
            return self._local(scope) if local else await self._with_key(scope)
        if is_callback(scope["method"], path):
            return None  # it proves itself by its own token, which is good for one run
        if _key(scope) is None and self.services.config.loopback and not await self.keyring.any():
            return self._local(scope)
        return await self._with_key(scope)

    async def _with_key(self, scope: Scope) -> Caller:
        key = _key(scope)
        if key is None:
            raise Denied("send an API key: `Authorization: Bearer KEY`; `fusee key create NAME` makes one")
        address = scope["client"][0] if scope.get("client") else ""
        caller = await self.keyring.caller(key, address)
        if caller is None:
            raise Denied("this API key is not valid: it is wrong, or it was revoked")
        return caller

    def _local(self, scope: Scope) -> Caller:
        """Someone on this machine; not a web page that someone on this machine looks at."""
        # Another program may serve us, mounted, on whatever address it likes.
        if not is_loopback(scope["client"][0] if scope.get("client") else ""):
            raise Denied(
                "without an API key this API answers to its own machine only: create a key", known=True
            )
        headers = Headers(scope=scope)
        # A page whose name was pointed at 127.0.0.1 (DNS rebinding) still sends its own name.
        for host in headers.getlist("host"):
            if not is_loopback(_hostname(host)):
                raise Denied(
                    f"this API answers to localhost only, not to {ascii(host)[:80]}: create an API key to"
                    " use it under another name",
                    known=True,
                )
        if scope["method"] not in HARMLESS and _is_foreign(headers):
            raise Denied("a page of another origin may not change anything here", known=True)
        return Caller("local", "admin", self.services.namespace)


def _key(scope: Scope) -> str | None:
    headers = Headers(scope=scope)
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme:
        return ""  # another scheme is a wrong key, not the lack of one
    return headers.get("x-api-key")


def _hostname(host: str) -> str:
    """`[::1]:8080` → `::1`, `localhost:8080` → `localhost`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().removesuffix(".")


def _is_foreign(headers: Headers) -> bool:
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
