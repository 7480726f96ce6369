"""Fires that no schedule makes: by a person, after another task, or for a stretch of the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import check_same, digest_of, used_for_another
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import runs
from fusee.errors import Conflict, Invalid
from fusee.events import TasksFired
from fusee.tasks.model.catch_up import Due
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, Ruling
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.admission import Admission
from fusee.tasks.store.firing import Firing, PlannedFire
from fusee.tasks.store.state import TaskState, TaskStates
from fusee.tasks.store.tables import backfills, fires, tasks
from fusee.tasks.store.tasks import TaskDefinitions, spec_of
from fusee.tasks.store.upstreams import Upstreams
from fusee.values.chunks import chunks

__all__ = ["Backfilled", "Triggered", "Triggers"]

MOST_BACKFILLED = 10_000
MOST_LOOKED_AT = 100_000


@dataclass(frozen=True, slots=True)
class Triggered:
    """A fire by hand, and what was decided about it."""

    fire_time: int
    decision: Decision
    rule: str
    run_ids: Sequence[int]
    created: bool = True
    """False when the idempotency key had been used before."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill runs; `id` is None for a dry run."""

    id: int | None
    times: Sequence[int]
    """The fires that run."""
    left: int
    """Fires of that stretch that ran before, and are left alone."""
    concurrency: int
    created: bool = True
    """False when the idempotency key had been used before."""


