"""What must hold at any moment of a batch: its counts are those of its targets, and nothing is stuck.

Counted here from the rows themselves, in other words than the store's. A notice that the aggregator has yet
to take tells of an end that is not counted yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from fusee.batches.model.batch import BatchStatus, batch_status
from fusee.batches.store.intake import HIDDEN, spec_of_batch
from fusee.batches.store.tables import COUNTED, batch_tasks, batches
from fusee.engine.store.tables import outbox
from tests.store.records import every

__all__ = ["broken_batches"]

ENDED_AS = {"succeeded": "success", "failed": "fail", "timed_out": "fail"}
TO_DO = {"retry": "retry_pending", "undo": "rollback_pending", "left": "rollback_fail"}
TOUCHED = ("applied", "unknown")
UNDER_WAY = ("applying", "stopping", "rolling_back")


_TARGETS = select(batch_tasks).order_by(batch_tasks.c.position)
_BATCHES = select(batches).where(batches.c.phase.not_in(HIDDEN))


def broken_batches(connection: Connection, rows: Mapping[int, Any]) -> list[str]:
    """What is wrong with batches, in words; `rows` are the runs by their number."""
    targets: dict[int, list[Any]] = {}
    for target in connection.execute(_TARGETS):
        targets.setdefault(target.batch_id, []).append(target)
    notices = connection.execute(every(outbox)).all()
    uncounted = {notice.run_id for notice in notices if notice.kind == "batch_run"}
    everyone = connection.execute(_BATCHES).all()
    under_way_now = {batch.id for batch in everyone if batch.phase in UNDER_WAY}
    to_be_looked_at = {notice.run_id for notice in notices if notice.kind == "batch"}
    wrong = _changed_twice(everyone, targets, rows)
    for batch in everyone:
        successes = sum(n.many for n in notices if n.kind == "batch" and n.run_id == batch.id)
        told = successes or any(rows[i].owner_id == batch.id for i in uncounted if i in rows)
        mine = targets.get(batch.id, [])
        found = [*_counts(batch, mine, rows, uncounted, successes), *_targets(batch, mine, rows)]
        if not told and batch.phase in UNDER_WAY:
            under_way = batch.running + batch.rollback_running
            waits = batch.waits_for in under_way_now or batch.id in to_be_looked_at
            found += [] if under_way or waits else [f"is {batch.phase}, and nothing is under way"]
        if batch.parked != sum(target.todo == "parked" for target in mine):
            found.append(f"has parked {batch.parked}")
        wrong += [f"batch {batch.id} {what}" for what in found]
    return wrong


def _changed_twice(
    everyone: Sequence[Any], targets: Mapping[int, Sequence[Any]], rows: Mapping[int, Any]
) -> list[str]:
    """Targets that two batches change at the same moment."""
    busy: dict[tuple[str, str, str], int] = {}
    wrong = []
    for batch in everyone:
        for target in targets.get(batch.id, []):
            its = [rows[i] for i in (target.run_id, target.rollback_run_id) if i in rows]
            if any(run.finished_at is None for run in its):
                key = (batch.namespace, batch.target_type, target.target_id)
                if key in busy:
                    wrong.append(f"target {key} is changed by batches {busy[key]} and {batch.id} at once")
                busy[key] = batch.id
    return wrong


def _counts(
    batch: Any, mine: Sequence[Any], rows: Mapping[int, Any], uncounted: set[int], successes: int
) -> list[str]:
    wrong = []
    counted = Counter(_stands(batch, target, rows, uncounted) for target in mine)
    if successes:
        undoes = counted["rollback_success"] + counted["rollback_running"] > 0 and batch.running == 0
        begun, over = ("rollback_running", "rollback_success") if undoes else ("running", "success")
        counted[begun] += successes
        counted[over] -= successes
    kept = {name: getattr(batch, name) for name in COUNTED if getattr(batch, name)}
    if kept != {name: count for name, count in counted.items() if count}:
        wrong.append(f"keeps {kept} and has {dict(counted)}")
    elif batch.status != batch_status(
        {BatchStatus(name): count for name, count in kept.items()}, left=batch.left_applied
    ):
        wrong.append(f"is {batch.status} with {kept}")
    if batch.phase == "done" and kept.get("rollback_success"):
        left = sum(
            target.rollback_run_id is None
            and target.todo is None
            and target.run_id in rows
            and rows[target.run_id].effect in TOUCHED
            for target in mine
        )
        if left != batch.left_applied:
            wrong.append(f"says that {batch.left_applied} targets are left applied, and {left} are")
    if len(mine) != batch.total:
        wrong.append(f"has {len(mine)} of {batch.total} targets")
    spec = spec_of_batch(batch)
    if spec.concurrency and batch.running + batch.rollback_running > spec.concurrency:
        wrong.append(f"has more than {spec.concurrency} under way: {kept}")
    open_ones = ("running", "retry_pending", "rollback_pending", "rollback_running")
    if batch.phase == "done" and any(kept.get(name) for name in (*open_ones, "pending")):
        wrong.append(f"is done with {kept}")
    if (batch.phase == "done") != (batch.finished_at is not None):
        wrong.append(f"is {batch.phase}: {batch.finished_at=}")
    return wrong


def _targets(batch: Any, mine: Sequence[Any], rows: Mapping[int, Any]) -> list[str]:
    wrong = []
    known: set[int | None] = set()
    for target in mine:
        what = f"target {target.target_id}"
        if (target.position < batch.reached) != (target.run_id is not None or target.todo == "parked"):
            wrong.append(f"reached {batch.reached}, and {what} has {target.run_id=}")
        run, undo = rows.get(target.run_id), rows.get(target.rollback_run_id)
        known |= {target.run_id, target.rollback_run_id}
        if undo is not None and (run is None or run.effect not in TOUCHED):
            wrong.append(f"{what} is undone, and was never touched")
        if undo is not None and undo.origin_id != target.run_id:
            wrong.append(f"{what}: run {undo.id} undoes another one")
        if target.todo == "undo" and (run is None or run.finished_at is None):
            wrong.append(f"{what} is to be undone, and still runs")
        if (target.todo in ("retry", "undo", "parked")) != (target.turn is not None):
            wrong.append(f"{what}: {target.todo=} {target.turn=}")
        while run is not None and run.origin_id is not None:  # earlier tries
            known.add(run.origin_id)
            run = rows.get(run.origin_id)
        while undo is not None and undo.origin_id is not None:
            known.add(undo.origin_id)
            undo = rows.get(undo.origin_id)
    strays = [
        run.id
        for run in rows.values()
        if run.kind == "batch"
        and run.owner_id == batch.id
        and run.finished_at is None
        and run.id not in known
    ]
    return [*wrong, f"owns runs {strays} that are no target's"] if strays else wrong


def _stands(batch: Any, target: Any, rows: Mapping[int, Any], uncounted: set[int]) -> str:
    if target.todo is not None and target.todo != "parked":
        return TO_DO[target.todo]
    for run_id, undoes in ((target.rollback_run_id, True), (target.run_id, False)):
        if run_id is None:
            continue
        run = rows[run_id]
        if run.finished_at is None or run_id in uncounted:
            return "rollback_running" if undoes else "running"
        if undoes:
            return "rollback_success" if run.status == "succeeded" else "rollback_fail"
        return ENDED_AS.get(run.status, "cancel")
    return "cancel" if batch.stopped else "pending"
