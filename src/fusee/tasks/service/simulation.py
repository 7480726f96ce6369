"""Simulating another policy for a task, beside what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fusee.errors import Invalid
from fusee.tasks.fields import policy_from
from fusee.tasks.model.policy import Policy
from fusee.tasks.model.simulate import Simulated, simulate
from fusee.tasks.model.task import Task
from fusee.tasks.store.history import Past

__all__ = ["Compared", "Simulation", "simulation"]


CATCH_UP = ("catch_up", "catch_up_window", "catch_up_cap", "grace")


@dataclass(frozen=True, slots=True)
class Compared:
    """One fire time: what the policy would do, and what was done."""

    simulated: Simulated
    actual: Past | None


@dataclass(frozen=True, slots=True)
class Simulation:
    policy: Policy
    fires: Sequence[Compared]
    duration: float
    """Seconds that are assumed for fires whose duration is not in the fire history."""
    known: int
    """Fires whose own duration and end were used."""


def simulation(
    task: Task,
    times: Sequence[int],
    past: Sequence[Past],
    changes: Mapping[str, Any],
    duration: float | None,
) -> Simulation:
    policy = policy_from(changes, task.spec.policy)
    replace(task.spec, policy=policy)  # refuses what a task would be refused for
    for name in CATCH_UP:
        if getattr(policy, name) != getattr(task.spec.policy, name):
            raise Invalid(
                "a simulation takes every fire as decided on time: the catch-up mode, its window, its cap and"
                " the grace change nothing in it; leave them out",
                field="policy",
            )
    by_time = {one.at: one for one in past}
    took = [one.seconds for one in past if one.seconds is not None]
    if duration is None:
        if not took and len(times) > 1:
            raise Invalid(
                "no run of that stretch tells how long one takes: give a duration", field="duration"
            )
        duration = median(took) if took else 0.0

    def lasts(at: int) -> tuple[float, bool]:
        one = by_time.get(at)
        if one is not None and one.seconds is not None:
            return one.seconds, one.failed
        return duration, False

    fires = simulate(policy, times, lasts, task.id)
    return Simulation(policy, [Compared(one, by_time.get(one.at)) for one in fires], duration, len(took))
