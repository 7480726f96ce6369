"""A client that goes only where the guard lets it: every outgoing call of the platform is made with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from fusee.executors.http.guard import Guard, GuardedResolver

__all__ = ["guarded_session"]


def guarded_session(
    guard: Guard,
    resolver: AbstractResolver | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> aiohttp.ClientSession:
    """Call with `allow_redirects=False`: a redirect leads to where nobody has looked yet."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=GuardedResolver(guard, resolver or aiohttp.ThreadedResolver()),
            socket_factory=guard.open_socket,
            # Every new connection resolves and is judged anew; who calls limits their number.
            use_dns_cache=False,
            limit=0,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        headers={"User-Agent": "fusee", **(headers or {})},
        **more,
    )
