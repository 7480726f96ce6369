"""Calling a business over HTTP: one POST, guarded as every outgoing call is, and what its answer means."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from yarl import URL

from fusee.engine.model.outcome import Abandon, Retry
from fusee.errors import Invalid
from fusee.executors.http.executor import retry_after
from fusee.executors.http.guard import AddressRefused, Guard, GuardedResolver, guarded_session

__all__ = ["BusinessResponse", "CallFailed", "Posts"]

CONNECT = 10.0
LONGEST_WAIT = 300.0
"""Seconds: a service that asks for more is asked again after this."""
LONGEST_DETAIL = 500
AGAIN = (408, 425, 429)
"""Statuses below 500 that say: later."""


class CallFailed(Exception):
    """There was no good answer; trying again may help."""


@dataclass(frozen=True, slots=True)
class BusinessResponse:
    """What a business answered."""

    status: int
    body: Any
    """Its JSON; None when there was none."""
    after: float | None
    """Seconds that it asks to be left alone for."""
    where: str

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def error(self, *, final: bool) -> Exception:
        """`final`: a status that says the request itself is wrong is not worth another try."""
        text = f"HTTP {self.status} ({self.where})"
        if detail := _detail(self.body):
            text += f": {detail}"
        elif 300 <= self.status < 400:
            text += ": redirects are not followed; register the address it points to"
        if self.status in AGAIN or self.status >= 500:
            return Retry(text, after=self.after)
        return Abandon(text) if final else CallFailed(text)


class Posts:
    """The client of one process; opened when it is first needed. `resolver` is a part that tests exchange."""

    def __init__(
        self,
        *,
        allow_private: Sequence[str] = (),
        max_response: int = 1024 * 1024,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._guard = Guard(allow_private)
        self._max_response = max_response
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    def check_host(self, address: str) -> None:
        """Refuse, with an `OSError`, an address that no call may go to."""
        self._guard.check_host(URL(address).raw_host or "")

    async def check(self, address: str) -> None:
        """The same, and its name is resolved: better one refusal now than one for each item."""
        try:
            self.check_host(address)
            url = URL(address)
            resolver = GuardedResolver(self._guard, self._resolver or aiohttp.ThreadedResolver())
            await resolver.resolve(url.raw_host or "", url.port or 443)
        except AddressRefused as error:
            raise Invalid(str(error)) from None
        except (OSError, ValueError):
            return  # a name that is not found just now may be found when it is called

    async def post(
        self, address: str, body: Any, *, key: str, headers: Mapping[str, str], timeout: float
    ) -> BusinessResponse:
        """`CallFailed` when there is no whole answer, `Abandon` when the guard refuses the address."""
        url = URL(address)
        where = f"POST {url.origin()}"  # without the path, which may hold a secret
        sent = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        sent |= {"Idempotency-Key": key, "Accept-Encoding": "identity"}
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT, timeout))
        try:
            self._guard.check_host(url.raw_host or "")
            async with self._open().post(
                url,
                data=msgspec.json.encode(body),
                headers=sent,
                allow_redirects=False,
                timeout=limits,
            ) as response:
                text = await self._read(response, where)
                after = retry_after(response.headers.get("Retry-After"), time.time())
                kind = response.content_type.lower()
                return BusinessResponse(
                    response.status,
                    _json(text) if "json" in kind else None,
                    None if after is None else min(after, LONGEST_WAIT),
                    where,
                )
        except TimeoutError:
            raise CallFailed(f"no complete answer within {timeout:g} s ({where})") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            if isinstance(cause, AddressRefused):
                raise Abandon(str(cause)) from None
            raise CallFailed(f"no answer ({where}): {str(cause) or type(cause).__name__}"[:2000]) from None

    async def _read(self, response: aiohttp.ClientResponse, where: str) -> bytes:
        text = await response.content.read(self._max_response + 1)
        while not response.content.at_eof() and len(text) <= self._max_response:
            text += await response.content.read(self._max_response + 1 - len(text))
        if len(text) > self._max_response:
            response.close()
            raise CallFailed(f"the answer is over {self._max_response} bytes ({where})")
        return text

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = guarded_session(self._guard, self._resolver)
        return self._session


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text.strip() else None
    except (ValueError, RecursionError):
        return None


def _detail(body: Any) -> str:
    """What the service says is wrong: `detail` of problem+json, `error` or `message` of most others."""
    if isinstance(body, Mapping):
        for name in ("detail", "error", "message"):
            if isinstance(body.get(name), str):
                return str(body[name])[:LONGEST_DETAIL]
    return ""
