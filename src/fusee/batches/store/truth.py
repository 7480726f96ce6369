"""What is true of a batch at this moment, beyond the counts that are kept.

The kept counts call a target running from when it has a run until the end of that run is counted: anything
finer would cost a write about the batch for each start and each automatic retry. Whoever looks at a batch is
told how many of those really run, and how many wait for a worker or for their next attempt. The cost grows
with the targets under way, not with the size of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, select

from fusee.batches.model.batch import Batch, BatchStatus, batch_status
from fusee.batches.model.spec import handler_of
from fusee.batches.store.exclusion import UNDER_WAY
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.broker_tables import dispatched
from fusee.engine.store.own_lanes import own_lanes
from fusee.engine.store.rows import decode
from fusee.engine.store.tables import delayed, lanes, queues, ready, runs, sessions
from fusee.values.chunks import chunks

__all__ = ["as_it_is", "with_those_shown_as"]

B = BatchStatus

_SHOWN_AS = {B.RUNNING: (B.PENDING, B.RETRY_PENDING), B.ROLLBACK_RUNNING: (B.ROLLBACK_PENDING,)}
"""Kept status → what it may turn out to be."""


def with_those_shown_as(wanted: Sequence[BatchStatus]) -> set[BatchStatus]:
    """The statuses under which batches may be stored that are shown as one of these."""
    return {*wanted, *(kept for kept, shown in _SHOWN_AS.items() if set(shown) & set(wanted))}


def as_it_is(connection: Connection, batch: Batch, now: int) -> Batch:
    if batch.phase not in UNDER_WAY or not batch.counts[B.RUNNING] + batch.counts[B.ROLLBACK_RUNNING]:
        return batch
    counts = dict(batch.counts)
    # Nothing is undone before everything that was applied has ended: one of the two at a time.
    kept = B.RUNNING if counts[B.RUNNING] else B.ROLLBACK_RUNNING
    for status, many in _waiting(connection, batch, undoes=kept is B.ROLLBACK_RUNNING).items():
        moved = min(many, counts[kept])  # some may have been claimed, or have ended, since
        counts[kept] -= moved
        counts[status] += moved
    waits = None if counts[kept] else _waits_for_whom(connection, batch, now)
    status = batch_status(counts, left=batch.left_applied)
    return replace(batch, counts=counts, status=status, waiting=waits)


def _waiting(connection: Connection, batch: Batch, *, undoes: bool) -> Counter[BatchStatus]:
    """How many of its runs wait, and as what."""
    lane = select(lanes.c.id).where(*_home(batch))
    lane_ids = [*connection.execute(lane).scalars(), *own_lanes(connection)]
    places: list[Select[Any]] = [
        select(ready.c.run_id).where(ready.c.lane_id.in_(lane_ids)),
        select(delayed.c.run_id).where(delayed.c.lane_id.in_(lane_ids)),
        select(dispatched.c.run_id).where(dispatched.c.lane_id.in_(lane_ids)),
    ]
    ids = sorted({run_id for place in places for run_id in connection.execute(place).scalars()})
    found: Counter[BatchStatus] = Counter()
    for part in chunks(ids):
        query = select(runs.c.attempt, runs.c.origin_id).where(
            runs.c.id.in_(part),
            runs.c.kind == "batch",
            runs.c.owner_id == batch.id,
            runs.c.status.in_((RunStatus.PENDING, RunStatus.DELAYED, RunStatus.DISPATCHED)),
        )
        for run in connection.execute(query):
            again = run.attempt > 0 or run.origin_id is not None
            found[B.ROLLBACK_PENDING if undoes else B.RETRY_PENDING if again else B.PENDING] += 1
    return found


def _home(batch: Batch) -> tuple[Any, ...]:
    return (
        lanes.c.namespace == batch.namespace,
        lanes.c.queue == batch.spec.queue,
        lanes.c.handler == handler_of(batch.spec.target_type, batch.spec.batch_type),
        lanes.c.region == batch.spec.region,
    )


def _waits_for_whom(connection: Connection, batch: Batch, now: int) -> str | None:
    """Why none of its targets runs, where the reason is a paused queue or that no worker can take them."""
    spec = batch.spec
    queue = select(queues.c.paused).where(queues.c.namespace == batch.namespace, queues.c.name == spec.queue)
    if connection.execute(queue).scalar_one_or_none():
        return f"queue {spec.queue!r} is paused: `fusee queue resume {spec.queue}`"
    alive = select(sessions.c.abilities).where(
        sessions.c.namespace == batch.namespace,
        sessions.c.state == SessionState.ALIVE,
        sessions.c.expires_at >= now,
    )
    handler = handler_of(spec.target_type, spec.batch_type)
    for text in set(connection.execute(alive).scalars()):
        able = decode(text)
        serves = "*" in able["queues"] or spec.queue in able["queues"]
        if serves and handler in able["handlers"] and spec.region in ("", able["region"]):
            return None
    region = f" in region {spec.region!r}" if spec.region else ""
    return (
        f"no live worker{region} serves operation {spec.target_type}/{spec.batch_type} from queue"
        f" {spec.queue!r}: start one"
    )
