"""Why a task did, or did not, run at a time: from the record, or from what the task is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusee.model.fire import Cause, Fire
from fusee.model.policy import Decision
from fusee.model.task import Task, TaskStatus
from fusee.model.times import iso

__all__ = ["Explanation", "explain"]

_CAUSES = {
    Cause.SCHEDULE: "by its schedule",
    Cause.MANUAL: "by hand",
    Cause.AFTER: "after another task",
    Cause.BACKFILL: "by a backfill",
}
_DECISIONS = {
    Decision.RUN: "ran",
    Decision.QUEUE: "stood in line",
    Decision.SKIP: "was skipped",
    Decision.MISS: "was missed",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer in one sentence, the rule that decided, and the rows it stands on."""

    task: str
    at: int
    verdict: str
    """ran, queued, skipped, missed; or no row: not_due, not_yet, before_it_was, not_enabled, no_record."""
    text: str
    rule: str | None
    fires: Sequence[Fire]


def explain(task: Task, at: int, fires: Sequence[Fire], now: int) -> Explanation:
    if fires:
        return _from_record(task, at, fires)
    verdict, text = _without_record(task, at, now)
    return Explanation(task.name, at, verdict, text, None, ())


def _from_record(task: Task, at: int, fires: Sequence[Fire]) -> Explanation:
    first = fires[0]
    verdict = {
        Decision.RUN: "ran",
        Decision.QUEUE: "queued",
        Decision.SKIP: "skipped",
        Decision.MISS: "missed",
    }[first.decision]
    when = iso(first.fire_time)
    if first.through is not None:
        return Explanation(
            task.name, at, verdict, f"{task.name} missed it, with all from {when} to {iso(first.through)}",
            first.rule, fires,
        )  # fmt: skip
    how = f"run {first.run_id}"
    if len(fires) > 1:
        how = f"{len(fires)} runs from {first.run_id} on"
    if first.run_status is not None:
        how += f", {first.run_status} now" if len(fires) == 1 else ""
    held = f", held: {first.held}" if first.held is not None else ""
    text = (
        f"{task.name} was due at {when} {_CAUSES[first.cause]} and {_DECISIONS[first.decision]}"
        f" ({how}{held}); decided {first.lateness:.1f} s later"
    )
    return Explanation(task.name, at, verdict, text, first.rule, fires)


def _without_record(task: Task, at: int, now: int) -> tuple[str, str]:
    schedule = task.schedule()
    when = iso(at)
    if schedule is None:
        what = f"it fires after {', '.join(task.spec.after)}" if task.spec.after else "it fires by hand only"
        return "not_due", f"{task.name} has no schedule ({what}), and did not fire at {when}"
    if not schedule.matches(at):
        following = schedule.next(at)
        then = f"; the next time after it is {iso(following)}" if following is not None else ""
        return "not_due", f"{task.name} is not due at {when} by its schedule{then}"
    if task.status is not TaskStatus.ENABLED and at > task.updated_at:
        why = f": {task.reason}" if task.reason else ""
        return "not_enabled", f"{task.name} is {task.status} since {iso(task.updated_at)}{why}"
    if at > now:
        return "not_yet", f"{task.name} will be due at {when}, which has not come yet"
    if at <= task.created_at:
        return "before_it_was", f"{task.name} was made at {iso(task.created_at)}, after {when}"
    if at <= task.anchor:
        return (
            "before_it_was",
            f"{task.name} was resumed, enabled or given another schedule at {iso(task.anchor)}: what was due"
            " before that, and was not decided by then, does not fire",
        )
    if task.next_fire_at is not None and at >= task.next_fire_at:
        return (
            "not_yet",
            f"{task.name} is due at {when}, and no dispatcher has come to it yet: is one running?",
        )
    return (
        "no_record",
        f"there is no record of {when} any more: it was pruned with its run (dispatcher.retention)",
    )
