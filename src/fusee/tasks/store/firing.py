"""Deciding fires and writing them: the fire history, the runs and the task's next time, in one transaction.

Any number of dispatchers may do this at once. A task's row is locked while its fires are decided; a fire's
row is unique by task, time and shard, and the task's next fire time advances in the same transaction. Only
the database's clock says what is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.states import RunStatus
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.totals import add_to_totals
from fusee.events import TaskPaused
from fusee.tasks.model.catch_up import Due, due_fires
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, Ruling, jitter_of, rule_on
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.admission import WAITS_FOR_OTHERS, Admission
from fusee.tasks.store.alerts import TaskAlerts
from fusee.tasks.store.due import SCAN, DueTasks
from fusee.tasks.store.fire_writer import FireWriter, PlannedFire
from fusee.tasks.store.state import OpenFire, TaskState, TaskStates
from fusee.tasks.store.tables import fires
from fusee.tasks.store.upstreams import Upstreams
from fusee.values.chunks import chunks
from fusee.values.times import iso

__all__ = ["Fired", "Firing"]

FIRES_MISSED = "fires_missed"
"""A total by code: catch_up, caught_up."""
MOST_ROWS = 5000
"""Fires written in one transaction, or a few more: an outage of many tasks is made up for in several."""
MISSED = ("catch_up", "caught_up")
"""Codes of fires that no dispatcher decided in time."""


@dataclass(frozen=True, slots=True)
class Fired:
    """What one pass of the scan did."""

    counts: Mapping[str, int]
    """Fires by code: on_time, caught_up, overlap …"""
    lateness: Sequence[float] = ()
    """Seconds, for each fire that was due to run."""
    next_in: float | None = None
    tasks: int = 0

    def __bool__(self) -> bool:
        return self.tasks > 0


class Firing:
    def __init__(
        self,
        context: StoreContext,
        states: TaskStates,
        gates: Gates,
        cancels: Cancels,
        upstreams: Upstreams,
        admission: Admission,
        alerts: TaskAlerts,
        writer: FireWriter,
    ) -> None:
        self.context = context
        self.states = states
        self.gates = gates
        self.cancels = cancels
        self.upstreams = upstreams
        self.admission = admission
        self.alerts = alerts
        self.writer = writer
        self.due = DueTasks(context)

    # -- one pass of the scan

    async def fire_due(self, limit: int = 500, region: str = "") -> Fired:
        """Decide every fire that is due, of up to `limit` tasks, earliest first. With a region, only of tasks
        of that region, and of those that have none."""
        try:
            fired = await self._fire_all_due(limit, region)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            ids = await self.context.database.read(lambda connection: self.due.ids(connection, limit, region))
            fired = await self._fire_one_by_one(ids, region)
        if again := self.context.set_aside.due(SCAN):
            fired = _merged([fired, await self._fire_one_by_one(again, region)])
        self.wake_all(bool(fired))
        return fired

    async def _fire_all_due(self, limit: int, region: str) -> Fired:
        try:
            return await self.context.write_aloud(
                lambda connection: self._fire_due(connection, limit, region)
            )
        except IntegrityError:
            # The fire history has such a fire: the database's clock went back. This time, look first.
            return await self.context.write_aloud(
                lambda connection: self._fire_due(connection, limit, region, look=True)
            )

    async def _fire_one_by_one(self, ids: Sequence[int], region: str) -> Fired:
        """Each task in a transaction of its own; those that cannot be fired are set aside."""

        def fire(connection: Connection, task_id: int) -> Fired:
            return self._fire_due(connection, 1, region, look=True, only=task_id)

        return _merged(
            await self.context.set_aside.one_by_one(self.context.write_aloud, SCAN, ids, "task", fire)
        )

    def _fire_due(
        self,
        connection: Connection,
        limit: int,
        region: str = "",
        *,
        look: bool = False,
        only: int | None = None,
    ) -> Fired:
        now = self.context.now(connection)
        rows = self.due.lock(connection, now, limit, region, only)
        if not rows:
            return Fired({}, next_in=self.due.next_in(connection, now, region))
        if region:
            rows = self.due.of_region(connection, rows, region)
            if not rows:
                return Fired({}, next_in=0.0)  # the column was wrong and is corrected now
        states = self.refresh(connection, rows, now)
        planned: list[PlannedFire] = []
        decided = rows_made = 0
        for state in states.values():
            if rows_made > MOST_ROWS:
                break  # the others keep their next time: the next pass finds them
            before = len(planned)
            self._decide_due(connection, state, planned, now, look)
            rows_made += sum(one.shards for one in planned[before:])
            decided += 1
        self.writer.write(connection, planned, now)
        self.states.save(connection, states.values())
        counts = Counter(one.ruling.code for one in planned)
        late = Counter(
            (one.state.row.namespace, one.ruling.code) for one in planned if one.ruling.code in MISSED
        )
        add_to_totals(connection, FIRES_MISSED, late)
        lateness = [(now - one.at) / 1_000_000 for one in planned if one.starts]
        return Fired(counts, lateness, tasks=decided)

    def _decide_due(
        self, connection: Connection, state: TaskState, planned: list[PlannedFire], now: int, look: bool
    ) -> None:
        """Add what is decided about each due fire to `planned`, and advance the task's next time."""
        if state.status is not TaskStatus.ENABLED:
            return  # a fire that ended just now paused the task: `values` says so
        due, next_fire_at = self._undecided(connection, state, now, look)
        since = state.row.last_fire_at or state.row.anchor
        for one in due:
            planned.append(self.decide(connection, state, one, Cause.SCHEDULE, planned, now, since))
            since = one.at
        state.values["next_fire_at"] = next_fire_at
        if due:
            state.values["last_fire_at"] = due[-1].through or due[-1].at
            self.alerts.alert_if_late(connection, state, due[0].at, now)

    def _undecided(
        self, connection: Connection, state: TaskState, now: int, look: bool
    ) -> tuple[list[Due], int | None]:
        """The fires of a task that are due and not decided yet, and when it fires after them."""
        row, spec = state.row, state.spec
        schedule = spec.schedule(row.anchor)
        assert schedule is not None and row.next_fire_at is not None
        due = due_fires(schedule, row.next_fire_at, now, spec.policy)
        # Older ones are decided already, should the database's clock have gone back.
        news = [one for one in due.fires if row.last_fire_at is None or one.at > row.last_fire_at]
        if look:
            news = [one for one in news if not self.upstreams.fired_at(connection, [row.id], one.at)]
        return news, due.next_fire_at

    # -- what every decision about a task begins with

    def refresh(
        self, connection: Connection, rows: Sequence[Any], now: int, ended: Iterable[int] = ()
    ) -> dict[int, TaskState]:
        """The current states of these locked tasks, after everything that follows from fires that have
        ended: queued fires are admitted, downstream tasks and alerts are served. `ended` are runs that may
        have ended while they were queued."""
        states, closed = self.states.load(connection, rows, ended)
        self.admission.drop_gates_of_ended(
            connection, [*(f for s in states.values() for f in s.active), *(c.fire for c in closed)]
        )
        self.admission.admit(connection, states.values(), closed, now)
        self.upstreams.notify_downstream(connection, closed, now)
        self.alerts.alert_failures(connection, closed, now)
        for state in states.values():
            if state.values.get("status") is TaskStatus.PAUSED:
                rule = str(state.values["reason"])
                self.record_undecided(
                    connection, state, Ruling(decision=Decision.SKIP, code="failure", rule=rule), now
                )
                paused = TaskPaused(namespace=state.row.namespace, task=state.row.name, reason=rule)
                self.context.note(connection, paused)
        return states

    def record_undecided(self, connection: Connection, state: TaskState, ruling: Ruling, now: int) -> None:
        """Write a row for each fire that was due and that no dispatcher decided: the task stops firing."""
        if state.row.next_fire_at is None or state.row.next_fire_at > now:
            return
        due, _ = self._undecided(connection, state, now, look=True)
        if due:
            state.values["last_fire_at"] = due[-1].through or due[-1].at
        planned = [PlannedFire(state, d.at, Cause.SCHEDULE, ruling, now, through=d.through) for d in due]
        self.writer.write(connection, planned, now)

    # -- one decision

    def decide(
        self,
        connection: Connection,
        state: TaskState,
        due: Due,
        cause: Cause,
        unwritten: Sequence[PlannedFire],
        now: int,
        since: int,
        why: str = "due, and nothing in its way",
        *,
        after_failure: bool = False,
    ) -> PlannedFire:
        """Apply the policies to one fire, and update the state for the next one.

        `after_failure`: the fire is a person's response to a failure, so `failure_action SKIP` does not
        skip it.
        """
        policy = state.spec.policy
        if due.missed is not None:
            ruling = Ruling(decision=Decision.MISS, code="catch_up", rule=due.missed)
            return PlannedFire(state, due.at, cause, ruling, now, through=due.through)
        code = "caught_up" if due.late else ("on_time" if cause is Cause.SCHEDULE else str(cause))
        if due.late:
            why = f"catch_up_mode {policy.catch_up}: {(now - due.at) / 1e6:.0f} s late"
        situation = state.situation()
        if after_failure:
            situation = replace(situation, failure_skipped=True)
        ruling = rule_on(policy, situation, code, why)
        planned = PlannedFire(state, due.at, cause, ruling, now, since=since)
        if ruling.decision is Decision.SKIP and ruling.code == "failure":
            state.skip_for_failure(ruling.attempt)
        if ruling.cancel_previous:
            self.writer.write(connection, unwritten, now)
            state.active = self._supersede(connection, state, due.at, now)
            state.queued = 0
        if ruling.decision is Decision.QUEUE or (ruling.after_previous and state.active):
            planned.held = Held.PREVIOUS if ruling.after_previous else Held.QUEUE
            state.queued += 1
        elif ruling.decision is Decision.RUN:
            # A fire by hand starts now, also where its time had to move by a microsecond.
            later = jitter_of(policy, state.row.id, due.at) if cause is Cause.SCHEDULE else 0
            planned.start = state.start_at(max(now, due.at + later) if later else now)
            if state.spec.after and cause in WAITS_FOR_OTHERS:
                planned.held = Held.UPSTREAM
            state.active.append(OpenFire(due.at, None, planned.held))
        return planned

    def _supersede(self, connection: Connection, state: TaskState, at: int, now: int) -> list[OpenFire]:
        """Cancel active and queued fires for a newer one; returns those that have yet to end."""
        ids = [run_id for fire in state.active for run_id in fire.run_ids]
        # Fires that were written in this pass are known by their rows only.
        query = select(fires.c.run_id).where(fires.c.open_task == state.row.id, fires.c.backfill_id.is_(None))
        ids = sorted({*ids, *connection.execute(query).scalars()})
        self.gates.forget_gates(connection, ids)
        reason = f"overlap_action CANCEL_PREV: the fire of {iso(at)} takes its place"
        statuses = self.cancels.cancel_many(connection, ids, reason, now)
        for part in chunks(ids):
            mine = update(fires).where(fires.c.run_id.in_(part))
            connection.execute(mine.values(superseded=True, held=None))
        if any(status is RunStatus.RUNNING for status in statuses.values()):
            return [OpenFire(at, None, None)]
        return []

    def wake_all(self, did: bool) -> None:
        if did:
            for kind in ("pending", "delayed", "ended", "cancel"):
                self.context.wakes.fire(kind)


def _merged(passes: Sequence[Fired]) -> Fired:
    """What several passes did."""
    counts: Counter[str] = Counter()
    for one in passes:
        counts.update(one.counts)
    waits = [one.next_in for one in passes if one.next_in is not None]
    lateness = [seconds for one in passes for seconds in one.lateness]
    return Fired(counts, lateness, min(waits, default=None), sum(one.tasks for one in passes))