class Triggers:
    def __init__(
        self,
        context: StoreContext,
        firing: Firing,
        states: TaskStates,
        admission: Admission,
        definitions: TaskDefinitions,
        upstreams: Upstreams,
        run_writer: RunWriter,
    ) -> None:
        self.context = context
        self.firing = firing
        self.states = states
        self.admission = admission
        self.definitions = definitions
        self.upstreams = upstreams
        self.run_writer = run_writer

    async def trigger(
        self,
        ref: str | int,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str = "triggered by hand",
    ) -> Triggered:
        """Fire now, under the policies; what the task waits for is not waited for."""

        def work(connection: Connection) -> Triggered:
            row = self.definitions.task_row(connection, ref, lock=True)
            digest = None
            if idempotency_key is not None:
                asked = {"task": row.id, "payload": payload or {}, "reason": reason}
                digest = digest_of("trigger", asked)
                before = self.run_writer.run_under_key(connection, idempotency_key, digest)
                if before is not None:
                    return self._triggered_before(connection, row.id, before, idempotency_key)
            if row.status == TaskStatus.DISABLED:
                raise Conflict(f"task {row.name} is disabled: enable it first")
            now = self.context.now(connection)
            states, closed = self.states.load(connection, [row])
            self.firing.on_fires_ended(connection, states, closed, now)
            state = states[row.id]
            at = self._free_time(connection, row, now)
            since = row.last_fire_at or row.anchor
            planned = self.firing.decide(
                connection,
                state,
                Due(at),
                Cause.MANUAL,
                [],
                now,
                since,
                f"{reason}, and nothing in its way",
            )
            planned.payload = payload
            planned.idempotency_key, planned.request_digest = idempotency_key, digest
            self.firing.write(connection, [planned], now)
            self.context.note(connection, TasksFired(counts={planned.ruling.code: 1}, lateness=[]))
            self.firing.save(connection, [state])
            return Triggered(at, planned.ruling.decision, planned.ruling.rule, planned.run_ids)

        try:
            triggered = await self.context.write_aloud(work)
        except IntegrityError:  # another caller used the key just now: look again
            triggered = await self.context.write_aloud(work)
        self.firing.wake_all(True)
        return triggered

    async def fire_again(self, run_id: int, idempotency_key: str | None = None) -> Triggered:
        """Do one run of a task again, as a fire of its own, under the task's policies.

        The new run has the payload, the options and so the logical time of the old one. `Conflict` when the
        policies would skip it: nothing is recorded then, since no fire was due.
        """

        digest = digest_of("retry", run_id)

        def work(connection: Connection) -> Triggered:
            mine = (fires.c.run_id == run_id, fires.c.namespace == self.context.namespace)
            fire = connection.execute(select(fires).where(*mine)).one_or_none()
            again = connection.execute(select(runs).where(runs.c.id == run_id)).one_or_none()
            if fire is None or again is None:
                raise Conflict(f"run {run_id} is so old that its fire is deleted: trigger its task")
            locked = select(tasks).where(tasks.c.id == fire.task_id).with_for_update()
            row = connection.execute(locked).one()
            if idempotency_key is not None:
                before = self.run_writer.run_under_key(connection, idempotency_key, digest)
                if before is not None:
                    return self._triggered_before(connection, row.id, before, idempotency_key)
            if row.status == TaskStatus.DELETED:
                raise Conflict(
                    f"run {run_id} belongs to task {row.name}, which is deleted: submit its work as a new run"
                )
            if row.status == TaskStatus.DISABLED:
                raise Conflict(
                    f"run {run_id} belongs to task {row.name}, which is disabled: enable it first"
                    f" (`fusee task enable {row.name}`)"
                )
            return self._do_again(connection, row, [again], f"run {run_id}", idempotency_key, digest)

        try:
            triggered = await self.context.write_aloud(work)
        except IntegrityError:  # another caller used the key just now: look again
            triggered = await self.context.write_aloud(work)
        self.firing.wake_all(True)
        return triggered

    async def restart_task(self, ref: str | int, *, idempotency_key: str | None = None) -> Triggered:
        """Do the last fire of a task that had runs again, all of its shards, under the task's policies.

        The new runs have the payload, the options and so the logical time of the old ones. `Conflict` when
        there is no such fire, or when the policies would skip it.
        """

        def work(connection: Connection) -> Triggered:
            row = self.definitions.task_row(connection, ref, lock=True)
            digest = None
            if idempotency_key is not None:
                digest = digest_of("restart", {"task": row.id})
                before = self.run_writer.run_under_key(connection, idempotency_key, digest)
                if before is not None:
                    return self._triggered_before(connection, row.id, before, idempotency_key)
            if row.status == TaskStatus.DISABLED:
                raise Conflict(f"task {row.name} is disabled: enable it first")
            ran = (fires.c.task_id == row.id, fires.c.decision.in_((Decision.RUN, Decision.QUEUE)))
            last = select(fires.c.fire_time).where(*ran).order_by(fires.c.fire_time.desc()).limit(1)
            at = connection.execute(last).scalar_one_or_none()
            found: Sequence[Any] = ()
            if at is not None:
                shards = select(runs).join(fires, fires.c.run_id == runs.c.id)
                found = connection.execute(
                    shards.where(*ran, fires.c.fire_time == at).order_by(fires.c.shard)
                ).all()
            if not found:
                raise Conflict(f"task {row.name} has no fire that could be done again: trigger it")
            return self._do_again(connection, row, found, "its last fire", idempotency_key, digest)

        try:
            triggered = await self.context.write_aloud(work)
        except IntegrityError:  # another caller used the key just now: look again
            triggered = await self.context.write_aloud(work)
        self.firing.wake_all(True)
        return triggered

    def _do_again(
        self,
        connection: Connection,
        row: Any,
        again: Sequence[Any],
        what: str,
        idempotency_key: str | None = None,
        digest: str | None = None,
    ) -> Triggered:
        """Fire a locked task with runs like these; `Conflict` when its policies would skip that."""
        now = self.context.now(connection)
        states, closed = self.states.load(connection, [row])
        self.firing.on_fires_ended(connection, states, closed, now)
        state = states[row.id]
        planned = self.firing.decide(
            connection,
            state,
            Due(self._free_time(connection, row, now)),
            Cause.MANUAL,
            [],
            now,
            row.last_fire_at or row.anchor,
            f"{what} done again by hand, and nothing in its way",
            after_failure=True,
        )
        if planned.ruling.decision is Decision.SKIP:
            raise Conflict(f"{what} is not done again now: {planned.ruling.rule}")
        planned.again = again
        if idempotency_key is not None:
            planned.idempotency_key, planned.request_digest = idempotency_key, digest
        self.firing.write(connection, [planned], now)
        self.context.note(connection, TasksFired(counts={planned.ruling.code: 1}, lateness=[]))
        self.firing.save(connection, [state])
        return Triggered(planned.at, planned.ruling.decision, planned.ruling.rule, planned.run_ids)

    def _triggered_before(self, connection: Connection, task_id: int, run_id: int, key: str) -> Triggered:
        mine = select(fires).where(fires.c.run_id == run_id, fires.c.task_id == task_id)
        fire = connection.execute(mine).one_or_none()
        if fire is None:
            raise used_for_another(key, f"run {run_id}")
        ids = self.admission.run_ids_of(connection, task_id, fire.fire_time)
        return Triggered(fire.fire_time, Decision(fire.decision), fire.rule, ids, created=False)

    def _free_time(self, connection: Connection, row: Any, now: int) -> int:
        """Now, or the next microsecond that is neither taken nor the schedule's own."""
        schedule = spec_of(row).schedule(row.anchor)
        taken = select(fires.c.fire_time).where(fires.c.task_id == row.id)
        at = now
        while (schedule is not None and schedule.matches(at)) or connection.execute(
            taken.where(fires.c.fire_time == at).limit(1)
        ).one_or_none() is not None:
            at += 1
        return at

    def fire_after(self, connection: Connection, wanted: Sequence[tuple[int, int]], now: int) -> None:
        """(task, logical time): fire those that follow other tasks, unless they did for that time."""
        ids = {task_id for task_id, _ in wanted}
        query = select(tasks).where(tasks.c.id.in_(ids)).order_by(tasks.c.id).with_for_update()
        rows = [
            row
            for row in connection.execute(query).all()
            if row.status == TaskStatus.ENABLED and spec_of(row).trigger == "after"
        ]
        if not rows:
            return
        states, closed = self.states.load(connection, rows)
        self.firing.on_fires_ended(connection, states, closed, now)
        planned: list[PlannedFire] = []
        for task_id, at in sorted(set(wanted), key=lambda one: one[1]):
            state = states.get(task_id)
            if state is None or state.status is not TaskStatus.ENABLED:
                continue
            if self.upstreams.fired_at(connection, [task_id], at):
                continue
            since = state.values.get("last_fire_at") or state.row.last_fire_at or state.row.anchor
            why = "a task that it follows has ended"
            planned.append(
                self.firing.decide(connection, state, Due(at), Cause.AFTER, planned, now, since, why)
            )
            state.values["last_fire_at"] = max(at, state.row.last_fire_at or 0)
        self.firing.write(connection, planned, now)
        self.firing.save(connection, states.values())

    async def backfill(
        self,
        ref: str | int,
        begin: int,
        end: int,
        *,
        concurrency: int = 1,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfilled:
        """Run the fires from `begin` to `end` that did not run, oldest first, apart from the schedule."""

        def work(connection: Connection) -> Backfilled:
            row = self.definitions.task_row(connection, ref, lock=True)
            asked = {"task": row.id, "from": begin, "to": end, "concurrency": concurrency}
            digest = digest_of("backfill", asked)
            if idempotency_key is not None:
                mine = (
                    backfills.c.namespace == self.context.namespace,
                    backfills.c.idempotency_key == idempotency_key,
                )
                before = connection.execute(select(backfills).where(*mine)).one_or_none()
                if before is not None:
                    check_same(idempotency_key, before.request_digest, digest, f"backfill {before.id}")
                    return self._backfilled_before(connection, row, before)
            now = self.context.now(connection)
            # What is due and not decided yet is the scan's: it makes up for that itself.
            last = now if row.next_fire_at is None else min(now, row.next_fire_at - 1)
            times, left = self._to_backfill(connection, row, begin, min(end, last))
            if dry_run or not times:
                return Backfilled(None, times, left, concurrency)
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
            self._write_backfill(connection, row, int(key[0]), times, now)
            return Backfilled(int(key[0]), times, left, concurrency)

        try:
            backfilled = await self.context.database.write(work)
        except IntegrityError:  # another caller used the key just now: look again
            backfilled = await self.context.database.write(work)
        self.firing.wake_all(backfilled.id is not None)
        return backfilled

    def _backfilled_before(self, connection: Connection, row: Any, before: Any) -> Backfilled:
        query = select(fires.c.fire_time).where(
            fires.c.task_id == row.id, fires.c.backfill_id == before.id, fires.c.shard == 0
        )
        times = sorted(connection.execute(query).scalars())
        return Backfilled(before.id, times, 0, before.concurrency, created=False)

    def _to_backfill(self, connection: Connection, row: Any, begin: int, end: int) -> tuple[list[int], int]:
        schedule = spec_of(row).schedule_since(begin, row.anchor)
        if schedule is None:
            raise Conflict(f"task {row.name} has no schedule: there is nothing to make up for")
        ran = self._ran_between(connection, row.id, begin, end)
        times: list[int] = []
        left = 0
        for at in takewhile(lambda at: at <= end, schedule.fires(begin - 1)):
            if at in ran:
                left += 1
            else:
                times.append(at)
            if len(times) * spec_of(row).shards > MOST_BACKFILLED:
                raise Invalid(
                    f"more than {MOST_BACKFILLED} runs: make up for it in shorter stretches", field="to"
                )
            if left > MOST_LOOKED_AT:
                raise Invalid(f"more than {MOST_LOOKED_AT} fires: choose a shorter stretch", field="to")
        return times, left

    def _ran_between(self, connection: Connection, task_id: int, begin: int, end: int) -> set[int]:
        """Fires that started, or may yet; not those that were skipped or canceled before they began."""
        query = (
            select(fires.c.fire_time, fires.c.open_task, runs.c.started_at)
            .join(runs, runs.c.id == fires.c.run_id)
            .where(fires.c.task_id == task_id, fires.c.fire_time.between(begin, end))
        )
        found = connection.execute(query)
        return {fire.fire_time for fire in found if fire.open_task is not None or fire.started_at is not None}

    def _write_backfill(
        self, connection: Connection, row: Any, backfill_id: int, times: Sequence[int], now: int
    ) -> None:
        was = self._make_room(connection, row.id, times)
        state = TaskState.of(row)
        planned = []
        for at in times:
            rule = f"backfill {backfill_id}"
            if at in was:
                rule += f" (was: {was[at]})"
            ruling = Ruling(decision=Decision.RUN, code="backfill", rule=rule)
            planned.append(
                PlannedFire(
                    state,
                    at,
                    Cause.BACKFILL,
                    ruling,
                    now,
                    held=Held.BACKFILL,
                    backfill_id=backfill_id,
                )
            )
        self.firing.write(connection, planned, now)
        self.admission.continue_backfill(connection, backfill_id, now)

    def _make_room(self, connection: Connection, task_id: int, times: Sequence[int]) -> dict[int, str]:
        """Take away the rows of fires that did not run; answers what they said.

        A row that stands for many moves on by a microsecond, which is no fire: it still tells of the rest.
        """
        was: dict[int, str] = {}
        for part in chunks(times):
            mine = and_(fires.c.task_id == task_id, fires.c.fire_time.in_(part))
            for row in connection.execute(select(fires).where(mine)).all():
                was[row.fire_time] = row.rule
            many = and_(mine, fires.c.through.is_not(None))
            connection.execute(update(fires).where(many).values(fire_time=fires.c.fire_time + 1))
            connection.execute(delete(fires).where(mine, or_(fires.c.through.is_(None))))
        return was
