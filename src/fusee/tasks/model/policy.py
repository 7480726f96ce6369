"""The policies of a task, and the one function that applies them to a fire.

Overlap decides first (has an earlier fire of this task not ended?), then failure (how did the last one end?),
then the cap. Each decision carries the rule that made it, in words: it is stored with the fire, and `explain`
shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, assert_never

from fusee.errors import Invalid
from fusee.values.durations import US
from fusee.values.fields import Alias, As
from fusee.values.kinds import Kind, Seconds, Whole, Words, is_number
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

SLOWEST_RATE = 1 / (366 * 86400)
"""Starts per second: one a year."""


class Overlap(Word):
    """What to do when an earlier fire of the task has not ended."""

    ALLOW = "ALLOW"
    """Run it; the cap still applies."""
    SKIP = "SKIP"
    """Skip this fire."""
    CANCEL_PREV = "CANCEL_PREV"
    """Cancel the earlier ones, started or not; this one starts when they have ended."""
    PARALLEL = "PARALLEL"
    """Start beside them, even over the cap; the rule says so."""


class Concurrency(Word):
    """What to do when `max_concurrency` fires have not ended."""

    QUEUE = "QUEUE"
    """Queue the fire, first in, first out; when the queue is full, skip it."""
    SKIP = "SKIP"
    """Skip this fire."""
    PARALLEL = "PARALLEL"
    """Start it over the cap; the rule says so."""


class FailureAction(Word):
    """What to do when the last fire that ran failed."""

    RUN_NEW = "RUN_NEW"
    """Run it; attempts count from 1."""
    SKIP = "SKIP"
    """Skip the next fire only."""
    RETRY = "RETRY"
    """Run it; attempt numbers continue."""
    PAUSE = "PAUSE"
    """Pause the task at once, until a person resumes it."""


class CatchUp(Word):
    """What to do with fires that were due while no dispatcher was running."""

    NONE = "NONE"
    """None runs; each is recorded as missed."""
    COMPACT = "COMPACT"
    """Only the latest one runs."""
    FULL = "FULL"
    """Each runs, oldest first, within the window and the cap."""


class Decision(Word):
    RUN = "run"
    QUEUE = "queue"
    """It runs when it reaches the head of the queue."""
    SKIP = "skip"
    MISS = "miss"


class _StartRate(Kind):
    """Starts per second: a number, or a text such as `10/m` or `100/h`."""

    word = "N"

    def read(self, value: Any, what: str) -> Any:
        rate = self._from_text(value) if isinstance(value, str) else value
        if rate is None or not is_number(rate):
            raise Invalid(
                f"{what} must be starts a second, or a text such as 10/m, not {value!r:.60}", field=what
            )
        if not SLOWEST_RATE <= rate <= 10_000:
            raise Invalid(
                f"{what} must be starts a second, from one a year to 10000, not {rate:g}", field=what
            )
        return float(rate)

    @staticmethod
    def _from_text(text: str) -> float | None:
        count, _, unit = text.partition("/")
        per = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(unit.strip() or "s")
        try:
            return None if per is None else float(count) / per
        except ValueError:
            return None

    def schema(self) -> dict[str, Any]:
        number = {"type": "number", "exclusiveMinimum": 0}
        return {"anyOf": [number, {"type": "string"}], "examples": [0.5, "10/m"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a task behaves; durations in seconds."""

    overlap: Annotated[
        Overlap,
        Words(Overlap),
        As("overlap_action"),
        Alias("overlap"),
        "What to do while an earlier fire has not ended: `ALLOW`, `SKIP`, `CANCEL_PREV`, `PARALLEL`.",
    ] = Overlap.ALLOW
    max_concurrency: Annotated[
        int,
        Whole(0, 10_000),
        "Maximum number of fires in progress at once, over all workers; 0 means no cap.",
    ] = 1
    concurrency: Annotated[
        Concurrency,
        Words(Concurrency),
        As("concurrency_policy"),
        Alias("concurrency"),
        "What to do when the cap is reached: `QUEUE`, `SKIP`, `PARALLEL`.",
    ] = Concurrency.QUEUE
    queue_depth: Annotated[int, Whole(0, 100_000), "How many fires may wait in the task's queue."] = 100
    failure: Annotated[
        FailureAction,
        Words(FailureAction),
        As("failure_action"),
        Alias("failure"),
        "What to do when the last fire failed: `RUN_NEW`, `SKIP`, `RETRY`, `PAUSE`.",
    ] = FailureAction.RUN_NEW
    catch_up: Annotated[
        CatchUp,
        Words(CatchUp),
        As("catch_up_mode"),
        Alias("catch_up"),
        "What to do with fires that no dispatcher could fire in time: `NONE`, `COMPACT`, `FULL`.",
    ] = CatchUp.COMPACT
    catch_up_window: Annotated[
        float, Seconds(), "A fire that was due longer ago than this is missed, whatever the mode."
    ] = 86400.0
    catch_up_cap: Annotated[
        int, Whole(1, 10_000), "`FULL` makes up for at most this many fires, the latest ones."
    ] = 100
    grace: Annotated[
        float,
        Seconds(),
        "A fire decided within this delay counts as on time; the delay ends at the latest when the next fire"
        " is due.",
    ] = 10.0
    jitter: Annotated[
        float, Seconds(), "Each fire starts up to this much later, by a fixed share for each fire."
    ] = 0.0
    rate: Annotated[
        float | None, _StartRate(), "Maximum number of starts per second, or per minute as in `10/m`."
    ] = None
    burst: Annotated[int, Whole(1, 10_000), "With a rate: how many starts may happen at once."] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state of a task when one of its fires is decided."""

    active: int = 0
    """Earlier fires that may run and have not ended."""
    queued: int = 0
    """Earlier fires that are queued."""
    queue_held: bool = False
    """The task is paused: no queued fire starts until it is resumed."""
    example: int | None = None
    """One of their runs, for the rule to name."""
    failed: bool = False
    """The last fire that ran failed (a cancel by policy does not count)."""
    failure_skipped: bool = False
    """A fire was already skipped because of that."""
    last_attempt: int = 0

    @property
    def under_way(self) -> bool:
        return self.active + self.queued > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A decision, with the rule that made it."""

    decision: Decision
    rule: str
    code: str
    """One word for metrics: on_time, caught_up, overlap, failure, concurrency, queue_full, catch_up …"""
    cancel_previous: bool = False
    after_previous: bool = False
    """The fire waits until the canceled ones have ended."""
    attempt: int = 0
    """Attempts that are counted before its first one."""


