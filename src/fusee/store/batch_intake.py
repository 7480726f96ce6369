"""Taking in a batch: its targets come in many portions, and it exists when the last has come, or never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.errors import Conflict, Invalid, NotFound
from fusee.model import RetryPolicy
from fusee.model.batch import BatchPhase, BatchSpec, BatchStatus, OnError, TargetSpec
from fusee.store.batch_schema import batch_tasks, batches
from fusee.store.parts import StorePart
from fusee.store.rows import decode, encode

__all__ = ["BatchIntake", "spec_of_batch"]

ROWS_A_STATEMENT = 500
ABANDONED_AFTER = 3_600_000_000
"""Microseconds without a new portion after which an upload counts as given up."""


class BatchIntake(StorePart):
    async def open_batch(self, spec: BatchSpec, idempotency_key: str | None = None) -> tuple[int, bool]:
        """(number, whether it is new); a key that was used names the batch it was used for."""

        def work(connection: Connection) -> tuple[int, bool]:
            now = self._now(connection)
            if idempotency_key is not None:
                mine = (batches.c.namespace == self.namespace, batches.c.idempotency_key == idempotency_key)
                known = connection.execute(select(batches).where(*mine)).one_or_none()
                if known is not None and known.phase != BatchPhase.UPLOADING:
                    if decode(known.definition) != decode(_definition(spec)):
                        raise Conflict(
                            f"the idempotency key was used for another batch ({known.id}): use a new one"
                        )
                    return known.id, False
                if known is not None:
                    if now - known.updated_at < 60_000_000:
                        raise Conflict("an upload under this idempotency key is under way: wait for it")
                    self._discard(connection, known.id)  # its caller went away
            added = connection.execute(
                insert(batches).values(
                    namespace=self.namespace,
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
                    idempotency_key=idempotency_key,
                    created_at=now,
                    updated_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            return int(key[0]), True

        try:
            return await self.database.write(work)
        except IntegrityError:
            raise Conflict("an upload under this idempotency key is under way: wait for it") from None

    async def add_targets(self, batch_id: int, first: int, targets: Sequence[TargetSpec]) -> None:
        """One portion, counted from `first`; refused whole when a target comes twice."""
        rows = [_row(batch_id, first + nr, target) for nr, target in enumerate(targets)]

        def work(connection: Connection) -> None:
            for start in range(0, len(rows), ROWS_A_STATEMENT):
                connection.execute(insert(batch_tasks), rows[start : start + ROWS_A_STATEMENT])
            mine = (batches.c.id == batch_id, batches.c.phase == BatchPhase.UPLOADING)
            change = update(batches).where(*mine).values(updated_at=self._now(connection))
            if connection.execute(change).rowcount != 1:
                raise Conflict(f"batch {batch_id} takes no more targets")

        try:
            await self.database.write(work)
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
        row = await self.database.read(lambda connection: connection.execute(query.limit(1)).one_or_none())
        if row is None:
            return "a target came twice"
        return f"target {seen[row.target_id] + 1}: {row.target_id!r} came before, as {row.position + 1}"

    async def seal_batch(self, batch_id: int, total: int) -> None:
        """All targets are there: from now on the batch exists."""

        def work(connection: Connection) -> None:
            found = connection.execute(
                select(func.count()).select_from(batch_tasks).where(batch_tasks.c.batch_id == batch_id)
            ).scalar_one()
            if found != total or total == 0:
                raise Invalid(
                    "a batch has at least one target" if total == 0 else "targets were lost: upload again"
                )
            mine = (batches.c.id == batch_id, batches.c.phase == BatchPhase.UPLOADING)
            change = update(batches).where(*mine)
            now = self._now(connection)
            values = {"phase": BatchPhase.PLANNED, "total": total, "pending": total, "updated_at": now}
            if connection.execute(change.values(values)).rowcount != 1:
                raise NotFound(f"no upload {batch_id}: it was given up, or is complete")

        await self.database.write(work)

    async def discard_batch(self, batch_id: int) -> None:
        """The upload failed: nothing of it stays."""
        await self.database.write(lambda connection: self._discard(connection, batch_id))

    def _discard(self, connection: Connection, batch_id: int) -> None:
        mine = (batches.c.id == batch_id, batches.c.phase == BatchPhase.UPLOADING)
        if connection.execute(delete(batches).where(*mine)).rowcount:
            connection.execute(delete(batch_tasks).where(batch_tasks.c.batch_id == batch_id))

    async def discard_abandoned_uploads(self) -> int:
        """Uploads whose caller went away without a word."""

        def work(connection: Connection) -> int:
            old = self._now(connection) - ABANDONED_AFTER
            query = select(batches.c.id).where(
                batches.c.phase == BatchPhase.UPLOADING, batches.c.updated_at < old
            )
            found = list(connection.execute(query.limit(10)).scalars())
            for batch_id in found:
                self._discard(connection, batch_id)
            return len(found)

        return await self.database.write(work)


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
    given: Mapping[str, Any] = decode(row.definition)
    known = {key: value for key, value in given.items() if key in BatchSpec.__slots__}
    known["on_error"] = OnError(known["on_error"])
    if known.get("retry") is not None:
        known["retry"] = RetryPolicy.from_dict(known["retry"])
    return BatchSpec(**known)
