"""Everything a person can do with runs."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from sqlalchemy import Connection

from fusee.engine.model.run import Attempt, Run, RunSpec
from fusee.engine.model.session import START_CERTAIN_AFTER
from fusee.engine.model.states import RunStatus
from fusee.engine.owners import Retried
from fusee.engine.store.contract import Enqueued
from fusee.engine.store.engine_store import EngineStore
from fusee.engine.store.request_keys import digest_of
from fusee.engine.store.runs import RunFilter
from fusee.errors import Conflict, Invalid, UnknownHandler
from fusee.events import Bus, RunsEnqueued
from fusee.values.chunks import chunks
from fusee.values.names import check_key, check_submittable

__all__ = ["CancelAnswer", "RunOperations", "RunWithAttempts"]

LONGEST_LIST = 1000
AT_ONCE = 500
"""The longest IN list that every database takes without complaint."""


@dataclass(frozen=True, slots=True)
class RunWithAttempts:
    run: Run
    attempts: Sequence[Attempt]


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    """`canceled`: it is over; else the running attempt was told to stop. No other will start."""

    run: Run
    canceled: bool


class RunOperations:
    """Submit, look, wait, cancel, run again."""

    def __init__(
        self,
        store: EngineStore,
        bus: Bus,
        *,
        handlers: Container[str] = (),
        check_payload: Callable[[RunSpec], None] = lambda spec: None,
    ) -> None:
        self.store = store
        self.bus = bus
        self.handlers = handlers
        """What this process itself can run."""
        self.check_payload = check_payload
        """Refuses a spec whose payload its executor could never run."""
        self._elsewhere: frozenset[str] = frozenset()

    async def submit(self, specs: Sequence[RunSpec], *, allow_unknown: bool = False) -> Sequence[Enqueued]:
        """Accept all or none. A handler that no worker has ever had is refused, unless that is allowed."""
        for spec in specs:
            await self.check(spec, allow_unknown=allow_unknown)
        return await self._accept(specs)

    async def _accept(self, specs: Sequence[RunSpec]) -> Sequence[Enqueued]:
        enqueued = await self.store.run_writer.enqueue(specs)
        if self.bus.wants(RunsEnqueued):
            new = (spec for spec, run in zip(specs, enqueued, strict=True) if run.created)
            self._tell(Counter((spec.queue, spec.handler) for spec in new))
        return enqueued

    async def submit_each(
        self,
        template: RunSpec,
        payloads: Sequence[Mapping[str, Any] | None],
        *,
        allow_unknown: bool = False,
    ) -> Sequence[Enqueued]:
        """Accept a run like the template for each payload, all or none; refuses what `submit` refuses.

        The template is checked once, and no spec is made for a run: the fastest way in for many.
        """
        if template.payload or template.delay or (template.due_at, template.idempotency_key) != (None, None):
            raise Invalid(
                "each run has its own payload, is due at once and has no idempotency key: use `submit`"
                " with a spec for each run"
            )
        _check_objects(payloads)
        if template.executor == "python":
            await self.check(template, allow_unknown=allow_unknown)
        else:
            for nr, payload in enumerate(payloads):
                try:
                    self._check(replace(template, payload=payload))
                except Invalid as error:
                    raise Invalid(f"payload {nr}: {error}", field="payload") from None
        enqueued = await self.store.run_writer.enqueue_each(template, payloads)
        if enqueued:
            self._tell({(template.queue, template.handler): len(enqueued)})
        return enqueued

    async def check(self, spec: RunSpec, *, allow_unknown: bool = False) -> None:
        """Refuse what `submit` would refuse; for callers that must say which of many it was."""
        if spec.executor != "python":
            self._check(spec)
            return
        check_submittable(spec.handler)
        if not allow_unknown and not self._known(spec.handler):
            self._elsewhere = await self.store.sessions.known_handlers()
            if not self._known(spec.handler):
                raise self._unknown(spec.handler)

    def submit_within(self, connection: Connection, specs: Sequence[RunSpec]) -> list[Enqueued]:
        """Accept as part of the caller's transaction."""
        for spec in specs:
            if spec.executor != "python":
                self._check(spec)
            else:
                check_submittable(spec.handler)
        return self.store.run_writer.enqueue_within(connection, specs)

    def _known(self, handler: str) -> bool:
        return handler in self.handlers or handler in self._elsewhere

    def _unknown(self, name: str) -> UnknownHandler:
        known = sorted({*self._elsewhere, *(self.handlers if isinstance(self.handlers, Iterable) else ())})
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        have = (
            f"workers have {', '.join(known[:20])}" if known else "no worker with handlers has registered yet"
        )
        return UnknownHandler(
            f"no worker has a handler {name!r}: {have}.{hint} Start a worker that has it,"
            " or allow unknown handlers",
            field="handler",
        )

    def _check(self, spec: RunSpec) -> None:
        try:
            self.check_payload(spec)
        except ValueError as error:
            raise Invalid(str(error), field="payload") from None

    def _tell(self, counts: Mapping[tuple[str, str], int]) -> None:
        for (queue, handler), count in counts.items():
            self.bus.emit(
                RunsEnqueued(namespace=self.store.namespace, queue=queue, handler=handler, count=count)
            )

    async def get(self, run_id: int) -> RunWithAttempts:
        run = await self.store.runs.run(run_id)
        return RunWithAttempts(run, await self.store.runs.attempts(run_id))

    async def peek(self, run_id: int) -> Run:
        """The run alone; for those who look often."""
        return await self.store.runs.run(run_id)

    async def list(self, wanted: RunFilter) -> Sequence[Run]:
        if not 1 <= wanted.limit <= LONGEST_LIST:
            raise Invalid(f"limit must be from 1 to {LONGEST_LIST}", field="limit")
        return await self.store.runs.runs(wanted)

    async def ended(self, run_ids: Sequence[int]) -> Mapping[int, RunStatus]:
        """How those of them ended that have ended."""
        found: dict[int, RunStatus] = {}
        for part in chunks(run_ids, AT_ONCE):
            found |= await self.store.runs.ended(part)
        return found

    async def cancel(self, run_id: int, reason: str = "canceled by request") -> CancelAnswer:
        """Stop it; when this returns, no attempt will start any more.

        A worker may hold a freshly claimed run for a moment before it starts it: the answer waits that long.
        """
        status = await self.store.runs.cancel(run_id, reason[:500])
        while status is RunStatus.RUNNING:
            ago = await self.store.runs.claimed_ago(run_id)
            if ago is None or ago > START_CERTAIN_AFTER:
                break
            await asyncio.sleep(0.05)
        run = await self.store.runs.run(run_id)
        return CancelAnswer(run, run.status is RunStatus.CANCELED)

    async def retry(self, run_id: int, *, idempotency_key: str | None = None) -> Retried:
        """Do an ended run again, as a new run that names it as its origin.

        A run of a task is a new fire under the task's policies. A run of a batch, a workflow or a bulk job is
        refused (`Conflict`) with the command that its owner has for it.
        """
        if idempotency_key is not None:
            _check_key(idempotency_key)
            before = await self.store.runs.run_under(idempotency_key, digest_of("retry", run_id))
            if before is not None:
                return Retried(before.id, before.status, created=False)
        run = await self.store.runs.run(run_id)
        if not run.ended:
            raise Conflict(f"run {run_id} has not ended ({run.status}): cancel it, or wait")
        if run.kind is not None:
            owner = self.store.owners.of(run.kind)
            if owner is None:
                raise Conflict(f"run {run.id} belongs to a {run.kind}, which this version does not know")
            return await owner.retry(run, idempotency_key)
        spec = RunSpec(
            handler=run.handler,
            payload=run.payload,
            executor=run.executor,
            queue=run.queue,
            region=run.region,
            priority=run.priority,
            timeout=run.timeout,
            retry=run.retry,
            strategy=run.strategy,
            cpu=run.cpu,
            memory=run.memory,
            hash_key=run.hash_key,
            requires=run.requires,
            origin_id=run.id,
            idempotency_key=idempotency_key,
        )
        if spec.executor != "python":
            self._check(spec)
        (new,) = await self._accept([spec])  # its handler was accepted once, or the platform started it
        return Retried(new.id, created=new.created)

    async def wait(self, run_id: int, timeout: float | None = None) -> Run:
        """The run, once it has ended; `TimeoutError` when that takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.005
        look_at = 0.0
        while True:
            if await self.store.runs.ended([run_id]) or time.monotonic() > look_at:
                run = await self.store.runs.run(run_id)  # NotFound, should it have been pruned meanwhile
                if run.ended:
                    return run
                look_at = time.monotonic() + 5.0
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {run_id} had not ended after {timeout:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)


def _check_key(key: str) -> None:
    try:
        check_key(key, "idempotency_key")
    except ValueError as error:
        raise Invalid(str(error), field="idempotency_key") from None


def _check_objects(payloads: Sequence[Mapping[str, Any] | None]) -> None:
    if {type(payload) for payload in payloads} <= {dict, NoneType}:
        return
    for nr, payload in enumerate(payloads):
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid(
                f"payload {nr} must be an object: its members are the handler's arguments", field="payload"
            )
