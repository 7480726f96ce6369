"""What must hold at any moment of the record of fires, and of what waits for what.

A notice that the aggregator has yet to take excuses what it will mend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from fusee.engine.store.tables import gates, outbox
from fusee.tasks.store.tables import fires, waits

__all__ = ["broken_records", "every"]

ABOUT_RUNS = ("task", "gate", "workflow")
"""Notices that name a run; the others name its owner."""


_FIRES = select(fires).order_by(fires.c.task_id, fires.c.fire_time, fires.c.shard)


@cache
def every(table: Table) -> Select[Any]:
    """All of its rows. The same statement each time: making one takes longer than running it."""
    return select(table)


def broken_records(connection: Connection, rows: Mapping[int, Any]) -> list[str]:
    """What is wrong with fires, gates and waits, in words; `rows` are the runs by their number."""
    wrong: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    told = {row.run_id for row in connection.execute(every(outbox)) if row.kind in ABOUT_RUNS}
    by_fire: dict[tuple[int, int], list[Any]] = {}
    for fire in connection.execute(_FIRES):
        by_fire.setdefault((fire.task_id, fire.fire_time), []).append(fire)
    held: dict[int, str] = {}
    for (task_id, at), shards in by_fire.items():
        what = f"fire {task_id}/{at}"
        must([fire.shard for fire in shards] == list(range(len(shards))), f"{what} lacks a shard")
        must(len({fire.open_task for fire in shards}) == 1, f"{what} is open in part")
        of = [rows.get(fire.run_id) for fire in shards]
        over = all(run is None or run.finished_at is not None for run in of)
        heard = not any(fire.run_id in told for fire in shards)
        if shards[0].open_task is None:
            must(over, f"{what} is closed, and not all of its runs have ended")
        else:
            must(shards[0].open_task == task_id, f"{what} is open under another task")
            must(not (over and heard), f"{what} has ended, and nobody will close it")
            must(None not in of, f"{what} is open, and a run of it is gone")
        for fire, run in zip(shards, of, strict=True):
            if fire.held is not None:
                held[fire.run_id] = fire.held
                stands = run is not None and (run.status == "blocked" or run.finished_at is not None)
                must(stands, f"{what} is held, and goes on")
    for run in rows.values():
        if run.kind == "task" and run.status == "blocked":
            must(run.id in held, f"run {run.id} is blocked, and nothing says why")

    waiting = Counter(row.run_id for row in connection.execute(every(waits)))
    standing = {row.run_id: row for row in connection.execute(every(gates))}
    must(set(waiting) <= set(standing), f"{sorted(set(waiting) - set(standing))} wait before no gate")
    for gate in standing.values():
        run = rows.get(gate.run_id)
        what = f"the gate before run {gate.run_id}"
        if run is None or run.status != "blocked":
            must(gate.run_id in told, f"{what} stands, and the run is {run and run.status}")
        elif run.kind == "task":
            must(held.get(run.id) == "upstream", f"{what} stands, and its fire is held: {held.get(run.id)}")
            left = gate.needs - gate.ended
            must(left == waiting[run.id], f"{what} waits for {left}, of {waiting[run.id]} that are known")
            must(waiting[run.id] > 0 or run.id in told, f"{what} waits for nothing")
    return wrong
