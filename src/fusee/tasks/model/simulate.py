"""Simulating a policy over a range of time: the same rules, on a clock made of fires and ends."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated

from fusee.tasks.model.policy import (
    Decision,
    FailureAction,
    Policy,
    Ruling,
    Situation,
    jitter_of,
    rule_on,
    rule_on_head,
    start_at,
)
from fusee.values.durations import US
from fusee.values.fields import As
from fusee.values.kinds import TIME

__all__ = ["Simulated", "simulate"]


@dataclass(slots=True)
class Simulated:
    """One fire as it would have gone."""

    at: Annotated[int, TIME, As("fire_time")]
    decision: Decision
    rule: str
    start: Annotated[int | None, TIME, As("starts_at")] = None
    end: Annotated[int | None, TIME, As("ends_at")] = None
    canceled: Annotated[bool, "By a later fire, through CANCEL_PREV."] = False


@dataclass(slots=True, order=True)
class _Going:
    end: int
    at: int
    """The fire time: of fires that end at the same time, the one that was due first comes first."""
    fire: Simulated = field(compare=False)
    failed: bool = field(compare=False)
    attempt: int = field(compare=False)


class _Task:
    """The part of a task's state that the rules read."""

    def __init__(self, policy: Policy, lasts: Callable[[int], tuple[float, bool]]) -> None:
        self.policy = policy
        self.lasts = lasts
        self.going: list[_Going] = []
        """A heap: without a cap, thousands may run at once."""
        self.queue: deque[Simulated] = deque()
        self.failed = self.skipped = self.paused = False
        self.attempt = 0
        self.rate_at = 0

    def situation(self) -> Situation:
        return Situation(
            active=len(self.going),
            queued=len(self.queue),
            failed=self.failed,
            failure_skipped=self.skipped,
            last_attempt=self.attempt,
        )

    def until(self, now: int) -> None:
        """End every fire that ends by `now`, and start queued fires in their place."""
        while self.going and self.going[0].end <= now:
            first = heapq.heappop(self.going)
            self.failed, self.skipped, self.attempt = first.failed, False, first.attempt
            self.paused = self.paused or (first.failed and self.policy.failure is FailureAction.PAUSE)
            self.admit(first.end)

    def admit(self, now: int) -> None:
        """Start queued fires as the cap allows; a paused task holds its queue."""
        while self.queue and not self.paused and len(self.going) < (self.policy.max_concurrency or 2**62):
            fire = self.queue.popleft()
            ruling = rule_on_head(self.policy, self.situation())
            if ruling.decision is Decision.RUN:
                self.start(fire, ruling, now)
            else:
                fire.decision, fire.rule = ruling.decision, ruling.rule
                self.record_skip(ruling)

    def record_skip(self, ruling: Ruling) -> None:
        """One fire was skipped because the last one failed: the next one runs."""
        self.skipped, self.attempt = True, ruling.attempt

    def start(self, fire: Simulated, ruling: Ruling, earliest: int) -> None:
        fire.start, self.rate_at = start_at(self.policy, earliest, self.rate_at)
        seconds, failed = self.lasts(fire.at)
        fire.end = fire.start + round(seconds * US)
        heapq.heappush(self.going, _Going(fire.end, fire.at, fire, failed, ruling.attempt + 1))

    def cancel(self, now: int) -> None:
        for one in self.going:
            one.fire.end, one.fire.canceled = now, True
        for fire in self.queue:
            fire.canceled = True
        self.going.clear()
        self.queue.clear()


def simulate(
    policy: Policy, times: Iterable[int], lasts: Callable[[int], tuple[float, bool]], task_id: int = 0
) -> list[Simulated]:
    """Simulate the fires of `times`, in order; `lasts` returns the seconds of a fire, and whether it fails.

    Every fire is decided on time, so catch-up plays no part.
    """
    task = _Task(policy, lasts)
    fires: list[Simulated] = []
    for at in times:
        task.until(at)
        if task.paused:
            fires.append(Simulated(at, Decision.SKIP, "failure_action PAUSE: the task would be paused"))
            continue
        ruling = rule_on(policy, task.situation())
        fire = Simulated(at, ruling.decision, ruling.rule)
        fires.append(fire)
        if ruling.cancel_previous:
            task.cancel(at)
        if ruling.decision is Decision.RUN:
            task.start(fire, ruling, at + jitter_of(policy, task_id, at))
        elif ruling.decision is Decision.QUEUE:
            task.queue.append(fire)
        elif ruling.code == "failure":
            task.record_skip(ruling)
    task.until(2**62)
    return fires
