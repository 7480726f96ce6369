"""Taking in a batch: its targets come in many portions, and it exists when the last has come, or never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.batches.model.batch import BatchPhase, BatchStatus, next_phase
from fusee.batches.model.spec import BatchSpec, OnError, TargetSpec
from fusee.batches.store.tables import batch_tasks, batches
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import PARENT_TOPIC, Outbox
from fusee.engine.store.parents import ParentRun, must_own
from fusee.engine.store.request_keys import check_same
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.set_aside import reading
from fusee.errors import Conflict, Invalid
from fusee.values.chunks import chunks

__all__ = ["DISCARDED", "HIDDEN", "BatchIntake", "TakenOver", "spec_of_batch"]

HIDDEN = (BatchPhase.UPLOADING, BatchPhase.DISCARDED)
"""A batch is invisible until it is sealed and after it is deleted."""
TAKEN_OVER = (
    "it is complete, or another request with the same idempotency key took its place. Send the request again"
    " to get that batch"
)
ROWS_A_SWEEP = 5000
"""Targets that are deleted in one transaction."""


class TakenOver(Conflict):
    """The upload is not there any more, or is complete: another request took its place."""


class BatchIntake:
    def __init__(self, context: StoreContext, outbox: Outbox) -> None:
        self.context = context
        self.outbox = outbox

    async def open_batch(
        self, spec: BatchSpec, idempotency_key: str | None = None, parent: ParentRun | None = None
    ) -> tuple[int, bool]:
        """(number, whether it is new); a key that was used names the batch it was used for, and so does the
        run that waits for it.

        An upload under the same key that is not complete is given up, and this one takes its place: its
        caller may have gone away, or may never have heard that it began. Should that caller still be there,
        its next portion is refused.
        """

        def work(connection: Connection) -> tuple[int, bool]:
            known = None
            if parent is not None:
                must_own(connection, parent)
                # Looked at until its attempt is over, whatever becomes of that.
                self.outbox.add(connection, [(PARENT_TOPIC, parent.run_id)])
                known = self._begun_by(connection, parent)
            elif idempotency_key is not None:
                known = self._keyed(connection, idempotency_key)
            if known is not None:
                return known, False
            now = self.context.now(connection)
            added = connection.execute(
                insert(batches).values(
                    namespace=self.context.namespace,
                    batch_name=spec.batch_name,
                    batch_type=spec.batch_type,
                    target_type=spec.target_type,
                    creator=spec.creator,
                    env=spec.env,
                    region=spec.region,
                    az=spec.az,
                    definition=_definition(spec),
                    phase=BatchPhase.UPLOADING,
                    status=BatchStatus.PENDING,
                    version=1,
                    total=0,
                    stopped=False,
                    undo_next=False,
                    force=False,
                    parent_run=None if parent is None else parent.run_id,
                    idempotency_key=idempotency_key,
                    created_at=now,
                    updated_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            return int(key[0]), True

        for again in range(5):
            try:
                return await self.context.database.write(work)
            except IntegrityError:  # another caller used the key just now: look again
                if again == 4:
                    raise
        raise AssertionError("unreachable")

    def _keyed(self, connection: Connection, key: str) -> int | None:
        """The batch that was accepted under that key; whether it is the same, its targets tell."""
        mine = (batches.c.namespace == self.context.namespace, batches.c.idempotency_key == key)
        known = connection.execute(select(batches).where(*mine).with_for_update()).one_or_none()
        if known is None:
            return None
        if known.phase != BatchPhase.UPLOADING:
            return int(known.id)
        self.discard(connection, known.id)
        return None

    def _begun_by(self, connection: Connection, parent: ParentRun) -> int | None:
        """The batch that an earlier attempt of this run made; what it did not finish is given up."""
        known = connection.execute(select(batches).where(batches.c.parent_run == parent.run_id)).one_or_none()
        if known is None:
            return None
        if known.phase != BatchPhase.UPLOADING:
            return int(known.id)
        self.discard(connection, known.id)
        return None

    async def upload_of(
        self, idempotency_key: str | None, parent: ParentRun | None
    ) -> tuple[int, int] | None:
        """(the batch, when its last portion came) of an upload under this key, or for the run that waits,
        that is not complete; None when there is none."""
        query = select(batches.c.id, batches.c.updated_at).where(
            batches.c.parent_run == parent.run_id
            if parent is not None
            else and_(
                batches.c.namespace == self.context.namespace, batches.c.idempotency_key == idempotency_key
            ),
            batches.c.phase == BatchPhase.UPLOADING,
        )
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else (row.id, row.updated_at)

    async def add_targets(self, batch_id: int, first: int, targets: Sequence[TargetSpec]) -> None:
        """One portion, counted from `first`; refused whole when a target comes twice."""
        rows = [_row(batch_id, first + nr, target) for nr, target in enumerate(targets)]

        def work(connection: Connection) -> None:
            for part in chunks(rows):
                connection.execute(insert(batch_tasks), part)
            mine = (batches.c.id == batch_id, batches.c.phase == BatchPhase.UPLOADING)
            change = update(batches).where(*mine).values(updated_at=self.context.now(connection))
            if connection.execute(change).rowcount != 1:
                raise TakenOver(f"batch {batch_id} takes no more targets: {TAKEN_OVER}")

        try:
            await self.context.database.write(work)
        except IntegrityError:
            raise Invalid(await self._twice(batch_id, first, targets), field="target_id") from None

    async def _twice(self, batch_id: int, first: int, targets: Sequence[TargetSpec]) -> str:
        """Which target came twice, and where."""
        seen: dict[str, int] = {}
        for nr, target in enumerate(targets):
            if target.target_id in seen:
                before = seen[target.target_id] + 1
                return f"target {first + nr + 1}: {target.target_id!r} came before, as {before}"
            seen[target.target_id] = first + nr
        query = select(batch_tasks.c.target_id, batch_tasks.c.position).where(
            batch_tasks.c.batch_id == batch_id, batch_tasks.c.target_id.in_(list(seen)[:5000])
        )
        row = await self.context.database.read(
            lambda connection: connection.execute(query.limit(1)).one_or_none()
        )
        if row is None:
            return "a target came twice"
        return f"target {seen[row.target_id] + 1}: {row.target_id!r} came before, as {row.position + 1}"

    async def seal_batch(self, batch_id: int, total: int, request_digest: str | None = None) -> None:
        """All targets are there: from now on the batch exists."""

        def work(connection: Connection) -> None:
            mine = (batches.c.id == batch_id, batches.c.phase == BatchPhase.UPLOADING)
            change = update(batches).where(*mine)
            now = self.context.now(connection)
            values = {
                "phase": next_phase(BatchPhase.UPLOADING, "seal"),
                "total": total,
                "pending": total,
                "request_digest": request_digest,
                "updated_at": now,
            }
            if connection.execute(change.values(values)).rowcount != 1:
                raise TakenOver(f"upload {batch_id} cannot be completed: {TAKEN_OVER}")
            found = select(func.count(), func.max(batch_tasks.c.position) + 1)
            found = found.where(batch_tasks.c.batch_id == batch_id)
            if total == 0 or tuple(connection.execute(found).one()) != (total, total):
                raise Invalid(
                    "a batch has at least one target" if total == 0 else "targets were lost: upload again"
                )

        await self.context.database.write(work)

    async def check_batch_request(self, batch_id: int, key: str, digest: str) -> None:
        """Refuse a request whose key was used for this batch, when it asked for another."""
        query = select(batches.c.request_digest).where(batches.c.id == batch_id)
        stored = await self.context.database.read(
            lambda connection: connection.execute(query).scalar_one_or_none()
        )
        check_same(key, stored, digest, f"batch {batch_id}")

    async def discard_batch(self, batch_id: int, phase: BatchPhase = BatchPhase.UPLOADING) -> None:
        """What was asked for was not carried out: nothing of the batch stays if it is still in this phase."""
        await self.context.database.write(lambda connection: self.discard(connection, batch_id, phase))

    def discard(
        self, connection: Connection, batch_id: int, phase: BatchPhase = BatchPhase.UPLOADING
    ) -> None:
        mine = (batches.c.id == batch_id, batches.c.phase == phase)
        if connection.execute(update(batches).where(*mine).values(DISCARDED)).rowcount:
            self.delete_some(connection, batch_id)

    def delete_some(self, connection: Connection, batch_id: int) -> int:
        """Some targets of a discarded batch, and its row with the last of them; returns how many targets."""
        mine = batch_tasks.c.batch_id == batch_id
        first: int | None = connection.execute(select(func.min(batch_tasks.c.position)).where(mine)).scalar()
        count = 0
        if first is not None:
            some = delete(batch_tasks).where(mine, batch_tasks.c.position < first + ROWS_A_SWEEP)
            count = connection.execute(some).rowcount
        if connection.execute(select(batch_tasks.c.position).where(mine).limit(1)).one_or_none() is None:
            connection.execute(delete(batches).where(batches.c.id == batch_id))
        return count


DISCARDED = {"phase": BatchPhase.DISCARDED, "idempotency_key": None, "parent_run": None}


def _row(batch_id: int, position: int, target: TargetSpec) -> dict[str, Any]:
    payload = {
        "batch_id": batch_id,
        "position": position,
        "target_id": target.target_id,
        "target_name": target.target_name,
        "target_env": target.target_env,
        "before": target.before,
        "after": target.after,
    }
    return {
        "batch_id": batch_id,
        "position": position,
        "target_id": target.target_id,
        "target_name": target.target_name,
        "target_env": target.target_env,
        "payload": encode(payload, f"target {position + 1}"),
    }


def _definition(spec: BatchSpec) -> str:
    plain = {**asdict(spec), "retry": None if spec.retry is None else spec.retry.to_dict()}
    return encode(plain, "the batch")


def spec_of_batch(row: Any) -> BatchSpec:
    return reading("batch", row.id, lambda: _spec(row.definition))


def _spec(definition: str) -> BatchSpec:
    given: Mapping[str, Any] = decode(definition)
    known = {key: value for key, value in given.items() if key in BatchSpec.__slots__}
    if known.get("on_error") not in tuple(OnError):
        known["on_error"] = OnError.STOP  # one that only a newer version knows counts as not given
    if known.get("retry") is not None:
        known["retry"] = RetryPolicy.as_stored(known["retry"])
    return BatchSpec(**known)
