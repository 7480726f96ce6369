"""Backfills: the fires of a past range that did not run, oldest first, beside the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any

from sqlalchemy import Connection, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import check_same, digest_of
from fusee.engine.store.tables import runs
from fusee.errors import Conflict, Invalid
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, Ruling
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.fire_writer import PlannedFire
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.state import TaskState
from fusee.tasks.store.tables import backfills, fires
from fusee.tasks.store.tasks import TaskDefinitions, spec_of
from fusee.values.chunks import chunks
from fusee.values.fields import As
from fusee.values.kinds import TIMES

__all__ = ["Backfilled", "Backfills"]

MOST_BACKFILLED = 10_000
MOST_LOOKED_AT = 100_000


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill runs."""

    id: Annotated[int | None, "None when nothing was made: a dry run, or nothing to make up for."]
    times: Annotated[Sequence[int], TIMES, As("fires"), "The times that run, oldest first."]
    left: Annotated[int, "Fires of that range that ran before, and are left alone."]
    concurrency: int
    created: Annotated[bool, "False when nothing was made, or the idempotency key had been used before."] = (
        True
    )

    @property
    def count(self) -> Annotated[int, "How many fires run."]:
        return len(self.times)


class Backfills:
    def __init__(self, context: StoreContext, firing: Firing, definitions: TaskDefinitions) -> None:
        self.context = context
        self.firing = firing
        self.definitions = definitions

    async def start(
        self,
        ref: str | int,
        begin: int,
        end: int,
        *,
        concurrency: int = 1,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfilled:
        """Run the fires from `begin` to `end` that did not run, oldest first, beside the schedule."""

        def work(connection: Connection) -> Backfilled:
            row = self.definitions.task_row(connection, ref, lock=True)
            asked = {"task": row.id, "from": begin, "to": end, "concurrency": concurrency}
            digest = digest_of("backfill", asked)
            if (before := self._backfilled_before(connection, row, idempotency_key, digest)) is not None:
                return before
            now = self.context.now(connection)
            # Fires that are due and not decided yet belong to the scan, which catches up on them itself.
            last = now if row.next_fire_at is None else min(now, row.next_fire_at - 1)
            times, left = self._times(connection, row, begin, min(end, last))
            if dry_run or not times:
                return Backfilled(None, times, left, concurrency, created=False)
            if row.status == TaskStatus.DISABLED:
                raise Conflict(f"task {row.name} is disabled: enable it first")
            added = connection.execute(
                insert(backfills).values(
                    namespace=self.context.namespace,
                    task_id=row.id,
                    from_time=begin,
                    to_time=end,
                    concurrency=concurrency,
                    total=len(times),
                    idempotency_key=idempotency_key,
                    request_digest=digest,
                    created_at=now,
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            self._write(connection, row, int(key[0]), times, now)
            return Backfilled(int(key[0]), times, left, concurrency)

        try:
            backfilled = await self.context.database.write(work)
        except IntegrityError:  # another caller used the key just now: look again
            backfilled = await self.context.database.write(work)
        self.firing.wake_all(backfilled.id is not None)
        return backfilled

    def _backfilled_before(
        self, connection: Connection, row: Any, key: str | None, digest: str
    ) -> Backfilled | None:
        if key is None:
            return None
        mine = (backfills.c.namespace == self.context.namespace, backfills.c.idempotency_key == key)
        before = connection.execute(select(backfills).where(*mine)).one_or_none()
        if before is None:
            return None
        check_same(key, before.request_digest, digest, f"backfill {before.id}")
        query = select(fires.c.fire_time).where(
            fires.c.task_id == row.id, fires.c.backfill_id == before.id, fires.c.shard == 0
        )
        times = sorted(connection.execute(query).scalars())
        return Backfilled(before.id, times, 0, before.concurrency, created=False)

    def _times(self, connection: Connection, row: Any, begin: int, end: int) -> tuple[list[int], int]:
        """The times of the range that did not run, and how many did."""
        spec = spec_of(row)
        schedule = spec.schedule_since(begin, row.anchor)
        if schedule is None:
            raise Conflict(f"task {row.name} has no schedule: there is nothing to backfill")
        ran = self._ran_between(connection, row.id, begin, end)
        times: list[int] = []
        left = 0
        for at in takewhile(lambda at: at <= end, schedule.fires(begin - 1)):
            if at in ran:
                left += 1
            else:
                times.append(at)
            if len(times) * spec.shards > MOST_BACKFILLED:
                raise Invalid(f"more than {MOST_BACKFILLED} runs: backfill shorter ranges", field="to")
            if left > MOST_LOOKED_AT:
                raise Invalid(f"more than {MOST_LOOKED_AT} fires: choose a shorter range", field="to")
        return times, left

    def _ran_between(self, connection: Connection, task_id: int, begin: int, end: int) -> set[int]:
        """Fires that started, or still may; not those that were skipped or canceled before they began."""
        query = (
            select(fires.c.fire_time, fires.c.open_task, runs.c.started_at)
            .join(runs, runs.c.id == fires.c.run_id)
            .where(fires.c.task_id == task_id, fires.c.fire_time.between(begin, end))
        )
        found = connection.execute(query)
        return {fire.fire_time for fire in found if fire.open_task is not None or fire.started_at is not None}

    def _write(
        self, connection: Connection, row: Any, backfill_id: int, times: Sequence[int], now: int
    ) -> None:
        was = self._delete_not_run(connection, row.id, times)
        state = TaskState.of(row)
        planned = []
        for at in times:
            rule = f"backfill {backfill_id}" + (f" (was: {was[at]})" if at in was else "")
            ruling = Ruling(decision=Decision.RUN, code="backfill", rule=rule)
            planned.append(
                PlannedFire(
                    state, at, Cause.BACKFILL, ruling, now, held=Held.BACKFILL, backfill_id=backfill_id
                )
            )
        self.firing.writer.write(connection, planned, now)
        self.firing.admission.continue_backfill(connection, backfill_id, now)

    def _delete_not_run(self, connection: Connection, task_id: int, times: Sequence[int]) -> dict[int, str]:
        """Delete the rows of fires that did not run; returns their rules by time.

        A row that stands for many fires moves by a microsecond, where no fire is: it still covers the rest.
        """
        was: dict[int, str] = {}
        for part in chunks(times):
            mine = and_(fires.c.task_id == task_id, fires.c.fire_time.in_(part))
            for row in connection.execute(select(fires).where(mine)).all():
                was[row.fire_time] = row.rule
            many = and_(mine, fires.c.through.is_not(None))
            connection.execute(update(fires).where(many).values(fire_time=fires.c.fire_time + 1))
            connection.execute(delete(fires).where(mine, fires.c.through.is_(None)))
        return was
