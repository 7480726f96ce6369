"""Why a task did, or did not, run at a time: from the fire history, or from its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fusee.engine.model.states import RunStatus
from fusee.tasks.model.fire import Cause, Fire, Held
from fusee.tasks.model.policy import Decision
from fusee.tasks.model.task import Task, TaskStatus
from fusee.values.fields import Inner
from fusee.values.kinds import TIME, Kind
from fusee.values.times import iso

__all__ = ["Explanation", "explain"]

_CAUSES = {
    Cause.SCHEDULE: "by its schedule",
    Cause.MANUAL: "by hand",
    Cause.AFTER: "after another task",
    Cause.BACKFILL: "by a backfill",
}
_VERDICTS = {
    Decision.RUN: ("ran", "ran"),
    Decision.QUEUE: ("queued", "was queued before it ran"),
    Decision.SKIP: ("skipped", "was skipped"),
    Decision.MISS: ("missed", "was missed"),
}
_WAITS = {
    Held.QUEUE: ("queued", "is queued"),
    Held.PREVIOUS: ("waiting", "waits for the canceled one before it to end"),
    Held.UPSTREAM: ("waiting", "waits for other tasks"),
    Held.BACKFILL: ("waiting", "waits for its turn in the backfill"),
    None: ("waiting", "waits for a worker"),
}


class _Verdict(Kind):
    """What became of the fire; the last five say why there is no row."""

    shown = Literal[
        "ran", "queued", "waiting", "canceled", "skipped", "missed",
        "not_due", "not_yet", "before_it_was", "not_enabled", "no_record",
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation in one sentence, the rule that decided, and the fires it is based on."""

    task: str
    at: Annotated[int, TIME]
    verdict: Annotated[str, _Verdict()]
    text: str
    rule: str | None
    fires: Annotated[Sequence[Fire], Inner(Fire, "FireOut", many=True)]


def explain(task: Task, at: int, fires: Sequence[Fire], now: int) -> Explanation:
    if fires:
        return _from_history(task, at, fires)
    verdict, text = _without_history(task, at, now)
    return Explanation(task.name, at, verdict, text, None, ())


def _from_history(task: Task, at: int, fires: Sequence[Fire]) -> Explanation:
    first = fires[0]
    verdict, what = _what_became(fires)
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
        f"{task.name} was due at {when} {_CAUSES[first.cause]} and {what}"
        f" ({how}{held}); decided {first.lateness:.1f} s later"
    )
    if first.held is Held.QUEUE and task.status is TaskStatus.PAUSED:
        text += f"; {_stopped(task)}, and its queue is held until it is resumed"
    return Explanation(task.name, at, verdict, text, first.rule, fires)


def _what_became(fires: Sequence[Fire]) -> tuple[str, str]:
    """(verdict, words): what was decided, or what came in between before it started."""
    first = fires[0]
    statuses = {fire.run_status for fire in fires}
    started = (
        any(fire.started_at is not None for fire in fires) or None in statuses
    )  # its row is deleted: it had ended
    if first.decision in (Decision.SKIP, Decision.MISS) or started:
        return _VERDICTS[first.decision]
    if statuses == {RunStatus.CANCELED}:
        return "canceled", "was canceled before it started"
    if statuses == {RunStatus.SKIPPED}:
        return _VERDICTS[Decision.SKIP]
    if first.held is None and statuses == {RunStatus.DELAYED}:
        return "waiting", "waits for its start"
    return _WAITS[first.held]


def _stopped(task: Task) -> str:
    return f"{task.name} is {task.status}" + (f" ({task.reason})" if task.reason else "")


def _without_history(task: Task, at: int, now: int) -> tuple[str, str]:
    schedule = task.schedule()
    when = iso(at)
    if schedule is None:
        what = f"it fires after {', '.join(task.spec.after)}" if task.spec.after else "it fires by hand only"
        return "not_due", f"{task.name} has no schedule ({what}), and did not fire at {when}"
    if not schedule.matches(at):
        following = schedule.next(at)
        then = f"; the next time after it is {iso(following)}" if following is not None else ""
        if task.status is not TaskStatus.ENABLED:
            then = f"; {_stopped(task)}, so nothing follows until that changes"
        return "not_due", f"{task.name} is not due at {when} by its schedule{then}"
    # Fires that were due before the task was stopped have their rows: later ones never were due.
    if task.status is not TaskStatus.ENABLED and at > max(task.last_fire_at or 0, task.anchor):
        why = f": {task.reason}" if task.reason else ""
        since = f" since {iso(task.updated_at)}" if at > task.updated_at else ""
        return "not_enabled", f"{task.name} is {task.status}{since}{why}"
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
            f"{task.name} is due at {when}, and no dispatcher has decided it yet: is one running?",
        )
    return (
        "no_record",
        f"there is no record of {when} any more: it was pruned with its run (dispatcher.retention)",
    )
