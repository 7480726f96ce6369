"""Businesses that are called over HTTP: one POST for each call, guarded as every outgoing request is.

`docs/bulk.md` describes the requests and the responses."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from yarl import URL

from fusee.bulk.business import BulkContext, Business, ChunkFailed, HttpBusiness, SelfStart
from fusee.bulk.model.spec import ITEM_TIMEOUT
from fusee.engine.model.outcome import Abandon, Retry
from fusee.errors import Conflict, Invalid
from fusee.executors.http.executor import retry_after
from fusee.executors.http.guard import AddressRefused, Guard, GuardedResolver, guarded_session
from fusee.executors.http.request import check_http

__all__ = ["HttpBusinesses", "Posts"]

BEYOND = 5.0
"""Seconds by which an item may take longer than its HTTP call."""
NOT_OURS = ("content-length", "content-type", "idempotency-key")
"""Headers that every call has, with a value that is made for it."""
CONNECT = 10.0
LONGEST_WAIT = 300.0
"""Seconds: a service that asks for a longer pause is called again after this."""
LONGEST_DETAIL = 500
AGAIN = (408, 425, 429)
"""Statuses below 500 that ask for another attempt later."""


class HttpBusinesses:
    """Makes registered businesses callable; `base_url` is where they reach the API."""

    def __init__(self, posts: Posts, base_url: str | None = None) -> None:
        self.posts = posts
        self.base_url = base_url

    def check(self, spec: HttpBusiness) -> None:
        """Raises a ValueError or an OSError for addresses and headers that could never be used."""
        for name in spec.headers:
            if name.lower() in NOT_OURS:
                raise ValueError(f"headers: {name} is made for each call")
        for address in spec.addresses:
            check_http({"method": "POST", "url": address, "headers": dict(spec.headers)})
            self.posts.check_host(address)

    def __call__(self, spec: HttpBusiness) -> Business:
        handles = self._chunk if spec.chunk is not None else self._item
        return Business(
            name=spec.name,
            function=handles(spec, spec.handles),
            chunk=spec.chunk_size if spec.chunk is not None else None,
            undo=None if spec.undo is None else handles(spec, spec.undo),
            on_create=self._callback(spec, "create", spec.on_create),
            before_run=self._callback(spec, "before_run", spec.before_run),
            on_stop=self._callback(spec, "stop", spec.on_stop),
            on_finish=self._callback(spec, "finish", spec.on_finish),
            defaults=_defaults(spec),
        )

    # -- items

    def _item(self, spec: HttpBusiness, address: str) -> Callable[..., Any]:
        async def call(item: Any, index: int, job: BulkContext) -> None:
            key = job.idempotency_key(index)
            body = {**_about(spec, job), "index": index, "item": item, "key": key}
            response = await self.posts.post(
                address, body, key=key, headers=spec.headers, timeout=spec.timeout
            )
            if not response.good:
                raise response.error(final=True)

        return call

    def _chunk(self, spec: HttpBusiness, address: str) -> Callable[..., Any]:
        async def call(items: Sequence[Any], index: Sequence[int], job: BulkContext) -> Any:
            told = [
                {"index": at, "item": item, "key": job.idempotency_key(at)}
                for at, item in zip(index, items, strict=True)
            ]
            response = await self.posts.post(
                address,
                {**_about(spec, job), "items": told},
                key=_key_of(job, index),
                headers=spec.headers,
                timeout=spec.timeout,
            )
            if not response.good:
                # It is not known which of several items it means: in the last round each is sent alone.
                raise response.error(final=len(items) == 1)
            failed = _failed(response.body, index, response.where)
            return ChunkFailed(failed) if failed else None

        return call

    # -- callbacks

    def _callback(
        self, spec: HttpBusiness, event: str, address: str | None
    ) -> Callable[[BulkContext], Any] | None:
        if address is None:
            return None

        async def call(job: BulkContext) -> Any:
            body = {
                "event": event,
                "job_id": job.job_id or None,
                "job_url": self._url(job),
                "business": spec.name,
                "name": job.name,
                "data": job.data,
                "total": job.total,
                "ended": job.ended,
                "quarantined": job.quarantined,
                "status": job.status,
                "reason": job.reason,
                "undo": job.undo,
            }
            long = event == "before_run"
            try:
                response = await self.posts.post(
                    address,
                    body,
                    key=f"fusee-bulk-{job.job_id}-{event}-{job.occasion}",
                    headers=spec.headers,
                    timeout=spec.before_run_timeout if long else spec.timeout,
                )
            except CallFailed as error:
                if event == "create":
                    raise Conflict(
                        f"business {spec.name!r} could not be asked: {error}; try again later"
                    ) from None
                raise
            if not response.good:
                raise response.error(final=True)
            wants = isinstance(response.body, Mapping) and response.body.get("self_start") is True
            return SelfStart() if long and wants else None

        return call

    def _url(self, job: BulkContext) -> str | None:
        """Returns the address of the job in the API."""
        return f"{self.base_url}/api/v1/bulk-jobs/{job.job_id}" if self.base_url and job.job_id else None


def _defaults(spec: HttpBusiness) -> dict[str, Any]:
    """The business's own timeout ends a call first, also when that timeout is long."""
    return {"item_timeout": max(ITEM_TIMEOUT, spec.timeout + BEYOND), **spec.defaults}


