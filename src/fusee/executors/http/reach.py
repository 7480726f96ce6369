"""Checks a call's address when the call is submitted, so that a refusal does not wait for the first run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver
from yarl import URL

from fusee.executors.http.guard import AddressRefused, Guard
from fusee.executors.http.request import prepare

__all__ = ["Reach"]

LOOK_UP = 1.0
"""Seconds for a name to be resolved; a name that takes longer is left to the run."""


class Reach:
    """The guard of this process's configuration; a ValueError says what it would refuse.

    Tests replace `resolver`.
    """

    def __init__(self, allow_private: Iterable[str] = (), resolver: AbstractResolver | None = None) -> None:
        self.guard = Guard(allow_private)
        self.resolver = resolver

    def check(self, payload: Mapping[str, Any]) -> None:
        """Refuse a payload that could never be sent, or whose address the guard refuses as it is written."""
        self._check_host(prepare(payload, None).url.raw_host or "")

    def check_address(self, address: str) -> None:
        """Refuse an address that the guard refuses as it is written."""
        self._check_host(URL(address).raw_host or "")

    async def check_name(self, address: str) -> None:
        """Refuse an address whose host resolves, here and now, to what the guard refuses.

        A name that cannot be resolved passes: it may be known where the run executes.
        """
        host = URL(address).raw_host or ""
        try:
            async with asyncio.timeout(LOOK_UP):
                found = await (self.resolver or ThreadedResolver()).resolve(host, 0, socket.AF_UNSPEC)
        except (OSError, TimeoutError, UnicodeError):
            return
        try:
            self.guard.check_resolved(host, [one["host"] for one in found])
        except AddressRefused as error:
            raise ValueError(str(error)) from None

    async def check_payload_name(self, payload: Mapping[str, Any]) -> None:
        await self.check_name(str(prepare(payload, None).url))

    def _check_host(self, host: str) -> None:
        try:
            self.guard.check_host(host)
        except AddressRefused as error:
            raise ValueError(str(error)) from None
