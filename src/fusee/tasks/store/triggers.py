"""Fires that no schedule makes: a person triggers or repeats one, or an upstream task has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.context import StoreContext
from fusee.engine.store.request_keys import digest_of, used_for_another
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import runs
from fusee.errors import Conflict
from fusee.events import TasksFired
from fusee.tasks.model.catch_up import Due
from fusee.tasks.model.fire import Cause
from fusee.tasks.model.policy import Decision
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.fire_writer import PlannedFire
from fusee.tasks.store.firing import Firing
from fusee.tasks.store.tables import fires, tasks
from fusee.tasks.store.tasks import TaskDefinitions, spec_of
from fusee.values.kinds import TIME

__all__ = ["Triggered", "Triggers"]


@dataclass(frozen=True, slots=True)
class Triggered:
    """A fire that a person asked for, and what was decided about it."""

    fire_time: Annotated[int, TIME]
    decision: Decision
    rule: str
    run_ids: Annotated[Sequence[int], "One for each shard; those of a skipped fire never run."]
    created: Annotated[bool, "False when the idempotency key had been used before."] = True


class Triggers:
    def __init__(
        self, context: StoreContext, firing: Firing, definitions: TaskDefinitions, run_writer: RunWriter
    ) -> None:
        self.context = context
        self.firing = firing
        self.definitions = definitions
        self.run_writer = run_writer

    async def trigger(
        self,
        ref: str | int,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str = "triggered by hand",
    ) -> Triggered:
        """Fire now, under the policies; the task's upstreams are not waited for."""

        def work(connection: Connection) -> Triggered:
            row = self.definitions.task_row(connection, ref, lock=True)
            asked = {"task": row.id, "payload": payload or {}, "reason": reason}
            digest = "" if idempotency_key is None else digest_of("trigger", asked)
            if (before := self._triggered_before(connection, row.id, idempotency_key, digest)) is not None:
                return before
            if row.status == TaskStatus.DISABLED:
                raise Conflict(f"task {row.name} is disabled: enable it first")
            return self._fire(connection, row, reason, idempotency_key, digest, payload=payload)

        return await self._write_once(work)

    async def fire_again(self, run_id: int, idempotency_key: str | None = None) -> Triggered:
        """Repeat one run of a task as a fire of its own, under the task's policies.

        The new run has the payload and the options, and so the logical time, of the old one. `Conflict` when
        the policies would skip it: nothing is recorded then, since no fire was due.
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
            if (before := self._triggered_before(connection, row.id, idempotency_key, digest)) is not None:
                return before
            if row.status == TaskStatus.DELETED:
                raise Conflict(
                    f"run {run_id} belongs to task {row.name}, which is deleted: submit its work as a new run"
                )
            if row.status == TaskStatus.DISABLED:
                raise Conflict(
                    f"run {run_id} belongs to task {row.name}, which is disabled: enable it first"
                    f" (`fusee task enable {row.name}`)"
                )
            return self._fire(connection, row, f"run {run_id}", idempotency_key, digest, again=[again])

        return await self._write_once(work)

    async def restart_task(self, ref: str | int, *, idempotency_key: str | None = None) -> Triggered:
        """Repeat the last fire of a task that had runs, with all of its shards, under the task's policies.

        The new runs have the payload and the options, and so the logical time, of the old ones. `Conflict`
        when there is no such fire, or when the policies would skip it.
        """

        def work(connection: Connection) -> Triggered:
            row = self.definitions.task_row(connection, ref, lock=True)
            digest = digest_of("restart", {"task": row.id})
            if (before := self._triggered_before(connection, row.id, idempotency_key, digest)) is not None:
                return before
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
            return self._fire(connection, row, "its last fire", idempotency_key, digest, again=found)

        return await self._write_once(work)

    async def _write_once(self, work: Callable[[Connection], Triggered]) -> Triggered:
        try:
            triggered = await self.context.write_aloud(work)
        except IntegrityError:  # another caller used the key just now: look again
            triggered = await self.context.write_aloud(work)
        self.firing.wake_all(True)
        return triggered

    def _fire(
        self,
        connection: Connection,
        row: Any,
        what: str,
        key: str | None,
        digest: str,
        *,
        payload: Mapping[str, Any] | None = None,
        again: Sequence[Any] = (),
    ) -> Triggered:
        """Fire a locked task now; with `again`, repeat these runs, or raise `Conflict` when the policies
        would skip that."""
        now = self.context.now(connection)
        state = self.firing.refresh(connection, [row], now)[row.id]
        how = f"{what} done again by hand" if again else what
        planned = self.firing.decide(
            connection,
            state,
            Due(self._free_time(connection, row, now)),
            Cause.MANUAL,
            [],
            now,
            row.last_fire_at or row.anchor,
            f"{how}, and nothing in its way",
            after_failure=bool(again),
        )
        ruling = planned.ruling
        if again and ruling.decision is Decision.SKIP:
            raise Conflict(f"{what} is not done again now: {ruling.rule}")
        planned.payload, planned.again = payload, again
        planned.idempotency_key, planned.request_digest = key, digest
        self.firing.writer.write(connection, [planned], now)
        self.context.note(connection, TasksFired(counts={ruling.code: 1}, lateness=[]))
        self.firing.states.save(connection, [state])
        return Triggered(planned.at, ruling.decision, ruling.rule, planned.run_ids)

    def _triggered_before(
        self, connection: Connection, task_id: int, key: str | None, digest: str
    ) -> Triggered | None:
        """The fire that this request made under its idempotency key."""
        run_id = None if key is None else self.run_writer.run_under_key(connection, key, digest)
        if key is None or run_id is None:
            return None
        mine = select(fires).where(fires.c.run_id == run_id, fires.c.task_id == task_id)
        fire = connection.execute(mine).one_or_none()
        if fire is None:
            raise used_for_another(key, f"run {run_id}")
        shards = select(fires.c.run_id).where(fires.c.task_id == task_id, fires.c.fire_time == fire.fire_time)
        ids = list(connection.execute(shards).scalars())
        return Triggered(fire.fire_time, Decision(fire.decision), fire.rule, ids, created=False)

    def _free_time(self, connection: Connection, row: Any, now: int) -> int:
        """Now, or the next microsecond that is neither taken nor a time of the schedule."""
        schedule = spec_of(row).schedule(row.anchor)
        at = now
        while (schedule is not None and schedule.matches(at)) or self.firing.upstreams.fired_at(
            connection, [row.id], at
        ):
            at += 1
        return at

    def fire_after(self, connection: Connection, wanted: Sequence[tuple[int, int]], now: int) -> None:
        """Fire tasks that follow others: (task, logical time) each, unless the task has fired for that
        time."""
        ids = {task_id for task_id, _ in wanted}
        query = select(tasks).where(tasks.c.id.in_(ids)).order_by(tasks.c.id).with_for_update()
        rows = [
            row
            for row in connection.execute(query).all()
            if row.status == TaskStatus.ENABLED and spec_of(row).trigger == "after"
        ]
        if not rows:
            return
        states = self.firing.refresh(connection, rows, now)
        planned: list[PlannedFire] = []
        for task_id, at in sorted(set(wanted), key=lambda one: one[1]):
            state = states.get(task_id)
            if state is None or state.status is not TaskStatus.ENABLED:
                continue
            if self.firing.upstreams.fired_at(connection, [task_id], at):
                continue
            since = state.values.get("last_fire_at") or state.row.last_fire_at or state.row.anchor
            why = "a task that it follows has ended"
            planned.append(
                self.firing.decide(connection, state, Due(at), Cause.AFTER, planned, now, since, why)
            )
            state.values["last_fire_at"] = max(at, state.row.last_fire_at or 0)
        self.firing.writer.write(connection, planned, now)
        self.firing.states.save(connection, states.values())
