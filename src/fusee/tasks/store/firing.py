"""Deciding fires and writing them down: the record, the runs and the task's next time, in one transaction.

Any number of dispatchers may do this at once. A task's row is locked while it is decided about; a fire's row
is unique by task, time and shard, and the time at which the task fires next moves on with it. Only the
database's clock says what is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.gates import Gates
from fusee.engine.store.lanes import Lanes, lane_from
from fusee.engine.store.rows import encode
from fusee.engine.store.run_writer import Birth, RunWriter
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.tables import lanes
from fusee.engine.store.totals import FIRES_MISSED, add_to_totals
from fusee.events import TaskPaused
from fusee.tasks.model.catch_up import Due, due_fires
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, Ruling, jitter_of, rule_on, start_at
from fusee.tasks.model.task import TaskStatus
from fusee.tasks.store.admission import WAITS_FOR_OTHERS, Admission
from fusee.tasks.store.alerts import TaskAlerts
from fusee.tasks.store.regions import TaskRegions, served_by
from fusee.tasks.store.state import ClosedFire, OpenFire, TaskState, TaskStates
from fusee.tasks.store.tables import fires, tasks
from fusee.tasks.store.tasks import lane_of
from fusee.tasks.store.upstreams import EndedFire, Gated, Upstreams
from fusee.values.chunks import chunks
from fusee.values.times import iso
from fusee.workflows.model.action import batch_payload

__all__ = ["Fired", "Firing", "PlannedFire"]

MOST_ROWS = 5000
"""Fires written in one transaction, or a few more: an outage of many tasks is made up for in several."""
LONGEST_RULE = 500
PLACE = "scan"
MISSED = ("catch_up", "caught_up")
"""Codes of fires that no dispatcher decided in time."""
_PLACING = ("cpu", "memory", "hash_key")

_STATUS = {
    Decision.RUN: RunStatus.PENDING,
    Decision.QUEUE: RunStatus.BLOCKED,
    Decision.SKIP: RunStatus.SKIPPED,
    Decision.MISS: RunStatus.MISSED,
}


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


@dataclass(slots=True)
class PlannedFire:
    """A fire that was decided and is not written yet."""

    state: TaskState
    at: int
    cause: Cause
    ruling: Ruling
    start: int
    held: Held | None = None
    through: int | None = None
    payload: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None
    backfill_id: int | None = None
    since: int = 0
    again: Sequence[Any] = ()
    """The rows of the runs that this fire does again, whatever the task's shards are now."""
    run_ids: list[int] = field(default_factory=list)

    @property
    def shards(self) -> int:
        if self.again:
            return len(self.again)
        return self.state.spec.shards if self.ruling.decision in (Decision.RUN, Decision.QUEUE) else 1


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
        regions: TaskRegions,
        run_writer: RunWriter,
        lanes: Lanes,
    ) -> None:
        self.context = context
        self.states = states
        self.gates = gates
        self.cancels = cancels
        self.upstreams = upstreams
        self.admission = admission
        self.alerts = alerts
        self.regions = regions
        self.run_writer = run_writer
        self.lanes = lanes

    async def fire_due(self, limit: int = 500, region: str = "") -> Fired:
        """Decide every fire that is due, of up to `limit` tasks; earliest first. With a region, only of tasks
        of that region, and of those that have none."""
        try:
            fired = await self._fire_all_due(limit, region)
        except Exception as error:
            if not is_about_a_row(error):
                raise
            ids = await self.context.database.read(
                lambda connection: self._due_ids(connection, limit, region)
            )
            fired = await self._fire_one_by_one(ids, region)
        if again := self.context.set_aside.due(PLACE):
            fired = _merged([fired, await self._fire_one_by_one(again, region)])
        self.wake_all(bool(fired))
        return fired

    async def _fire_all_due(self, limit: int, region: str) -> Fired:
        try:
            return await self.context.write_aloud(
                lambda connection: self._fire_due(connection, limit, region)
            )
        except IntegrityError:
            # Such a fire is on record: the database's clock went back meanwhile. This time, look first.
            return await self.context.write_aloud(
                lambda connection: self._fire_due(connection, limit, region, look=True)
            )

    async def _fire_one_by_one(self, ids: Sequence[int], region: str) -> Fired:
        """Each task in a transaction of its own; those that cannot be fired are set aside."""

        def fire(connection: Connection, task_id: int) -> Fired:
            return self._fire_due(connection, 1, region, look=True, only=task_id)

        return _merged(
            await self.context.set_aside.one_by_one(self.context.write_aloud, PLACE, ids, "task", fire)
        )

    def _due(self, now: int, limit: int, region: str, columns: Sequence[Any]) -> Select[Any]:
        return (
            select(*columns)
            .where(tasks.c.next_fire_at <= now, *served_by(region), *self._not_set_aside())
            .order_by(tasks.c.next_fire_at, tasks.c.id)
            .limit(limit)
        )

    def _not_set_aside(self) -> Sequence[ColumnElement[bool]]:
        aside = self.context.set_aside.keys(PLACE)
        return (tasks.c.id.not_in(aside),) if aside else ()

    def _due_ids(self, connection: Connection, limit: int, region: str) -> list[int]:
        query = self._due(self.context.now(connection), limit, region, [tasks.c.id])
        return list(connection.execute(query).scalars())

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
        query = self._due(now, limit, region, [tasks])
        if only is not None:
            query = select(tasks).where(tasks.c.id == only, tasks.c.next_fire_at <= now)
        skip_locked = self.context.database.capabilities.skip_locked
        rows = connection.execute(query.with_for_update(skip_locked=skip_locked)).all()
        if not rows:
            return Fired({}, next_in=self._next_in(connection, now, region))
        if region:
            rows = self.regions.mine(connection, rows, region)
            if not rows:
                return Fired({}, next_in=0.0)  # the column told wrong, and is right now
        states, closed = self.states.load(connection, rows)
        self.on_fires_ended(connection, states, closed, now)
        planned: list[PlannedFire] = []
        decided = rows_made = 0
        for state in states.values():
            if rows_made > MOST_ROWS:
                break  # the time of the rest stays as it is: the next pass finds them
            before = len(planned)
            self._decide_due(connection, state, planned, now, look)
            rows_made += sum(one.shards for one in planned[before:])
            decided += 1
        self.write(connection, planned, now)
        self.save(connection, states.values())
        counts = Counter(one.ruling.code for one in planned)
        late = Counter(
            (one.state.row.namespace, one.ruling.code) for one in planned if one.ruling.code in MISSED
        )
        add_to_totals(connection, FIRES_MISSED, late)
        ran = (Decision.RUN, Decision.QUEUE)
        lateness = [(now - one.at) / 1_000_000 for one in planned if one.ruling.decision in ran]
        return Fired(counts, lateness, tasks=decided)

    def _decide_due(
        self, connection: Connection, state: TaskState, planned: list[PlannedFire], now: int, look: bool
    ) -> None:
        """Add what is decided about each of its fires to `planned`, and move the task's next time on."""
        if state.status is not TaskStatus.ENABLED:
            return  # paused by what was heard just now: `values` says so
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
        # Decided already, should the database's clock have gone back meanwhile.
        news = [one for one in due.fires if row.last_fire_at is None or one.at > row.last_fire_at]
        if look:
            news = [one for one in news if not self.upstreams.fired_at(connection, [row.id], one.at)]
        return news, due.next_fire_at

    def record_undecided(self, connection: Connection, state: TaskState, ruling: Ruling, now: int) -> None:
        """A task stops firing by itself: what was due by then, and nobody came to, leaves its rows too."""
        if state.row.next_fire_at is None or state.row.next_fire_at > now:
            return
        due, _ = self._undecided(connection, state, now, look=True)
        if due:
            state.values["last_fire_at"] = due[-1].through or due[-1].at
        planned = [PlannedFire(state, d.at, Cause.SCHEDULE, ruling, now, through=d.through) for d in due]
        self.write(connection, planned, now)

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
        """Apply the policies to one fire, and let the state know for the next.

        `after_failure`: the fire is someone's response to a failure, so `failure_action SKIP` lets it pass.
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
            self.write(connection, [one for one in unwritten if not one.run_ids], now)
            state.active = self._supersede(connection, state, due.at, now)
            state.queued = 0
        if ruling.decision is Decision.QUEUE or (ruling.after_previous and state.active):
            planned.held = Held.PREVIOUS if ruling.after_previous else Held.QUEUE
            state.queued += 1
        elif ruling.decision is Decision.RUN:
            # By hand is now, also where its time had to move on by a microsecond.
            later = jitter_of(policy, state.row.id, due.at) if cause is Cause.SCHEDULE else 0
            earliest = max(now, due.at + later) if later else now
            planned.start, state.rate_at = start_at(policy, earliest, state.rate_at)
            if policy.rate is not None:
                state.values["rate_at"] = state.rate_at
            if state.spec.after and cause in WAITS_FOR_OTHERS:
                planned.held = Held.UPSTREAM
            state.active.append(OpenFire(due.at, None, planned.held))
        return planned

    def _supersede(self, connection: Connection, state: TaskState, at: int, now: int) -> list[OpenFire]:
        """Cancel what is under way and in line for a newer fire; answers what has yet to end."""
        ids = [run_id for fire in state.active for run_id in fire.run_ids]
        # Those written in this very pass are known by their rows only.
        query = select(fires.c.run_id).where(fires.c.open_task == state.row.id, fires.c.backfill_id.is_(None))
        ids = sorted({*ids, *connection.execute(query).scalars()})
        self.gates.forget_gates(connection, ids)
        reason = f"overlap_action CANCEL_PREV: the fire of {iso(at)} takes its place"
        statuses = self.cancels.cancel_many(connection, ids, reason, now)
        for chunk in chunks(ids):
            part = fires.c.run_id.in_(chunk)
            connection.execute(update(fires).where(part).values(superseded=True, held=None))
        if any(status is RunStatus.RUNNING for status in statuses.values()):
            return [OpenFire(at, None, None)]
        return []

    # -- writing

    def write(self, connection: Connection, planned: Sequence[PlannedFire], now: int) -> None:
        """Runs, fires and gates of what was decided; each once."""
        planned = [one for one in planned if not one.run_ids]
        lane_ids = self._lane_ids(connection, {_lane(one.state) for one in planned})
        by_namespace: dict[str, list[PlannedFire]] = {}
        for one in planned:
            by_namespace.setdefault(one.state.row.namespace, []).append(one)
        for namespace, some in by_namespace.items():
            births = [birth for one in some for birth in _new_runs(one, lane_ids[_lane(one.state)])]
            ids = iter(self.run_writer.insert_runs(connection, births, now, namespace))
            for one in some:
                one.run_ids = [next(ids) for _ in range(one.shards)]
        rows = [row for one in planned for row in _fire_rows(one, now)]
        for part in chunks(rows):
            connection.execute(insert(fires), part)
        self.upstreams.create_gates(
            connection,
            [
                Gated(one.state.row.id, one.at, one.since, one.state.spec.trigger_rule, one.run_ids)
                for one in planned
                if one.held is Held.UPSTREAM
            ],
        )
        self._count_never_run(connection, planned, now)

    def _count_never_run(self, connection: Connection, planned: Sequence[PlannedFire], now: int) -> None:
        """Who waits for a task hears also of its fires that will never run."""
        over = [one for one in planned if one.ruling.decision in (Decision.SKIP, Decision.MISS)]
        if not over:
            return
        ends = [EndedFire(one.state.row.id, one.state.row.name, one.at, False, one.through) for one in over]
        self.upstreams.count_ended(connection, ends, now)

    def save(self, connection: Connection, states: Iterable[TaskState]) -> None:
        """The tasks' rows; those that change in the same columns in one statement."""
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for state in states:
            values = state.values
            if values:
                row = {"b_id": state.row.id, **{f"b_{name}": value for name, value in values.items()}}
                alike.setdefault(tuple(sorted(values)), []).append(row)
        for names, rows in alike.items():
            change = update(tasks).where(tasks.c.id == bindparam("b_id"))
            connection.execute(change.values({name: bindparam(f"b_{name}") for name in names}), rows)

    def on_fires_ended(
        self, connection: Connection, states: Mapping[int, TaskState], closed: Sequence[ClosedFire], now: int
    ) -> None:
        """What follows from fires that have ended."""
        self.admission.drop_gates_of_ended(
            connection, [*(f for s in states.values() for f in s.active), *(c.fire for c in closed)]
        )
        self.admission.admit(connection, states.values(), closed, now)
        self.upstreams.notify_downstream(connection, closed, now)
        self.alerts.alert_failures(connection, closed, now)
        for state in states.values():
            if state.values.get("status") is TaskStatus.PAUSED:
                rule = str(state.values["reason"])
                ruling = Ruling(decision=Decision.SKIP, code="failure", rule=rule)
                self.record_undecided(connection, state, ruling, now)
                paused = TaskPaused(namespace=state.row.namespace, task=state.row.name, reason=rule)
                self.context.note(connection, paused)

    def _next_in(self, connection: Connection, now: int, region: str = "") -> float | None:
        earliest = select(func.min(tasks.c.next_fire_at)).where(*served_by(region), *self._not_set_aside())
        next_at = connection.execute(earliest).scalar_one_or_none()
        if next_at is None:
            return None
        # Due and yet not taken, it is locked by someone: ask again soon, not at once.
        return (next_at - now) / 1_000_000 if next_at > now else 0.05

    def _lane_ids(self, connection: Connection, wanted: set[Lane]) -> dict[Lane, int]:
        """Lanes of any namespace; remembered once they are known to be committed."""
        seen = self.context.lane_map.seen
        missing = [lane for lane in wanted if lane not in seen]
        if missing:
            names = {lane.handler for lane in missing}
            query = select(lanes).where(lanes.c.handler.in_(names))
            for row in connection.execute(query):
                seen[lane_from(row)] = row.id
        return {lane: seen[lane] if lane in seen else self.lanes.lane_id(connection, lane) for lane in wanted}

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


