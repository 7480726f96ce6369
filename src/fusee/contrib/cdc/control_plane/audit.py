"""Holding a batch against the control plane's own journal: does every target stand as the batch says?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.batches.model.batch import BatchStatus, BatchTask
from fusee.contrib.cdc.control_plane.journal import Entry
from fusee.engine.model.outcome import Effect

__all__ = ["Audit", "audit"]

OURS = "fusee-run-"
"""What the idempotency keys of runs begin with."""


@dataclass(slots=True)
class Audit:
    """What was found, and everything that does not fit."""

    found: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """All is as the batch says."""
        return not self.problems


def audit(
    entries: Iterable[Entry],
    tasks: Iterable[BatchTask],
    wanted: Callable[[BatchTask], Mapping[str, Any]] = lambda task: task.after,
    *,
    rolled_back: bool = False,
) -> Audit:
    """`wanted`: what a job shows when the operation is done. `rolled_back`: the whole batch was, since."""
    first: dict[str, dict[str, Any]] = {}
    now: dict[str, dict[str, Any]] = {}
    touched: Counter[str] = Counter()
    for entry in entries:
        if entry.key is not None and entry.key.startswith(OURS):
            first.setdefault(entry.job, dict(now.get(entry.job, {})))
            touched[entry.job] += 1
        now.setdefault(entry.job, {}).update(entry.after)
    told = Audit()
    for task in tasks:
        job = task.target_id
        shown = now.get(job, {})
        problem = _misfit(task, wanted(task), first.get(job), shown, told)
        reached = task.rollback_run_id is not None
        due = task.effect in (Effect.APPLIED, Effect.UNKNOWN)
        if problem is None and reached and not due:
            problem = f"was rolled back, and had never been touched (effect {task.effect})"
        if problem is None and rolled_back and due and not reached:
            problem = f"was not rolled back, and may have been touched (effect {task.effect})"
        if problem is not None:
            told.problems.append(f"{job} is {task.status} and {problem}")
        told.found["targets"] += 1
        told.found["changes"] += touched[job]
    return told


def _misfit(
    task: BatchTask,
    wanted: Mapping[str, Any],
    first: Mapping[str, Any] | None,
    shown: Mapping[str, Any],
    told: Audit,
) -> str | None:
    """What does not fit, if anything; `first` is what the job showed before it was touched, if it was."""
    match task.status:
        case BatchStatus.SUCCESS:
            told.found["applied" if first is not None else "already so"] += 1
            if any(shown.get(name) != value for name, value in wanted.items()):
                return f"does not show {dict(wanted)}"
        case BatchStatus.ROLLBACK_SUCCESS:
            told.found["restored" if first is not None else "never touched"] += 1
            if first is not None and any(shown.get(name) != first.get(name) for name in wanted):
                return f"does not show what it was: { {name: first.get(name) for name in wanted} }"
        case BatchStatus.ROLLBACK_FAIL:
            told.found["left alone"] += 1
        case _ if task.effect is Effect.UNKNOWN:
            told.found["unsure"] += 1
        case _:
            told.found["untouched"] += 1
            if first is not None:
                return "was touched"
    return None
