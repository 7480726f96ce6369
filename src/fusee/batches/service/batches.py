"""Everything a person can do with batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fusee.batches.fields import BATCH, target_from
from fusee.batches.model.batch import Batch, BatchPhase, BatchStatus, BatchTask, Planned
from fusee.batches.model.spec import BatchSpec, TargetSpec, handler_of
from fusee.batches.operation import OperationRegistry
from fusee.batches.service.asking import BatchAsking, Progress
from fusee.batches.store.queries import BatchFilter, TargetFilter
from fusee.batches.store.store import BatchStore
from fusee.engine.store.parents import ParentRun
from fusee.engine.store.request_keys import KeyedRequest, RequestDigest, asked
from fusee.errors import Conflict, Invalid, StoreUnavailable
from fusee.values.names import check_optional_key, check_within

__all__ = ["BatchOperations"]

PORTION = 2000
LONGEST_LIST = 1000
UPLOAD_POLL = 0.1
UPLOAD_PATIENCE = 30.0
"""Seconds without a new portion; a worker is asked for 5 seconds about one."""
LONGEST_LOOK = 300.0
"""Seconds that one plan may take."""
Given = Mapping[str, Any] | str | int
"""A target as callers write it: an object, or its id alone."""
Targets = AsyncIterable[Given] | Iterable[Given]


class BatchOperations:
    """Create, plan, apply, cancel, retry, roll back."""

    def __init__(
        self,
        store: BatchStore,
        operations: OperationRegistry,
        known_elsewhere: Callable[[], Awaitable[frozenset[str]]],
    ) -> None:
        self.store = store
        self.operations = operations
        """What this process itself knows."""
        self.known_elsewhere = known_elsewhere
        self.asking = BatchAsking(store, operations)

    async def create(
        self,
        fields: Mapping[str, Any] | BatchSpec,
        targets: Targets,
        *,
        idempotency_key: str | None = None,
        apply: bool = False,
        parent: ParentRun | None = None,
    ) -> tuple[Batch, bool]:
        """(the batch, whether it is new). Targets come in as they are read; a failure leaves nothing.

        A key that was used before gives the batch of then, when fields, targets and `apply` are the same; one
        that was to be applied, and was not yet, is.
        """
        spec = fields if isinstance(fields, BatchSpec) else BATCH.read(fields)
        registered = self.operations.get(spec.target_type, spec.batch_type)
        if registered is None:
            await self._known(spec)
        check_optional_key(idempotency_key)
        request = RequestDigest("batch", {**asked(spec), "apply": apply})
        batch_id, new = await self.store.intake.open_batch(spec, idempotency_key, parent)
        if not new and idempotency_key is not None:
            async for target in _checked(targets, spec, registered):
                request.add(asked(target))
            await self.store.intake.check_batch_request(batch_id, idempotency_key, str(request))
        if new:
            try:
                total = await self._take_in(batch_id, spec, targets, registered, request)
                await self.store.intake.seal_batch(batch_id, total, str(request))
            except BaseException:
                with suppress(StoreUnavailable):  # then it is swept away later
                    await self.store.intake.discard_batch(batch_id)
                raise
        batch = await self.store.queries.batch(batch_id)
        if apply and batch.phase is BatchPhase.PLANNED:
            try:
                batch = await self.store.commands.apply_batch(batch_id, parent=parent)
            except Conflict:
                if new:  # refused as a whole: the same request can be sent again later
                    await self.store.intake.discard_batch(batch_id, BatchPhase.PLANNED)
                raise
        return batch, new

    async def upload_ended(self, idempotency_key: str | None, parent: ParentRun | None) -> None:
        """Wait until the upload under this key, or for this run, is complete or given up; not any longer when
        no portion has come for so long that its sender must be gone."""
        last: tuple[int, int] | None = None
        polls = 0
        while (upload := await self.store.intake.upload_of(idempotency_key, parent)) is not None:
            polls = polls + 1 if upload == last else 0
            if polls * UPLOAD_POLL >= UPLOAD_PATIENCE:
                return
            last = upload
            await asyncio.sleep(UPLOAD_POLL)

    async def _take_in(
        self, batch_id: int, spec: BatchSpec, targets: Targets, registered: Any, request: RequestDigest
    ) -> int:
        total = 0
        portion: list[TargetSpec] = []
        ask = registered is None and await self.asking.served(spec)

        async def take() -> None:
            nonlocal ask, total
            ask = ask and await self._checked_by_worker(spec, total, portion)
            await self.store.intake.add_targets(batch_id, total, portion)
            total += len(portion)
            portion.clear()

        async for target in _checked(targets, spec, registered):
            request.add(asked(target))
            portion.append(target)
            if len(portion) == PORTION:
                await take()
        if portion:
            await take()
        return total

    async def _checked_by_worker(self, spec: BatchSpec, first: int, portion: Sequence[TargetSpec]) -> bool:
        """Refuse parameters that the operation could not use; False when no worker says, or none needs to."""
        mistakes = await self.asking.mistakes(spec, portion)
        for nr, mistake in enumerate(mistakes or ()):
            if mistake is not None:
                raise Invalid(f"target {first + nr + 1}: {mistake}", field=mistake.partition(":")[0])
        return mistakes is not None

    async def _known(self, spec: BatchSpec) -> None:
        elsewhere = await self.known_elsewhere()
        if handler_of(spec.target_type, spec.batch_type) in elsewhere:
            return
        there = sorted(
            name.removeprefix("batch.").replace(".", "/", 1)
            for name in elsewhere
            if name.startswith("batch.")
        )
        known = ", ".join(sorted({*there, *(f"{r.target_type}/{r.batch_type}" for r in self.operations)}))
        raise Invalid(
            f"no worker knows operation {spec.batch_type!r} of target type {spec.target_type!r};"
            f" known are: {known or 'none yet'}",
            field="batch_type",
        )

    async def get(self, batch_id: int) -> Batch:
        return await self.store.queries.batch(batch_id)

    async def list(self, wanted: BatchFilter) -> Sequence[Batch]:
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.queries.batches(wanted)

    async def tasks(self, batch_id: int, wanted: TargetFilter) -> Sequence[BatchTask]:
        """Its targets, each with where it stands."""
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.queries.batch_tasks(batch_id, wanted)

    async def plan(
        self,
        batch_id: int,
        wanted: TargetFilter,
        *,
        timeout: float = 30.0,
        progress: Progress | None = None,
        version: int | None = None,
    ) -> Sequence[Planned]:
        """Its targets, each with what applying it would do, as the operation says who looks at them now.

        Workers that have the operation ask `finished` and `capture` in parallel; nothing is done. What
        nobody could say within `timeout` seconds is unreachable.
        """
        if not 0.1 <= timeout <= LONGEST_LOOK:
            raise Invalid(f"timeout must be from 0.1 to {LONGEST_LOOK:g} seconds", field="timeout")
        batch = await self.store.queries.batch(batch_id)
        if version is not None and version != batch.version:
            raise Conflict(f"batch {batch_id} is at version {batch.version}, not {version}: look at it again")
        tasks = await self.tasks(batch_id, wanted)
        return await self.asking.look(batch.spec, tasks, timeout=timeout, progress=progress)

    async def recorded_plan(
        self, batch_id: int, wanted: TargetFilter
    ) -> Sequence[tuple[BatchTask, Mapping[str, tuple[Any, Any]]]]:
        """Its targets, each with what would change by what is on record: name → (before, after)."""
        return [(task, _changes(task)) for task in await self.tasks(batch_id, wanted)]

    async def apply(self, batch_id: int, *, version: int | None = None) -> Batch:
        return await self.store.commands.apply_batch(batch_id, version)

    async def cancel(
        self, batch_id: int, *, reason: str = "canceled by request", version: int | None = None
    ) -> Batch:
        return await self.store.commands.cancel_batch(batch_id, reason, version)

    async def retry(
        self,
        batch_id: int,
        *,
        canceled: bool = False,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Batch, int]:
        """(the batch, how many targets are tried again); a repeat under the same key tries nothing again."""
        check_optional_key(idempotency_key)
        asked_for = {"batch": batch_id, "canceled": canceled, "version": version}
        request = KeyedRequest.of(idempotency_key, "batch retry", asked_for)
        return await self.store.commands.retry_batch(
            batch_id, canceled=canceled, version=version, request=request
        )

    async def roll_back(
        self,
        batch_id: int,
        *,
        targets: Sequence[str] | None = None,
        force: bool = False,
        version: int | None = None,
    ) -> Batch:
        if targets is not None and not 1 <= len(targets) <= 10_000:
            raise Invalid("targets must name 1 to 10000 targets; leave it out for all", field="targets")
        return await self.store.commands.roll_back_batch(
            batch_id, targets=targets, force=force, version=version
        )

    async def recount(self, batch_id: int) -> tuple[Mapping[BatchStatus, int], Mapping[BatchStatus, int]]:
        """(as kept, as counted from the targets): equal, or something is wrong."""
        return await self.store.queries.recount_batch(batch_id)

    async def wake(self, batch_id: int) -> None:
        """Have a dispatcher look at it at once."""
        await self.store.queries.batch(batch_id)
        await self.store.commands.wake_batch(batch_id)


async def _checked(targets: Targets, spec: BatchSpec, registered: Any) -> AsyncIterator[TargetSpec]:
    number = 0
    async for given in _each(targets):
        number += 1
        target = target_from(given, f"target {number}", spec.batch_type)
        if registered is not None:
            registered.check(target.after, target.before, f"target {number}")
        yield target


async def _each(targets: Targets) -> AsyncIterator[Given]:
    if isinstance(targets, AsyncIterable):
        async for target in targets:
            yield target
    else:
        for target in targets:
            yield target


def _changes(task: BatchTask) -> dict[str, tuple[Any, Any]]:
    before = task.image if isinstance(task.image, Mapping) else task.before
    return {
        name: (before.get(name), value)
        for name, value in task.after.items()
        if name not in before or before[name] != value
    }