def rule_on(
    policy: Policy, now: Situation, code: str = "on_time", why: str = "due, and nothing in its way"
) -> Ruling:
    """Decide a fire that is due; `code` and `why` are used when no policy objects."""
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
    queued = now.queued > 0 and not now.queue_held  # a held queue is passed, or nothing could be triggered
    behind = queued and policy.concurrency is Concurrency.QUEUE and policy.max_concurrency > 0
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
                rule = f"concurrency_policy QUEUE: {cap}, and the queue is full ({policy.queue_depth})"
                return _skip("queue_full", rule, attempt)
            rule = f"concurrency_policy QUEUE: {cap}; queued at place {now.queued + 1}"
            if now.queue_held:
                rule += "; the task is paused, its queue is held until it is resumed"
            return Ruling(decision=Decision.QUEUE, code="concurrency", rule=rule, attempt=attempt)
        case _:
            assert_never(policy.concurrency)


def rule_on_head(policy: Policy, now: Situation) -> Ruling:
    """Decide the first queued fire when the cap allows it: it runs, or is skipped.

    A fire that failed while this one was queued concerns this one, since it is the next. For the same reason
    its attempts are counted from the last end, not from the state when it was queued.
    """
    skipped = _skip_after_failure(policy, now)
    return skipped or Ruling(
        decision=Decision.RUN, code="concurrency", rule="", attempt=_counted(policy, now)
    )


def start_at(policy: Policy, earliest: int, rate_at: int) -> tuple[int, int]:
    """Returns when a fire may start under the rate, and the rate's new state: the next free start."""
    if policy.rate is None:
        return earliest, rate_at
    gap = math.ceil(US / policy.rate)
    start = max(earliest, rate_at - (policy.burst - 1) * gap)
    return start, max(rate_at, start) + gap


def jitter_of(policy: Policy, task_id: int, fire_time: int) -> int:
    """Microseconds by which this fire starts later; always the same for the same fire."""
    most = round(policy.jitter * US)
    # Both numbers are mixed as SplitMix64 does, so that neighbours get very different values.
    mixed = (task_id * 0x9E3779B97F4A7C15 + fire_time) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) % (most + 1)


def _counted(policy: Policy, now: Situation) -> int:
    """With RETRY and SKIP attempt numbers continue; with the others they start again."""
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
