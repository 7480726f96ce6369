"""HTTP calls: one request per attempt, only to addresses that the guard allows, without redirects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from fusee.clock import Clock, SystemClock
from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.callbacks import Callback, OpenCallback
from fusee.engine.worker.executor import Job
from fusee.engine.worker.results import abandoned, storable
from fusee.errors import LeaseLost, StoreUnavailable
from fusee.executors.http.guard import AddressRefused, Guard, guarded_session
from fusee.executors.http.request import HttpRequest, check_http, prepare, terms_of
from fusee.executors.tail import Tail

__all__ = ["HttpExecutor", "check_http", "retry_after"]

KEPT_HEADERS = ("content-type", "content-length", "date", "etag", "last-modified", "location", "retry-after",
                "x-request-id")  # fmt: skip
LONGEST_HEADER = 1024
CONNECT = 10.0
"""Seconds to connect, whatever the call itself may take."""
LONGEST_WAIT = 30 * 86400.0
READ = 65536


class HttpExecutor:
    """Sends what `payload` describes. Tests replace `resolver` and `clock`.

    A call in async mode has not ended with its response: its service calls back later, with a token that
    `open_callback` makes. Without `open_callback`, such a call is refused.
    """

    name = "http"

    def __init__(
        self,
        timeout: float = 15.0,
        allow_private: Sequence[str] = (),
        max_response: int = 1024 * 1024,
        output_tail: int = 64 * 1024,
        *,
        open_callback: OpenCallback | None = None,
        resolver: AbstractResolver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._timeout = timeout
        self._guard = Guard(allow_private)
        self._max_response = max_response
        self._output_tail = output_tail
        self._open_callback = open_callback
        self._resolver = resolver
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None

    async def execute(self, job: Job) -> Ended:
        job.effect = Effect.NONE
        try:
            callback = await self._callback(job)
            request = prepare(job.payload, job, callback)
            self._guard.check_host(request.url.raw_host or "")
        except ValueError as error:
            return abandoned(error)
        except LeaseLost as error:
            return Ended(End.LOST, error=str(error), effect=Effect.NONE)
        except StoreUnavailable:  # without its text, which may name hosts and users
            return Ended(End.FAILED, error="not called: the database did not answer", effect=Effect.NONE)
        tail = Tail(self._output_tail)
        try:
            ended = await self._send(request, job, tail)
        except TimeoutError:
            if job.effect is Effect.NONE:
                limit = min(self._timeout, CONNECT) if job.timeout is None else CONNECT
                ended = Ended(End.FAILED, error=f"no connection within {limit:g} s ({_target(request)})")
            else:
                text = f"no complete answer within {self._timeout:g} s ({_target(request)})"
                ended = Ended(End.TIMED_OUT, error=text)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            ended = _broken(error, request)
        finally:
            job.output = _without_token(tail.text(), callback) or None
        if ended.end is End.SUCCEEDED and callback is not None:
            return Ended(End.ACCEPTED, output=job.output, effect=job.effect)
        if ended.end is End.SUCCEEDED:
            job.effect = Effect.APPLIED
        return replace(ended, output=job.output, effect=job.effect)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _callback(self, job: Job) -> Callback | None:
        """Return the callback of an asynchronous call; None for any other."""
        terms = terms_of(job.payload)
        if terms is None:
            return None
        if self._open_callback is None:
            raise ValueError("an async call needs a worker that can be called back; here is none")
        return await self._open_callback(job, terms)

    async def _send(self, request: HttpRequest, job: Job, tail: Tail) -> Ended:
        # Where the run has its own timeout the pool keeps it, and it may be longer than our default.
        total = self._timeout if job.timeout is None else None
        async with self._open().request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=total, sock_connect=CONNECT),
            trace_request_ctx=job,
        ) as response:
            await self._read(response, tail)
            return self._judge(request, response)

    async def _read(self, response: aiohttp.ClientResponse, tail: Tail) -> None:
        """Keep the end of the body; a response that is too long is cut off and its connection closed."""
        left = self._max_response
        async for chunk in response.content.iter_chunked(READ):
            tail.write(chunk[:left])
            left -= len(chunk)
            if left < 0:
                tail.write(f"\n… cut off at {self._max_response} bytes …".encode())
                response.close()
                return

    def _judge(self, request: HttpRequest, response: aiohttp.ClientResponse) -> Ended:
        status = response.status
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        result = json.dumps(
            {"status": status, "headers": {k: storable(v)[:LONGEST_HEADER] for k, v in headers.items()}}
        )
        if status in request.success:
            return Ended(End.SUCCEEDED, result=result)
        try:
            phrase = f" {HTTPStatus(status).phrase}"
        except ValueError:
            phrase = ""
        error = f"HTTP {status}{phrase} ({_target(request)})"
        if 300 <= status < 400 and status != 304:
            error += ": redirects are not followed; call the address it points to"
        after = None
        if status in (408, 425, 429) or status >= 500:
            after = retry_after(response.headers.get("Retry-After"), self._clock.now_us() / 1e6)
        return Ended(End.FAILED, result=result, error=error, after=after)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_connected)
            trace.on_connection_reuseconn.append(_connected)
            self._session = guarded_session(self._guard, self._resolver, trace_configs=[trace])
        return self._session


async def _connected(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    """From here on bytes may be sent: the effect is unknown until the response arrives."""
    job: Job = context.trace_request_ctx
    await job.may_begin()


def retry_after(value: str | None, now: float) -> float | None:
    """Return a Retry-After header, given as seconds or as a date, in seconds from `now`; None without one."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:12]), LONGEST_WAIT)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - datetime.fromtimestamp(now, UTC)).total_seconds(), 0.0), LONGEST_WAIT)


def _without_token(text: str, callback: Callback | None) -> str:
    """Remove the token: reading a run must not allow ending it, and some services echo what they get."""
    return text if callback is None else text.replace(callback.token, "***")


def _target(request: HttpRequest) -> str:
    """Return method and host; the path may hold a secret."""
    return f"{request.method} {request.url.origin()}"


def _broken(error: Exception, request: HttpRequest) -> Ended:
    """Return the end of a call whose response never came, or came only in part."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefused):
        return Ended(End.ABANDONED, error=storable(str(cause)))
    if isinstance(error, aiohttp.InvalidURL):
        return Ended(End.ABANDONED, error=f"the URL cannot be called ({_target(request)})")
    what = "no connection" if isinstance(error, aiohttp.ClientConnectorError) else "the connection broke"
    text = str(cause) or type(cause).__name__
    return Ended(End.FAILED, error=storable(f"{what} ({_target(request)}): {text}")[:2048])
