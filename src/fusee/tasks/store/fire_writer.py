"""Writing decided fires: their runs, their rows in the fire history and their gates, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select

from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.lanes import Lanes, lane_from
from fusee.engine.store.rows import NewRun, encode
from fusee.engine.store.run_writer import RunWriter
from fusee.engine.store.tables import lanes
from fusee.tasks.model.fire import Cause, Held
from fusee.tasks.model.policy import Decision, Ruling
from fusee.tasks.store.state import TaskState
from fusee.tasks.store.tables import fires
from fusee.tasks.store.tasks import lane_of
from fusee.tasks.store.upstreams import EndedFire, Gated, Upstreams
from fusee.values.chunks import chunks

__all__ = ["FireWriter", "PlannedFire"]

LONGEST_RULE = 500
_PLACING = ("cpu", "memory", "hash_key")
_STARTS = (Decision.RUN, Decision.QUEUE)
_STATUS = {
    Decision.RUN: RunStatus.PENDING,
    Decision.QUEUE: RunStatus.BLOCKED,
    Decision.SKIP: RunStatus.SKIPPED,
    Decision.MISS: RunStatus.MISSED,
}


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
    """The rows of the runs that this fire repeats, whatever the task's shards are now."""
    run_ids: list[int] = field(default_factory=list)

    @property
    def starts(self) -> bool:
        """Whether its runs start, now or later."""
        return self.ruling.decision in _STARTS

    @property
    def shards(self) -> int:
        if self.again:
            return len(self.again)
        return self.state.spec.shards if self.starts else 1


class FireWriter:
    """Inserts the runs, the fires and the gates of what was decided."""

    def __init__(
        self, context: StoreContext, run_writer: RunWriter, lanes: Lanes, upstreams: Upstreams
    ) -> None:
        self.context = context
        self.run_writer = run_writer
        self.lanes = lanes
        self.upstreams = upstreams

    def add_shards(self, connection: Connection, run_id: int, others: Sequence[int]) -> None:
        """These runs belong to the fire of that run, if a task fired it: as its next shards."""
        fire = connection.execute(select(fires).where(fires.c.run_id == run_id)).one_or_none()
        if fire is not None:
            row = dict(fire._mapping)
            shards = [{**row, "shard": n, "run_id": other} for n, other in enumerate(others, 1)]
            connection.execute(insert(fires), shards)

    def write(self, connection: Connection, planned: Sequence[PlannedFire], now: int) -> None:
        """Write those of the planned fires that are not written yet."""
        planned = [one for one in planned if not one.run_ids]
        lane_ids = self._lane_ids(connection, {_lane(one.state) for one in planned})
        by_namespace: dict[str, list[PlannedFire]] = {}
        for one in planned:
            by_namespace.setdefault(one.state.row.namespace, []).append(one)
        for namespace, some in by_namespace.items():
            new = [run for one in some for run in _new_runs(one, lane_ids[_lane(one.state)])]
            ids = iter(self.run_writer.insert_runs(connection, new, now, namespace))
            for one in some:
                one.run_ids = [next(ids) for _ in range(one.shards)]
        for part in chunks([row for one in planned for row in _fire_rows(one, now)]):
            connection.execute(insert(fires), part)
        self.upstreams.create_gates(
            connection,
            [
                Gated(one.state.row.id, one.at, one.since, one.state.spec.trigger_rule, one.run_ids)
                for one in planned
                if one.held is Held.UPSTREAM
            ],
        )
        # Fires that will never run count for the tasks that wait for them, too.
        over = [
            EndedFire(one.state.row.id, one.state.row.name, one.at, False, one.through)
            for one in planned
            if not one.starts
        ]
        if over:
            self.upstreams.count_ended(connection, over, now)

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


def _lane(state: TaskState) -> Lane:
    return lane_of(state.spec, state.row.namespace)


def _new_runs(one: PlannedFire, lane_id: int) -> list[NewRun]:
    """The runs of a fire, one for each shard; the first carries the idempotency key."""
    spec = one.state.spec
    status = RunStatus.BLOCKED if one.held is not None else _STATUS[one.ruling.decision]
    run = NewRun(
        lane_id=lane_id,
        status=status,
        priority=spec.priority,
        due_at=one.start,
        kind="task",
        reason=_reason(one, status),
        attempt=one.ruling.attempt,
    )
    if one.again:
        new = [
            run._replace(
                lane_id=again.lane_id,
                priority=again.priority,
                payload=again.payload,
                options=again.options,
                origin_id=again.id,
            )
            for again in one.again
        ]
    else:
        payload = spec.run_payload(one.payload)
        options: dict[str, Any] = {"task": spec.name, "fire_time": one.at}
        if spec.timeout is not None:
            options["timeout"] = spec.timeout
        if spec.retry is not None:
            options["retry"] = spec.retry.to_dict()
        options |= {name: value for name in _PLACING if (value := getattr(spec, name)) is not None}
        run = run._replace(payload=encode(payload, "payload") if payload else None)
        new = []
        for shard in range(one.shards):
            if one.shards > 1:
                options |= {"shard_index": shard, "shard_total": one.shards}
            new.append(run._replace(options=encode(options, "options")))
    if one.idempotency_key is not None:
        new[0] = new[0]._replace(idempotency_key=one.idempotency_key, request_digest=one.request_digest)
    return new


def _reason(one: PlannedFire, status: RunStatus) -> str | None:
    """Why a run does not start at once."""
    if status is RunStatus.PENDING:
        return None
    if one.held is Held.UPSTREAM:
        return f"waits for {', '.join(one.state.spec.after)}"
    return one.ruling.rule


def _fire_rows(one: PlannedFire, now: int) -> list[dict[str, Any]]:
    state, ruling = one.state, one.ruling
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
            "open_task": state.row.id if one.starts else None,
            "held": one.held,
            "backfill_id": one.backfill_id,
            "superseded": False,
        }
        for shard, run_id in enumerate(one.run_ids)
    ]