def _lane(state: TaskState) -> Lane:
    return lane_of(state.spec, state.row.namespace)


def _new_runs(one: PlannedFire, lane_id: int) -> list[Birth]:
    spec, ruling = one.state.spec, one.ruling
    status = RunStatus.BLOCKED if one.held is not None else _STATUS[ruling.decision]
    if one.again:
        return [
            Birth(
                lane_id=again.lane_id,
                status=status,
                priority=again.priority,
                due_at=one.start,
                payload=again.payload,
                options=again.options,
                kind="task",
                reason=_reason(one, status),
                attempt=ruling.attempt,
                origin_id=again.id,
                idempotency_key=one.idempotency_key if again is one.again[0] else None,
                request_digest=one.request_digest if again is one.again[0] else None,
            )
            for again in one.again
        ]
    payload: dict[str, Any] = dict(spec.payload)
    if spec.batch is not None:
        payload = batch_payload(spec.batch, payload)
    if spec.workflow is not None:
        payload = {"workflow": spec.workflow, "params": dict(spec.payload)}
    if one.payload:
        if spec.batch is not None:
            payload["batch"] |= one.payload
        elif spec.workflow is not None:
            payload["params"] |= one.payload
        elif spec.executor == "http":
            payload["params"] = {**(payload.get("params") or {}), **one.payload}
        else:
            payload |= one.payload
    options: dict[str, Any] = {"task": spec.name, "fire_time": one.at}
    if spec.timeout is not None:
        options["timeout"] = spec.timeout
    if spec.retry is not None:
        options["retry"] = spec.retry.to_dict()
    options |= {name: value for name in _PLACING if (value := getattr(spec, name)) is not None}
    text = encode(payload, "payload") if payload else None
    births = []
    for shard in range(one.shards):
        if one.shards > 1:
            options |= {"shard_index": shard, "shard_total": one.shards}
        births.append(
            Birth(
                lane_id=lane_id,
                status=status,
                priority=spec.priority,
                due_at=one.start,
                payload=text,
                options=encode(options, "options"),
                kind="task",
                reason=_reason(one, status),
                attempt=ruling.attempt,
                idempotency_key=one.idempotency_key if shard == 0 else None,
                request_digest=one.request_digest if shard == 0 else None,
            )
        )
    return births


def _reason(one: PlannedFire, status: RunStatus) -> str | None:
    """Why a run does not simply stand in line."""
    if status is RunStatus.PENDING:
        return None
    if one.held is Held.UPSTREAM:
        return f"waits for {', '.join(one.state.spec.after)}"
    return one.ruling.rule


def _fire_rows(one: PlannedFire, now: int) -> list[dict[str, Any]]:
    state, ruling = one.state, one.ruling
    under_way = ruling.decision in (Decision.RUN, Decision.QUEUE)
    return [
        {
            "task_id": state.row.id,
            "fire_time": one.at,
            "shard": shard,
            "namespace": state.row.namespace,
            "cause": one.cause,
            "decision": ruling.decision,
            "code": ruling.code,
            "rule": ruling.rule[:LONGEST_RULE],
            "run_id": run_id,
            "decided_at": now,
            "through": one.through,
            "open_task": state.row.id if under_way else None,
            "held": one.held,
            "backfill_id": one.backfill_id,
            "superseded": False,
        }
        for shard, run_id in enumerate(one.run_ids)
    ]
