"""A client of one control plane: what it answers, or an error that says what is known afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from fusee.contrib.cdc.driver import NotReached, Refused, Unsure

__all__ = ["Http", "HttpAnswer", "checked"]

CONNECT_WITHIN = 10.0
LONGEST_DETAIL = 500


class HttpAnswer(NamedTuple):
    status: int
    body: Any


class Http:
    """Keeps connections open; made when it is first used, in the loop that uses it.

    It sets no deadline for answers: the operation's timeout cancels the request.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a control plane's url begins with http:// or https://, not {url!r:.60}")
        self.url = url.rstrip("/")
        self.headers = dict(headers or {})
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """The answer, whatever its status."""
        options: dict[str, Any] = {} if body is None else {"json": body}
        try:
            async with self._client().request(
                method, self.url + path, headers=dict(headers or {}), allow_redirects=False, **options
            ) as answer:
                return HttpAnswer(answer.status, _decoded(await answer.read()))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotReached(f"{self.url} cannot be reached: {error}") from None
        except aiohttp.ClientError as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise Unsure(f"{method} {path} got no answer ({what})") from None

    async def call(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The body of a good answer."""
        return checked(await self.ask(method, path, body=body, headers=headers), f"{method} {path}")

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                headers=self.headers,
                # As many as runs are under way: the worker's capacity is the limit.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def checked(answer: HttpAnswer, what: str) -> Any:
    if 200 <= answer.status < 300:
        return answer.body
    text = f"{what} was answered {answer.status}: {_detail(answer.body)}"
    if 300 <= answer.status < 500:
        raise Refused(text)
    raise Unsure(text)


def _decoded(text: bytes) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def _detail(body: Any) -> str:
    """What the other side says for people: problem+json, Kafka Connect's errors, or plain text."""
    if isinstance(body, Mapping):
        body = body.get("detail") or body.get("message") or body
    return str(body if body is not None else "nothing more was said")[:LONGEST_DETAIL]
