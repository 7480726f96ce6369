"""What becomes of a fire: the policies of a task, and the one function that applies them.

Overlap decides first (is something of this task under way?), then failure (how did the last one end?), then
the cap. Each answer carries the rule that decided, in words: it is kept with the fire and `explain` tells it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from fusee.values.durations import US
from fusee.values.words import Word

__all__ = [
    "CatchUp",
    "Concurrency",
    "Decision",
    "FailureAction",
    "Overlap",
    "Policy",
    "Ruling",
    "Situation",
    "jitter_of",
    "rule_on",
    "rule_on_head",
    "start_at",
]


class Overlap(Word):
    """When an earlier fire of the task has not ended."""

    ALLOW = "ALLOW"
    """Go on; the cap still counts."""
    SKIP = "SKIP"
    """Leave this fire out."""
    CANCEL_PREV = "CANCEL_PREV"
    """Cancel the earlier ones, started or not; this one starts when they have ended."""
    PARALLEL = "PARALLEL"
    """Start beside them, over the cap if need be; the rule says so."""


class Concurrency(Word):
    """When as many fires as `max_concurrency` are under way."""

    QUEUE = "QUEUE"
    """Stand in line, first in, first out; a full line leaves the fire out."""
    SKIP = "SKIP"
    """Leave this fire out."""
    PARALLEL = "PARALLEL"
    """Start all the same; the rule says so."""


class FailureAction(Word):
    """When the last fire that ran ended badly."""

    RUN_NEW = "RUN_NEW"
    """Start anew; attempts count from 1."""
    SKIP = "SKIP"
    """Leave out the next fire only."""
    RETRY = "RETRY"
    """Start; attempts are counted on."""
    PAUSE = "PAUSE"
    """Pause the task at once, until someone resumes it."""


class CatchUp(Word):
    """When fires were due while nothing could fire them."""

    NONE = "NONE"
    """None runs; each is recorded as missed."""
    COMPACT = "COMPACT"
    """The latest runs for all of them."""
    FULL = "FULL"
    """Each runs, oldest first, within the window and the cap."""


class Decision(Word):
    RUN = "run"
    QUEUE = "queue"
    """It runs when it has come to the head of the line."""
    SKIP = "skip"
    MISS = "miss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a task behaves; durations in seconds."""

    overlap: Overlap = Overlap.ALLOW
    max_concurrency: int = 1
    """Fires under way at once, over all workers; 0 is no cap."""
    concurrency: Concurrency = Concurrency.QUEUE
    queue_depth: int = 100
    failure: FailureAction = FailureAction.RUN_NEW
    catch_up: CatchUp = CatchUp.COMPACT
    catch_up_window: float = 86400.0
    """What was due longer ago than this is missed, whatever the mode."""
    catch_up_cap: int = 100
    """FULL makes up for so many at most, the latest ones."""
    grace: float = 10.0
    """Decided this late, a fire still counts as on time; not longer than until the next one is due."""
    jitter: float = 0.0
    """Start up to so much later, by a fixed share for each fire."""
    rate: float | None = None
    """Starts a second at most; what comes faster is delayed."""
    burst: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How a task stands when one of its fires is decided."""

    active: int = 0
    """Earlier fires that may run and have not ended."""
    queued: int = 0
    """Earlier fires that stand in line."""
    queue_held: bool = False
    """The task is paused: nothing leaves its line until it is resumed."""
    example: int | None = None
    """One of their runs, to name it."""
    failed: bool = False
    """The last fire that ran ended badly (a cancel by policy does not count)."""
    failure_skipped: bool = False
    """A fire was left out because of that already."""
    last_attempt: int = 0

    @property
    def under_way(self) -> bool:
        return self.active + self.queued > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The answer, with the rule that gave it."""

    decision: Decision
    rule: str
    code: str
    """One word for counting: on_time, caught_up, overlap, failure, concurrency, queue_full, catch_up …"""
    cancel_previous: bool = False
    after_previous: bool = False
    """It waits until the canceled ones have ended."""
    attempt: int = 0
    """Attempts counted before its first."""


