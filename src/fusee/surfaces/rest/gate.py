"""Who may come in: with a key, or from this machine while no key has ever existed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fusee.access.authenticator import NO_KEY, is_forwarding
from fusee.access.principal import Principal, PrincipalKind, Role
from fusee.config import ApiConfig, TlsConfig
from fusee.config.addresses import is_loopback
from fusee.errors import ConfigError, Denied
from fusee.surfaces.rest.context import Context
from fusee.surfaces.rest.paths import path_of
from fusee.surfaces.rest.problems import Problem
from fusee.surfaces.rest.services import Services

__all__ = ["NAMESPACE_HEADER", "Gate", "refuse_open_bind"]

OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json")
"""They hold nothing of anyone. Whatever is not named here needs a caller, also a path that does not exist."""
HARMLESS = ("GET", "HEAD", "OPTIONS")
NAMESPACE_HEADER = "X-Fusee-Namespace"
_IN_NAMESPACE = re.compile(r"/api/v1/namespaces/([^/]+)(/.+)")


def refuse_open_bind(config: ApiConfig, tls: TlsConfig, any_keys: bool) -> None:
    """The API is not offered to a network before there is a key, nor without TLS."""
    if config.loopback:
        return
    if not any_keys:
        raise ConfigError(
            f"api.bind_address {config.bind_address} can be reached from other machines, and there is no API"
            " key: make one with `fusee key create NAME --role admin`, or bind to 127.0.0.1"
        )
    if not tls.enabled and not config.trusted_proxies:
        raise ConfigError(
            f"api.bind_address {config.bind_address} can be reached from other machines, and keys would"
            " travel unencrypted: set tls.cert_file and tls.key_file, or, behind a proxy that ends TLS,"
            ' api.trusted_proxies = ["ITS ADDRESS"]'
        )


class Gate:
    """Puts the caller into the request's context, or refuses."""

    def __init__(self, app: ASGIApp, services: Services, without_key: Callable[[str, str], bool]) -> None:
        self.app = app
        self.services = services
        self.authenticator = services.authenticator
        self.proxies = [ipaddress.ip_network(one) for one in services.config.trusted_proxies]
        self.without_key = without_key
        """(method, path) → whether the request proves itself in another way than by a key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            namespace, scope = _chosen(scope)
            context: Context = scope["fusee"]
            principal = await self._admit(scope)
            context.caller = None if principal is None else principal.acting_in(namespace)
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Principal | None:
        path = path_of(scope)
        if path in OPEN:
            # Who has a key learns more from /readyz; who sends a wrong one should know.
            return await self._with_key(scope) if path == "/readyz" and _key(scope) is not None else None
        if path == "/metrics":
            local = _key(scope) is None and self.services.config.loopback
            return self._watching(scope) if local else await self._with_key(scope)
        if self.without_key(scope["method"], path):
            return None
        if (
            _key(scope) is None
            and self.services.config.loopback
            and await self.authenticator.open_to_this_machine()
        ):
            _must_be_local(scope)
            return self.authenticator.on_this_machine()
        return await self._with_key(scope)

    async def _with_key(self, scope: Scope) -> Principal:
        key = _key(scope)
        if key is None:
            raise Denied(NO_KEY)
        return await self.authenticator.by_key(key, self._sender(scope), "rest")

    def _sender(self, scope: Scope) -> str:
        """The address that wrong keys are counted for: beyond the proxies that we trust."""
        address = _address(scope)
        if self._trusts(address):
            said = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
            for hop in reversed([one.strip() for one in said if one.strip()]):
                address = hop[:64]
                if not self._trusts(address):
                    break
        return address

    def _trusts(self, address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self.proxies)

    def _watching(self, scope: Scope) -> Principal:
        """A monitor on this machine: it sees the metrics without a key."""
        _must_be_local(scope)
        home = self.services.namespace
        return Principal(PrincipalKind.LOCAL, "local", home, {home: Role.VIEWER})


def _chosen(scope: Scope) -> tuple[str | None, Scope]:
    """(the namespace that the header or the path asks for, the request without that part of its path)."""
    named = Headers(scope=scope).get(NAMESPACE_HEADER)
    path = path_of(scope)
    if (match := _IN_NAMESPACE.fullmatch(path)) is None:
        return named, scope
    if named is not None and named != match[1]:
        raise Problem(
            422,
            f"the path and {NAMESPACE_HEADER} name different namespaces: send one of them",
            field="namespace",
        )
    root = scope["path"].removesuffix(path)
    return match[1], {**scope, "path": f"{root}/api/v1{match[2]}", "raw_path": None}


def _must_be_local(scope: Scope) -> None:
    """Someone on this machine; not a web page that someone on this machine looks at, and nobody behind a
    proxy on this machine."""
    # Another program may serve us, mounted, on whatever address it likes.
    if not is_loopback(_address(scope)):
        raise Denied("without an API key this API answers to its own machine only: create a key", known=True)
    headers = Headers(scope=scope)
    for name in headers:
        if is_forwarding(name):
            raise Denied(
                f"this request was forwarded (it has the header {name}), so it may come from anywhere: send"
                " an API key; `fusee key create NAME --role admin` makes the first one"
            )
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


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


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
