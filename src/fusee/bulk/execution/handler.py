"""A business as a handler of the engine: it launches jobs, runs segments, and makes callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakValueDictionary

from fusee.bulk.business import BulkContext, Business, SelfStart, call_back
from fusee.bulk.execution.calls import Calls
from fusee.bulk.execution.careful import Turns
from fusee.bulk.execution.hanging import HangingCalls
from fusee.bulk.execution.http import HttpBusinesses
from fusee.bulk.execution.pacer import NodeCap, Pacer, WorkerGrants
from fusee.bulk.execution.segment_runner import BEAT, DRAIN, SegmentRunner
from fusee.bulk.model.job import BulkJob, HeldBy
from fusee.bulk.model.segment import BulkAnswer, Found, Segment, SegmentProgress
from fusee.bulk.sources import ItemSource, SourceKinds
from fusee.bulk.sources.fingerprint import look_at
from fusee.bulk.store.store import BulkBackend
from fusee.engine.model.outcome import Abandon, Effect, HandBack, Wait
from fusee.engine.worker.context import RunContext
from fusee.errors import Conflict, FuseeError, Invalid, LeaseLost, NotFound, StoreUnavailable
from fusee.events import BulkProgressed, BulkSegmentEnded, Bus

__all__ = ["BULK_HANDLER", "BulkServer", "BulkStarter", "context_of"]

BULK_HANDLER = "fusee.bulk"

HAND_BACK = 5.0
"""Seconds before a segment that did not fit on this node is offered again."""


class BulkServer:
    """Serves the businesses of one process; they share the rate cap of the node."""

    def __init__(
        self,
        store: Callable[[], BulkBackend],
        sources: SourceKinds,
        node: NodeCap,
        bus: Bus,
        *,
        resume_within: float = 0.0,
    ) -> None:
        self.store = store
        self.sources = sources
        self.node = node
        self.bus = bus
        self.resume_within = resume_within
        """Seconds since its creation in which a job is resumed automatically after a crash; 0: always."""
        self.hanging = HangingCalls()
        self.turns = Turns()
        self._writers: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """Job → the lock of its checkpoints. The lock of the job's row in the store orders them anyway;
        because they wait here, 32 segments do not hold all connections of the process meanwhile."""
        self._grants: WeakValueDictionary[int, WorkerGrants] = WeakValueDictionary()
        """Job → the grants of its segments on this worker."""
        self.beat = BEAT
        self.drain = DRAIN

    def handler_for(self, business: Business) -> Callable[..., Awaitable[Any]]:
        """Returns the function that a worker calls for each run of a business."""

        async def serve(run: RunContext, job: int, **what: Any) -> Any:
            return await self._serve(run, business, job, **what)

        return serve

    def http_handler(self, http: HttpBusinesses) -> Callable[..., Awaitable[Any]]:
        """Returns the function that a worker calls for each run of any registered business."""

        async def serve(run: RunContext, job: int, launch: str | None = None, **what: Any) -> Any:
            store = self.store()
            name = (await store.bulk_job(job)).spec.business
            registered = await store.business(name)
            if registered is None:
                raise Abandon(f"business {name!r} is not registered any more: register it, then resume")
            if launch is not None:
                try:
                    await http.posts.check(registered.spec.handles)
                except Invalid as error:
                    raise Abandon(str(error)) from None
            return await self._serve(run, http(registered.spec), job, launch=launch, **what)

        return serve

    async def _serve(
        self,
        run: RunContext,
        business: Business,
        job: int,
        *,
        segment: int | None = None,
        launch: str | None = None,
        callback: str | None = None,
        check: bool = False,
    ) -> Any:
        if callback is not None:
            return await self._call_back(run, business, job, callback)
        _check_owned(run)
        if check:
            return await self._check(run, business, job)
        if segment is not None:
            return await self._segment(run, business, job, segment)
        if launch is not None:
            return await self._launch(run, business, job, asked=launch == "ask")
        raise Abandon("a run of a bulk job names a segment, a launch, a callback or a check")

    async def _check(self, run: RunContext, business: Business, job_id: int) -> None:
        """Ask the business whether the job may exist, for a process that cannot ask it."""
        store, refusal = self.store(), None
        job = await store.bulk_job(job_id)
        if business.on_create is not None:
            try:
                await call_back(business.on_create, context_of(job, str(run.run_id)))
            except Exception as error:  # a business refuses a job by raising
                refusal = f"business {business.name!r} refuses the job: {error}"
        await store.conclude_check(job_id, refusal, run.run_id, run.attempt)

    async def _launch(self, run: RunContext, business: Business, job_id: int, *, asked: bool) -> None:
        """Let the business prepare itself, look at the source, and divide it into segments."""
        store = self.store()
        try:
            job = await store.bulk_job(job_id)
            if asked and business.before_run is not None:
                if isinstance(await self._prepare(run, business, job), SelfStart):
                    await store.await_business(run.run_id, run.attempt, job_id, business.callbacks)
                    return
                job = await store.bulk_job(job_id)
            found = await self._found(job)
            await store.launch_bulk_job(run.run_id, run.attempt, job_id, found, business.callbacks)
        except OSError as error:
            raise Abandon(f"the source cannot be read: {error}") from None
        except (Invalid, NotFound, Conflict) as error:  # another attempt would not change that
            raise Abandon(str(error)) from None

    async def _found(self, job: BulkJob) -> Found:
        """Returns what the source contains; of a job that was launched before, only checks that it is
        unchanged."""
        source = self._source(job)
        if job.stop is None or job.first is None:
            bounds, fingerprint = await look_at(source)
            return Found(*bounds, fingerprint, await source.count(*bounds))
        if job.fingerprint is None:
            return Found(job.first, job.stop, await source.fingerprint())
        await source.verify(job.fingerprint)
        return Found(job.first, job.stop, job.fingerprint)

    async def _prepare(self, run: RunContext, business: Business, job: BulkJob) -> Any:
        assert business.before_run is not None
        try:
            return await call_back(business.before_run, context_of(job, str(run.run_id)))
        except Exception as error:  # the job stops with this reason until it is started again
            raise Abandon(f"its business could not prepare it: {error}") from error

    async def _call_back(self, run: RunContext, business: Business, job_id: int, callback: str) -> Any:
        function = {"stop": business.on_stop, "finish": business.on_finish}.get(callback)
        if function is not None:
            job = await self.store().bulk_job(job_id)
            return await call_back(function, context_of(job, str(run.run_id)))
        return None

    async def _segment(self, run: RunContext, business: Business, job_id: int, number: int) -> Any:
        store = self.store()
        taken = await store.take_segment(
            run.run_id, run.attempt, job_id, number, resume_within=self.resume_within
        )
        if taken.answer.stop:
            return None
        if not self.node.admit((job_id, number), taken.part):
            await store.hand_back_segment(run.run_id, run.attempt, job_id, number, HeldBy.NODE_CAP)
            what = f"{taken.part:g} items per second" if taken.part else "a job without a rate"
            raise HandBack(
                f"handed back: no room for {what} beside the other jobs of this node"
                f" (worker.bulk_rate_cap {self.node.rate:g})",
                after=HAND_BACK,
            )
        try:
            return await self._run(run, business, taken, store)
        finally:
            self.node.leave((job_id, number))

    async def _run(self, run: RunContext, business: Business, taken: Any, store: BulkBackend) -> Any:
        job, number = taken.job, taken.segment.number
        function = business.undo if job.undo_of is not None else business.function
        if function is None:
            raise Abandon(f"business {business.name!r} has no undo handler")
        source = self._source(job)
        pages = source.pages()
        reader = None if pages is not None else source.reader()
        calls = Calls(
            function,
            context_of(job),
            chunk=business.chunk,
            attempts=job.spec.item_attempts,
            backoff=job.spec.item_backoff,
            sparse=source.sparse and pages is None,
            placed=source.placed or pages is not None,
            keyed=pages is not None,
            hanging=self.hanging.of(job.id),
        )

        before: Any = taken.segment
        turn = self._writers.setdefault(job.id, asyncio.Lock())

        async def write(progress: SegmentProgress) -> BulkAnswer:
            nonlocal before
            async with turn:
                answer = await store.checkpoint(run.run_id, run.attempt, job.id, number, progress)
            self._emit_progress(business.name, before, progress)
            before = progress
            return answer

        grants = self._grants.setdefault(job.id, WorkerGrants())
        pacer = Pacer(self.node, grants, calls.chunk)
        try:
            if job.fingerprint is not None:
                await source.verify(job.fingerprint)
            runner = SegmentRunner(
                taken,
                calls,
                reader,
                write,
                pacer,
                self.hanging,
                self.turns,
                beat=self.beat,
                drain=self.drain,
                pages=pages,
            )
            finished = await runner.run()
        except (LeaseLost, StoreUnavailable):
            raise
        except FuseeError as error:
            raise Abandon(str(error)) from error
        except OSError as error:
            raise Abandon(f"the source cannot be read: {error}") from error
        finally:
            calls.close()
            for opened in (pages, reader):
                if opened is not None:
                    await opened.close()
        self.bus.emit(
            BulkSegmentEnded(
                job_id=job.id,
                business=business.name,
                segment=number,
                finished=finished,
                items=runner.ended,
            )
        )
        return {"items": runner.ended, "finished": finished}

    def _emit_progress(
        self, business: str, before: Segment | SegmentProgress, after: SegmentProgress
    ) -> None:
        """Emit what this checkpoint added to the one before, or to the segment when it was taken."""
        if not self.bus.wants(BulkProgressed):
            return
        bad = after.quarantined - before.quarantined
        self.bus.emit(
            BulkProgressed(
                business=business,
                done=after.ended - before.ended - bad,
                quarantined=bad,
                retried=after.retried - before.retried,
                replayed=after.replayed - before.replayed,
            )
        )

    def _source(self, job: BulkJob) -> ItemSource:
        return self.sources.make(job.spec.source)


class BulkStarter:
    """The built-in handler that starts a bulk job; its run waits for the end of the job."""

    def __init__(self, create: Callable[..., Awaitable[Any]]) -> None:
        self.create = create
        """It must not trust its input: a caller that may create a run chose what the job reads."""

    async def start(self, run: RunContext, job: dict[str, Any], data: Any = None) -> Wait:
        """Start the job; an attempt that is repeated finds the job that the earlier one started."""
        try:
            await self.create(job, data=data, start=True, parent_run=run.run_id, who=f"run {run.run_id}")
        except (NotFound, Invalid, Conflict) as error:  # another attempt would not change that
            raise Abandon(str(error)) from None
        return Wait()


def _check_owned(run: RunContext) -> None:
    """Refuse a run that was not created by its job: the job would not know what it did."""
    if run.kind != "bulk":
        raise Abandon(
            "this runs as part of a bulk job only: create a bulk job for the business", effect=Effect.NONE
        )


def context_of(job: BulkJob, occasion: str = "") -> BulkContext:
    return BulkContext(
        occasion=occasion,
        job_id=job.id,
        name=job.spec.name,
        business=job.spec.business,
        data=job.data,
        total=job.total,
        undo=job.undo_of is not None,
        status=str(job.status),
        reason=job.reason,
        ended=job.ended,
        quarantined=job.quarantined,
    )
