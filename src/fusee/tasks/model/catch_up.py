"""Which fires are due, which of them are late, and what the catch-up mode makes of those."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile

from fusee.tasks.model.policy import CatchUp, Policy
from fusee.tasks.model.schedule import Schedule
from fusee.values.durations import US

__all__ = ["Due", "DueFires", "due_fires"]

MOST_ROWS = 1000
"""After an outage this many fires of one task, up to twice as many, get a row each; one row covers all older
fires."""


@dataclass(frozen=True, slots=True)
class Due:
    """One fire that is due; `missed` says why it does not run."""

    at: int
    missed: str | None = None
    late: bool = False
    through: int | None = None
    """Its row covers every fire from `at` to this time."""


@dataclass(frozen=True, slots=True)
class DueFires:
    fires: list[Due]
    next_fire_at: int | None


def due_fires(schedule: Schedule, first: int, now: int, policy: Policy) -> DueFires:
    """All fires from `first` (itself a fire) to `now`, oldest first, judged by the catch-up mode."""
    times = [
        first,
        *islice(takewhile(lambda at: at <= now, schedule.fires(first)), MOST_ROWS + policy.catch_up_cap),
    ]
    upcoming = schedule.next(times[-1])
    older: Due | None = None
    if upcoming is not None and upcoming <= now:  # a long outage of a frequent task
        older, times = _after_an_age(schedule, times, now, MOST_ROWS + policy.catch_up_cap)
        upcoming = schedule.next(times[-1]) if times else schedule.next(now)
    # The grace never exceeds the task's own period: a fire is on time until the next one is due.
    on_time = [Due(at) for at in times[-1:] if at >= now - round(policy.grace * US)]
    judged = _judge(times[: len(times) - len(on_time)], now, policy, made_up_for=bool(on_time))
    return DueFires(([older] if older else []) + judged + on_time, upcoming)


def _judge(late: list[int], now: int, policy: Policy, *, made_up_for: bool) -> list[Due]:
    """`made_up_for`: a fire that is on time follows, and runs for those that COMPACT misses."""
    horizon = now - round(policy.catch_up_window * US)
    within = [at for at in late if at >= horizon]
    window = f"catch_up_window {policy.catch_up_window:g} s: due longer ago than that"
    missed = [Due(at, window, True) for at in late if at < horizon]
    match policy.catch_up:
        case CatchUp.NONE:
            rule = "catch_up_mode NONE: nothing could fire it when it was due"
            return missed + [Due(at, rule, True) for at in within]
        case CatchUp.COMPACT:
            rule = "catch_up_mode COMPACT: a later fire runs for all that were missed"
            runs = 0 if made_up_for else 1
            return (
                missed
                + [Due(at, rule, True) for at in within[: len(within) - runs]]
                + [Due(at, late=True) for at in within[len(within) - runs :]]
            )
        case CatchUp.FULL:
            over = max(0, len(within) - policy.catch_up_cap)
            rule = f"catch_up_cap {policy.catch_up_cap}: of {len(within)} missed ones only the latest run"
            return (
                missed
                + [Due(at, rule, True) for at in within[:over]]
                + [Due(at, late=True) for at in within[over:]]
            )


def _after_an_age(schedule: Schedule, times: list[int], now: int, most: int) -> tuple[Due, list[int]]:
    """For too many fires: the last `most`, up to twice as many, and one row for all before them.

    The period that holds them is found by bisection: a schedule may have been busy long ago and quiet since.
    """
    stretch = (times[-1] - times[0]) // (len(times) - 1) * most * 3 // 2
    few, many = 0, now - times[0]  # stretches that hold too few, and too many or all
    while True:
        start = max(times[0], now - stretch)
        last = list(islice(takewhile(lambda at: at <= now, schedule.fires(start)), 2 * most + 1))
        if len(last) > 2 * most:
            many = stretch
        elif len(last) < most and start > times[0]:
            few = stretch
        else:
            break
        stretch = (few + many) // 2
    rule = f"missed in a long outage: this row stands for every fire up to the last {len(last)}"
    return Due(times[0], rule, True, through=start), last
