"""Bulk jobs: create, start, stop, adjust, list and show them; their quarantine and logs; undo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from aiohttp import ClientError

from fusee.bulk.business import BulkContext, Business, Businesses, HttpBusiness, call_back
from fusee.bulk.fields import ADJUSTABLE, BULK
from fusee.bulk.model.job import (
    AT_REST,
    BulkJob,
    BulkLoad,
    BulkLog,
    BulkStatus,
    Quarantined,
)
from fusee.bulk.model.pacing import rate_shown
from fusee.bulk.model.segment import Found, Segment
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.service.businesses import BusinessFinder
from fusee.bulk.sources import SourceKinds
from fusee.bulk.sources.fingerprint import look_at
from fusee.bulk.sources.limits import SourceLimits
from fusee.bulk.store.queries import BulkFilter
from fusee.bulk.store.store import BulkStore
from fusee.engine.store.request_keys import KeyedRequest, asked, digest_of
from fusee.errors import Conflict, FuseeError, Invalid
from fusee.values.merging import merged
from fusee.values.names import check_optional_key, check_within

__all__ = ["BulkOperations"]

LONGEST_LIST = 1000
CHECK_WITHIN = 5.0
"""Seconds that a request waits for a worker to ask the business; later the job says how that ended."""
CHECK_EVERY = 0.05


class BulkOperations:
    """The API of bulk jobs, for people and for businesses themselves."""

    def __init__(
        self,
        store: BulkStore,
        businesses: Businesses,
        sources: SourceKinds,
        known_elsewhere: Callable[[], Awaitable[frozenset[str]]],
        remote: Callable[[HttpBusiness], Business],
        limits: SourceLimits | None = None,
        *,
        trusted: bool,
    ) -> None:
        self.store = store
        self.sources = sources
        self.known = BusinessFinder(store, businesses, known_elsewhere, remote)
        self.limits = limits or SourceLimits()
        """What a job may read that was requested from outside."""
        self.trusted = trusted
        """Whether the caller may read any file: code of this process may; a request, a message or a run may
        not."""

    # -- creating

    async def create(
        self,
        fields: Mapping[str, Any] | BulkSpec,
        *,
        data: Any = None,
        idempotency_key: str | None = None,
        start: bool = False,
        parent_run: int | None = None,
        who: str = "",
    ) -> tuple[BulkJob, bool]:
        """Returns the job, and whether it is new. Its source is examined and its business is asked first.

        `parent_run` is a run that waits for the end of the job."""
        check_optional_key(idempotency_key)
        digest = None
        if idempotency_key is not None:
            digest = digest_of("create", {"job": _as_asked(fields), "data": data, "start": start})
            before = await self.store.creation.bulk_job_under(idempotency_key, digest)
            if before is not None:  # its source may be deleted by now, and its business is not asked again
                return await self._started(before, start, who), False
        spec, business = await self._spec(fields)
        if not self.trusted:
            spec = replace(spec, source=self.limits.confine(spec.source))
        source = self.sources.make(spec.source)
        await source.check()
        check = None
        if business is not None and business.on_create is not None:
            check = "here"
        elif business is None and await self.store.businesses.checks(spec.business):
            check = "worker"
        job, new = await self.store.creation.create_bulk_job(
            spec,
            data,
            idempotency_key=idempotency_key,
            request_digest=digest,
            parent_run=parent_run,
            who=who,
            check=check,
        )
        if new and check == "here" and business is not None and business.on_create is not None:
            job = await self._ask(business.on_create, job)
        elif new and check == "worker":
            job = await self._answer_of_worker(job)
        return await self._started(job, start, who), new

    async def _started(self, job: BulkJob, start: bool, who: str) -> BulkJob:
        if start and job.status is BulkStatus.CREATED:
            return await self.start(job.id, who=who)
        return job

    async def _spec(self, fields: Mapping[str, Any] | BulkSpec) -> tuple[BulkSpec, Business | None]:
        """Returns the job, and its business when this process can call it."""
        if isinstance(fields, BulkSpec):
            return fields, await self.known.find(fields.business)
        named = fields.get("business", fields.get("handler")) if isinstance(fields, Mapping) else None
        business = await self.known.here(named)
        if business is not None:
            return _read(fields, business.defaults), business
        defaults = await self.store.businesses.defaults(str(named)) if named else {}
        spec = _read(fields, defaults)
        await self.known.check(spec.business)
        return spec, None

    async def _ask(self, on_create: Callable[..., Any], job: BulkJob) -> BulkJob:
        """Ask the business; it refuses the job by raising, and then nothing of the job is left."""
        name = job.spec.business
        context = BulkContext(
            job_id=job.id, name=job.spec.name, business=name, data=job.data, occasion="once"
        )
        try:
            await call_back(on_create, context)
        except Exception as error:
            refusal = f"business {name!r} refuses the job: {error}"
            await asyncio.shield(self.store.creation.withdraw_bulk_job(job.id, refusal))
            if isinstance(error, FuseeError):
                raise
            raise Invalid(refusal, field="business") from None
        except BaseException:
            await asyncio.shield(self.store.creation.withdraw_bulk_job(job.id, None))
            raise
        await self.store.creation.conclude_check(job.id, None)
        return await self.store.queries.bulk_job(job.id)

    async def _answer_of_worker(self, job: BulkJob) -> BulkJob:
        """Returns the job when its business has agreed, still `checking` when no worker responded in time.
        Raises `Invalid` when the business refuses."""
        deadline = time.monotonic() + CHECK_WITHIN
        while job.checking and time.monotonic() < deadline:
            await asyncio.sleep(CHECK_EVERY)
            job = await self.store.queries.bulk_job(job.id)
        if job.status is BulkStatus.FAILED:
            refusal = job.reason or "its business refuses the job"
            await self.store.creation.withdraw_bulk_job(job.id, refusal)
            raise Invalid(refusal, field="business")
        return job

    # -- steering

    async def start(
        self,
        job_id: int,
        *,
        by_business: bool = False,
        force: bool = False,
        who: str = "",
        version: int | None = None,
    ) -> BulkJob:
        """Start it, or resume it where it was; a failed job gets a fresh error budget. `force` starts also a
        job that waits for its business. The job's `changed` is false when it was running already."""
        return await self.store.jobs.start_bulk_job(
            job_id, by_business=by_business, force=force, who=who, version=version
        )

    resume = start

    async def stop(
        self,
        job_id: int,
        *,
        reason: str = "stopped by request",
        who: str = "",
        version: int | None = None,
    ) -> BulkJob:
        """Start no further item; every worker sees it within 2 s. The job can be resumed."""
        return await self.store.jobs.stop_bulk_job(job_id, reason=reason, who=who, version=version)

    async def extend(
        self, job_id: int, *, start: bool = False, who: str = "", version: int | None = None
    ) -> BulkJob:
        """Add the items that its source has after the job's last item. The job must not run; it may be
        finished. `start`: start it afterwards."""
        job = await self._at_rest(job_id)
        if job.stop is None:
            raise Conflict(
                f"bulk job {job_id} is {job.status}: it takes all items of its source when it is started"
            )
        if job.spec.source.get("kind") in ("quarantine", "done"):
            other = job.spec.source["job"]
            raise Conflict(f"bulk job {job_id} works on items of bulk job {other}: create another one")
        source = self.sources.make(job.spec.source)
        try:
            bounds, fingerprint = await look_at(source, job.fingerprint)
            rows = await source.count(job.stop, bounds[1])
        except (ClientError, OSError, TimeoutError) as error:
            raise Invalid(f"source: it cannot be read: {error}", field="source") from None
        found = Found(*bounds, fingerprint, rows)
        job = await self.store.jobs.extend_bulk_job(job_id, found, who=who, version=version)
        return await self.start(job_id, who=who) if start else job

    async def adjust(
        self,
        job_id: int,
        *,
        who: str = "",
        version: int | None = None,
        **changes: Any,
    ) -> BulkJob:
        """Change rate (items per second, `unlimited` or `hold`), concurrency, window, error budget (a number,
        a share, or `none`), item_timeout (seconds, or `none`) and alerts (an address, `none`, or the members
        that change), also while it runs; item_attempts and item_backoff while it does not run."""
        if isinstance(changes.get("alerts"), Mapping):
            job = await self.get(job_id)
            version = (
                version or job.version
            )  # what it is merged with must not have changed when it is written
            before = None if job.spec.alerts is None else asdict(job.spec.alerts)
            changes["alerts"] = merged(before, changes["alerts"])
        read = BULK.some(changes, ADJUSTABLE)
        if "item_timeout" in read:
            read["item_timeout"] = read["item_timeout"] or 0.0
        if not read:
            raise Invalid(
                "give a rate, a concurrency, a window, an item timeout, an error budget or alerts",
                field="rate",
            )
        return await self.store.jobs.adjust_bulk_job(job_id, read, who=who, version=version)

    async def set_data(self, job_id: int, data: Any, *, who: str = "", version: int | None = None) -> BulkJob:
        """Set the business's own data; refused while the job runs."""
        return await self.store.jobs.set_bulk_data(job_id, data, who=who, version=version)

    async def delete(self, job_id: int, *, version: int | None = None) -> None:
        """Delete it with its segments, its quarantine and its logs; refused while it runs."""
        await self.store.jobs.delete_bulk_job(job_id, version)

    # -- reading

    async def get(self, job_id: int) -> BulkJob:
        return await self.store.queries.bulk_job(job_id)

    async def list(self, wanted: BulkFilter | None = None) -> Sequence[BulkJob]:
        wanted = wanted or BulkFilter()
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.queries.bulk_jobs(wanted)

    async def loads(self) -> Sequence[BulkLoad]:
        """Returns the jobs that are not over, counted by business and state."""
        return await self.store.queries.bulk_loads()

    async def segments(self, job_id: int) -> Sequence[Segment]:
        return await self.store.queries.bulk_segments(job_id)

    async def quarantine(self, job_id: int, *, after: int = -1, limit: int = 100) -> Sequence[Quarantined]:
        """Returns a page of quarantined items, by index, after `after`."""
        check_within("limit", limit, LONGEST_LIST)
        return await self.store.queries.bulk_quarantine(job_id, after=after, limit=limit)

    async def quarantined(self, job_id: int) -> AsyncIterator[Quarantined]:
        """Yields all quarantined items, by index, for downloads."""
        after = -1
        while page := await self.store.queries.bulk_quarantine(job_id, after=after, limit=LONGEST_LIST):
            for item in page:
                yield item
            after = page[-1].place

    async def log(self, job_id: int, text: str, *, who: str = "", idempotency_key: str | None = None) -> int:
        """Append a line to the job's data log; returns its number."""
        if not isinstance(text, str) or not text.strip():
            raise Invalid("text must not be empty", field="text")
        check_optional_key(idempotency_key)
        request = KeyedRequest.of(idempotency_key, "log line", {"job": job_id, "text": text})
        return await self.store.jobs.log_bulk_data(job_id, text, who, request)

    async def logs(
        self, job_id: int, *, kind: str | None = None, after: int = 0, limit: int = 100
    ) -> Sequence[BulkLog]:
        """Returns what its business wrote (`data`), and what was done to it (`operator`)."""
        if kind not in (None, "data", "operator"):
            raise Invalid("kind must be data or operator", field="kind")
        check_within("limit", limit, LONGEST_LIST)
        return await self.store.queries.bulk_logs(job_id, kind=kind, after=after, limit=limit)

    # -- a new job over items of another one

    async def rerun_quarantine(
        self,
        job_id: int,
        *,
        name: str | None = None,
        start: bool = False,
        who: str = "",
        idempotency_key: str | None = None,
        **changes: Any,
    ) -> BulkJob:
        """Create a job over the quarantined items of this one; `changes` are fields of the new job."""
        request = {"job": job_id, "name": name, "start": start, **changes}
        return await self._follow_up("rerun", request, who, idempotency_key)

    async def undo(
        self,
        job_id: int,
        *,
        name: str | None = None,
        start: bool = False,
        who: str = "",
        idempotency_key: str | None = None,
        **changes: Any,
    ) -> BulkJob:
        """Create a job that calls the business's undo for every item that is done, the last one first."""
        request = {"job": job_id, "name": name, "start": start, **changes}
        return await self._follow_up("undo", request, who, idempotency_key)

    async def _follow_up(self, what: str, request: dict[str, Any], who: str, key: str | None) -> BulkJob:
        """Create what the request asks for, or return what an earlier one with the same key created."""
        check_optional_key(key)
        digest, changes = digest_of(what, request), dict(request)
        job_id, name, start = changes.pop("job"), changes.pop("name"), changes.pop("start")
        made = None if key is None else await self.store.creation.bulk_job_under(key, digest)
        if made is None:
            job = await self._at_rest(job_id)
            await (self._check_undo(job) if what == "undo" else self._check_rerun(job))
            kept = {field: getattr(job.spec, field) for field in BULK.fields if field != "segments"}
            # As they were changed since the job was created.
            kept |= {"rate": rate_shown(job.rate), "concurrency": job.concurrency, "window": job.window}
            kept["item_timeout"] = job.item_timeout or "none"
            kind, suffix = ("done", "undo") if what == "undo" else ("quarantine", "quarantine")
            source = {"kind": kind, "job": job_id, "source": dict(job.spec.source)}
            name = (name or f"{job.spec.name} ({suffix})")[:200]
            spec = BULK.read({**kept, **changes, "name": name, "source": source})
            await self.known.find(spec.business)
            made, _ = await self.store.creation.create_bulk_job(
                spec,
                job.data,
                undo_of=job_id if what == "undo" else None,
                who=who,
                idempotency_key=key,
                request_digest=digest,
            )
        return await self._started(made, start, who)

    async def _check_rerun(self, job: BulkJob) -> None:
        if not job.quarantined:
            raise Conflict(f"bulk job {job.id} has no quarantined items")

    async def _check_undo(self, job: BulkJob) -> None:
        business = await self.known.find(job.spec.business)
        if business is not None and business.undo is None:
            raise Conflict(f"business {job.spec.business!r} has no undo handler")
        if job.undo_of is not None:
            raise Conflict(f"bulk job {job.id} is an undo itself")
        if not job.done:
            raise Conflict(f"no item of bulk job {job.id} is done: there is nothing to undo")

    async def _at_rest(self, job_id: int) -> BulkJob:
        job = await self.store.queries.bulk_job(job_id)
        if job.status not in AT_REST:
            raise Conflict(f"bulk job {job_id} is {job.status}: stop it first, or wait for its end")
        return job


def _read(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> BulkSpec:
    """Returns the job, with the defaults of its business for fields that the caller left out."""
    named = BULK.named(given)
    return BULK.made({**defaults, **{name: value for name, value in named.items() if value is not None}})


def _as_asked(fields: Mapping[str, Any] | BulkSpec) -> dict[str, Any]:
    """Returns the fields without the defaults of its business, which may change before a request is
    repeated."""
    if isinstance(fields, BulkSpec):
        return asked(fields)
    if not isinstance(fields, Mapping):
        return {}
    return {name: value for name, value in BULK.named(fields).items() if value is not None}
