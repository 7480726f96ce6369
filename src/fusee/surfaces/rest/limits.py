"""What one request may cost: the size of its head, the size of its body, and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fusee.surfaces.rest.context import Context
from fusee.surfaces.rest.paths import path_of
from fusee.surfaces.rest.problems import Problem

__all__ = ["CSV", "NDJSON", "BodyLimit", "Deadline", "HeadLimit", "is_stream"]

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
CSV = ("text/csv",)
MOST_DISCARDED = 64 * 2**20
LONGEST_DISCARD = 5.0
LONGEST_PAUSE = 1.0
"""How much of a refused body is read and thrown away: bytes, seconds, and seconds in which nothing comes."""


def is_stream(scope: Scope, kinds: Sequence[str]) -> bool:
    """Whether the body comes as lines, each with its own limit, however many there are."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return scope["method"] == "POST" and kind in kinds


class HeadLimit:
    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
            if size > self.most:
                raise Problem(431, f"the request head has {size} bytes; at most {self.most} are accepted")
        await self.app(scope, receive, send)


class Deadline:
    """Work that takes longer is cancelled; a route that streams asks its context for more time."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app = app
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        context: Context = scope["fusee"]
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                context.deadline = deadline
                await self.app(scope, receive, send)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Problem(
                504,
                f"not done after {self.seconds:g} s, so it was cancelled; what was being written may or may"
                " not have been: look, or repeat the request with the same Idempotency-Key",
            ) from None


async def _discard(receive: Receive) -> None:
    """Read what still comes of a refused body: a client that writes all of it before it reads would find its
    connection reset instead of the refusal. Bounded, so that nobody is waited for."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_DISCARD):
            while size <= MOST_DISCARDED:
                async with asyncio.timeout(LONGEST_PAUSE):
                    message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class BodyLimit:
    """Reads a body to its end before anything is done with it: one that is over the limit, malformed or cut
    off is refused before it has any effect, whatever the route makes of bodies.

    `streamed` are the paths that take lines, with the content types of those."""

    def __init__(self, app: ASGIApp, most: int, streamed: Mapping[str, Sequence[str]]) -> None:
        self.app = app
        self.most = most
        self.streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_stream(scope, self.streamed.get(path_of(scope), ())):
            await self.app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        if told.isdecimal() and (len(told) > 18 or int(told) > self.most):
            asks_first = Headers(scope=scope).get("expect", "").lower() == "100-continue"
            if not asks_first and len(told) <= 18 and int(told) <= MOST_DISCARDED:
                await _discard(receive)
            raise self._refusal()
        whole: Message | None = await self._whole(receive)

        async def receive_whole() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message, whole = whole, None
            return message

        await self.app(scope, receive_whole, send)

    async def _whole(self, receive: Receive) -> Message:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.most:
                parts.clear()
                if message.get("more_body", False):
                    await _discard(receive)
                raise self._refusal()
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}

    def _refusal(self) -> Problem:
        return Problem(
            413,
            f"the body is over {self.most} bytes (api.max_body): send many runs as lines of"
            " application/x-ndjson, and large data as a reference",
        )