def rule_on(
    policy: Policy, now: Situation, code: str = "on_time", why: str = "due, and nothing in its way"
) -> Ruling:
    """Decide a fire that is to run; `code` and `why` are what is said when no policy objects."""
    over_cap = cancel = False
    if now.under_way:
        match policy.overlap:
            case Overlap.SKIP:
                return _skip("overlap", f"overlap_action SKIP: {_who(now)}", _counted(policy, now))
            case Overlap.CANCEL_PREV:
                cancel = True
            case Overlap.PARALLEL:
                over_cap = True
            case Overlap.ALLOW:
                pass
            case _:
                assert_never(policy.overlap)
    if (skipped := _skip_after_failure(policy, now)) is not None:
        return skipped
    attempt = _counted(policy, now)
    if cancel:
        return Ruling(
            decision=Decision.RUN,
            code="overlap",
            rule=f"overlap_action CANCEL_PREV: {_who(now)}; canceled, and this one starts when it has ended",
            cancel_previous=True,
            after_previous=True,
            attempt=attempt,
        )
    full = 0 < policy.max_concurrency <= now.active
    in_line = now.queued > 0 and not now.queue_held  # a held line is passed, or nothing could be triggered
    behind = in_line and policy.concurrency is Concurrency.QUEUE and policy.max_concurrency > 0
    if over_cap:
        beyond = f", over max_concurrency {policy.max_concurrency}" if full else ""
        rule = f"overlap_action PARALLEL: {_who(now)}; started beside it{beyond}"
        return Ruling(decision=Decision.RUN, code="overlap", rule=rule, attempt=attempt)
    if not full and not behind:
        return Ruling(decision=Decision.RUN, code=code, rule=_with_failure(policy, now, why), attempt=attempt)
    cap = f"{now.active} of at most {policy.max_concurrency} under way"
    match policy.concurrency:
        case Concurrency.SKIP:
            return _skip("concurrency", f"concurrency_policy SKIP: {cap}", attempt)
        case Concurrency.PARALLEL:
            rule = f"concurrency_policy PARALLEL: {cap}; started over the cap"
            return Ruling(decision=Decision.RUN, code="concurrency", rule=rule, attempt=attempt)
        case Concurrency.QUEUE:
            if now.queued >= policy.queue_depth:
                rule = f"concurrency_policy QUEUE: {cap}, and the line is full ({policy.queue_depth})"
                return _skip("queue_full", rule, attempt)
            rule = f"concurrency_policy QUEUE: {cap}; in line at place {now.queued + 1}"
            if now.queue_held:
                rule += "; the task is paused, its queue is held until it is resumed"
            return Ruling(decision=Decision.QUEUE, code="concurrency", rule=rule, attempt=attempt)
        case _:
            assert_never(policy.concurrency)


def rule_on_head(policy: Policy, now: Situation) -> Ruling:
    """Decide about the first fire in line when there is room for it: it runs, or is left out.

    A failure that was heard while it stood there is about this fire: it is the next one. For the same reason
    its attempts are counted from the last end, not from what was known when it joined the line.
    """
    skipped = _skip_after_failure(policy, now)
    return skipped or Ruling(
        decision=Decision.RUN, code="concurrency", rule="", attempt=_counted(policy, now)
    )


def start_at(policy: Policy, earliest: int, rate_at: int) -> tuple[int, int]:
    """When a fire may start under the rate, and the rate's new state: the time of the next free start."""
    if policy.rate is None:
        return earliest, rate_at
    gap = math.ceil(US / policy.rate)
    start = max(earliest, rate_at - (policy.burst - 1) * gap)
    return start, max(rate_at, start) + gap


def jitter_of(policy: Policy, task_id: int, fire_time: int) -> int:
    """Microseconds by which this fire starts later: the same each time it is asked."""
    most = round(policy.jitter * US)
    # A mix of both numbers, as SplitMix64 does it: neighbours end far apart.
    mixed = (task_id * 0x9E3779B97F4A7C15 + fire_time) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) % (most + 1)


def _counted(policy: Policy, now: Situation) -> int:
    """RETRY and SKIP count attempts on; the others start from none."""
    if now.failed and policy.failure in (FailureAction.RETRY, FailureAction.SKIP):
        return now.last_attempt
    return 0


def _with_failure(policy: Policy, now: Situation, why: str) -> str:
    if not now.failed:
        return why
    match policy.failure:
        case FailureAction.RETRY:
            return f"{why}; failure_action RETRY: the last one failed, attempts are counted on"
        case FailureAction.SKIP:
            return f"{why}; failure_action SKIP: one fire was left out already"
        case FailureAction.RUN_NEW | FailureAction.PAUSE:
            return why
        case _:
            assert_never(policy.failure)


def _skip_after_failure(policy: Policy, now: Situation) -> Ruling | None:
    if not now.failed or policy.failure is not FailureAction.SKIP or now.failure_skipped:
        return None
    rule = "failure_action SKIP: the last fire that ran failed; only this fire is left out"
    return _skip("failure", rule, now.last_attempt + 1)


def _skip(code: str, rule: str, attempt: int) -> Ruling:
    return Ruling(decision=Decision.SKIP, code=code, rule=rule, attempt=attempt)


def _who(now: Situation) -> str:
    run = f"run {now.example}" if now.example is not None else "an earlier fire"
    others = now.active + now.queued - 1
    return f"{run} has not ended" if not others else f"{run} and {others} more have not ended"
