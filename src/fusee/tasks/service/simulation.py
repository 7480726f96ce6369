"""Simulating another policy for a task, beside what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

from fusee.errors import Invalid
from fusee.tasks.fields import policy_from
from fusee.tasks.model.policy import Decision, Policy
from fusee.tasks.model.simulate import Simulated, simulate
from fusee.tasks.model.task import Task
from fusee.tasks.store.history import Past
from fusee.values.fields import Inner, Mark

__all__ = ["Compared", "Simulation", "simulation"]


CATCH_UP = ("catch_up", "catch_up_window", "catch_up_cap", "grace")


@dataclass(frozen=True, slots=True)
class Compared:
    """One fire time: what the policy would do, and what was done."""

    simulated: Annotated[Simulated, Mark.FLAT]
    actual: Annotated[Past | None, Inner(Past, "ActualOut")]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What another policy would have done, beside what was done."""

    policy: Annotated[Policy, Inner(Policy), "The whole policy that was simulated."]
    fires: Annotated[Sequence[Compared], Inner(Compared, "SimulatedOut", many=True)]
    duration: Annotated[float, "Seconds assumed for fires whose duration is not in the fire history."]
    known: Annotated[int, "Fires whose own duration and end were used."]

    @property
    def simulated(self) -> Annotated[Mapping[str, int], "How often each decision would have been made."]:
        return _counts(one.simulated.decision for one in self.fires)

    @property
    def actual(self) -> Annotated[Mapping[str, int], "How often each decision was made."]:
        return _counts(one.actual.decision for one in self.fires if one.actual is not None)


def _counts(decisions: Iterable[Decision]) -> dict[str, int]:
    return {str(decision): count for decision, count in sorted(Counter(decisions).items())}


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