def _about(spec: HttpBusiness, job: BulkContext) -> dict[str, Any]:
    about: dict[str, Any] = {"job_id": job.job_id, "business": spec.name, "undo": job.undo}
    return {**about, "data": job.data} if spec.with_data else about


def _key_of(job: BulkContext, index: Sequence[int]) -> str:
    """Returns a key of exactly these items: after a crash they may be grouped into different chunks."""
    first, last = index[0], index[-1]
    if last - first == len(index) - 1:
        return f"fusee-bulk-{job.job_id}-{first}-{last}"
    mark = hashlib.sha256(",".join(map(str, index)).encode()).hexdigest()[:16]
    return f"fusee-bulk-{job.job_id}-{first}-{last}-{mark}"


def _failed(body: Any, index: Sequence[int], where: str) -> dict[int, BaseException | str]:
    """Returns position → error of `{"failed": [{"index": 17, "error": "…", "retry": false}]}`."""
    told = body.get("failed") if isinstance(body, Mapping) else None
    if told is None:
        return {}
    places = {at: position for position, at in enumerate(index)}
    failed: dict[int, BaseException | str] = {}
    for one in told if isinstance(told, list) else (told,):
        at = one.get("index") if isinstance(one, Mapping) else None
        if type(at) is not int or at not in places:
            raise CallFailed(f"the response's failed must be objects with an index of the chunk ({where})")
        error = str(one.get("error") or "failed")
        failed[places[at]] = Abandon(error) if one.get("retry") is False else error
    return failed


class CallFailed(Exception):
    """There was no valid response; another attempt may help."""


@dataclass(frozen=True, slots=True)
class BusinessResponse:
    """The response of a business."""

    status: int
    body: Any
    """The JSON of its body; None when there was none."""
    after: float | None
    """The pause in seconds that it asks for."""
    where: str

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def error(self, *, final: bool) -> Exception:
        """Returns the error to raise; `final`: a status that says the request itself is wrong is not
        retried."""
        text = f"HTTP {self.status} ({self.where})"
        if detail := _detail(self.body):
            text += f": {detail}"
        elif 300 <= self.status < 400:
            text += ": redirects are not followed; register the address it points to"
        if self.status in AGAIN or self.status >= 500:
            return Retry(text, after=self.after)
        return Abandon(text) if final else CallFailed(text)


class Posts:
    """The HTTP client of one process; opened when it is first needed. Tests pass their own `resolver`."""

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
        """The same, and resolves its name: one refusal now is better than one for each item."""
        try:
            self.check_host(address)
            url = URL(address)
            resolver = GuardedResolver(self._guard, self._resolver or aiohttp.ThreadedResolver())
            await resolver.resolve(url.raw_host or "", url.port or 443)
        except AddressRefused as error:
            raise Invalid(str(error)) from None
        except (OSError, ValueError):
            return  # a name that is not found now may be found when it is called

    async def post(
        self, address: str, body: Any, *, key: str, headers: Mapping[str, str], timeout: float
    ) -> BusinessResponse:
        """Raises `CallFailed` without a complete response, `Abandon` when the guard refuses the address."""
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
            raise CallFailed(f"no complete response within {timeout:g} s ({where})") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            if isinstance(cause, AddressRefused):
                raise Abandon(str(cause)) from None
            raise CallFailed(f"no response ({where}): {str(cause) or type(cause).__name__}"[:2000]) from None

    async def _read(self, response: aiohttp.ClientResponse, where: str) -> bytes:
        text = await response.content.read(self._max_response + 1)
        while not response.content.at_eof() and len(text) <= self._max_response:
            text += await response.content.read(self._max_response + 1 - len(text))
        if len(text) > self._max_response:
            response.close()
            raise CallFailed(f"the response is over {self._max_response} bytes ({where})")
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
    """Returns what the service says is wrong: `detail` of problem+json, `error` or `message` of most
    others."""
    if isinstance(body, Mapping):
        for name in ("detail", "error", "message"):
            if isinstance(body.get(name), str):
                return str(body[name])[:LONGEST_DETAIL]
    return ""
