"""A business that is reached over HTTP, as one that the runner can call. What goes over the wire is told in
`docs/bulk.md`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusee.bulk.business import BulkContext, Business, ChunkFailed, SelfStart
from fusee.bulk.execution.posts import CallFailed, Posts
from fusee.bulk.model.business import HttpBusiness
from fusee.bulk.model.spec import ITEM_TIMEOUT
from fusee.engine.model.outcome import Abandon
from fusee.errors import Conflict
from fusee.executors.http.request import check_http

__all__ = ["HttpBusinesses"]

BEYOND = 5.0
"""Seconds by which an item may take longer than the call that it is."""
NOT_OURS = ("content-length", "content-type", "idempotency-key")
"""Headers that every call has, with a value that is made for it."""


class HttpBusinesses:
    """Makes businesses of the registry callable; `base_url` is where they reach the API."""

    def __init__(self, posts: Posts, base_url: str | None = None) -> None:
        self.posts = posts
        self.base_url = base_url

    def check(self, spec: HttpBusiness) -> None:
        """Refuse, with a ValueError or an OSError, what could never be called."""
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
            answer = await self.posts.post(address, body, key=key, headers=spec.headers, timeout=spec.timeout)
            if not answer.good:
                raise answer.error(final=True)

        return call

    def _chunk(self, spec: HttpBusiness, address: str) -> Callable[..., Any]:
        async def call(items: Sequence[Any], index: Sequence[int], job: BulkContext) -> Any:
            told = [
                {"index": at, "item": item, "key": job.idempotency_key(at)}
                for at, item in zip(index, items, strict=True)
            ]
            answer = await self.posts.post(
                address,
                {**_about(spec, job), "items": told},
                key=_key_of(job, index),
                headers=spec.headers,
                timeout=spec.timeout,
            )
            if not answer.good:
                # Of many, nobody knows which one it means: in the last round each is sent alone.
                raise answer.error(final=len(items) == 1)
            failed = _failed(answer.body, index, answer.where)
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
                answer = await self.posts.post(
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
            if not answer.good:
                raise answer.error(final=True)
            wants = isinstance(answer.body, Mapping) and answer.body.get("self_start") is True
            return SelfStart() if long and wants else None

        return call

    def _url(self, job: BulkContext) -> str | None:
        """Where the job is steered from."""
        return f"{self.base_url}/api/v1/bulk-jobs/{job.job_id}" if self.base_url and job.job_id else None


def _defaults(spec: HttpBusiness) -> dict[str, Any]:
    """A call ends by the business's own timeout first, also where that is a long one."""
    return {"item_timeout": max(ITEM_TIMEOUT, spec.timeout + BEYOND), **spec.defaults}


def _about(spec: HttpBusiness, job: BulkContext) -> dict[str, Any]:
    about: dict[str, Any] = {"job_id": job.job_id, "business": spec.name, "undo": job.undo}
    return {**about, "data": job.data} if spec.with_data else about


def _key_of(job: BulkContext, index: Sequence[int]) -> str:
    """Of just these items: after a crash the same items may come in another company."""
    first, last = index[0], index[-1]
    if last - first == len(index) - 1:
        return f"fusee-bulk-{job.job_id}-{first}-{last}"
    mark = hashlib.sha256(",".join(map(str, index)).encode()).hexdigest()[:16]
    return f"fusee-bulk-{job.job_id}-{first}-{last}-{mark}"


def _failed(body: Any, index: Sequence[int], where: str) -> dict[int, BaseException | str]:
    """Position → error, of `{"failed": [{"index": 17, "error": "…", "retry": false}]}`."""
    told = body.get("failed") if isinstance(body, Mapping) else None
    if told is None:
        return {}
    places = {at: position for position, at in enumerate(index)}
    failed: dict[int, BaseException | str] = {}
    for one in told if isinstance(told, list) else (told,):
        at = one.get("index") if isinstance(one, Mapping) else None
        if type(at) is not int or at not in places:
            raise CallFailed(f"the answer's failed must be objects with an index of the chunk ({where})")
        error = str(one.get("error") or "failed")
        failed[places[at]] = Abandon(error) if one.get("retry") is False else error
    return failed
