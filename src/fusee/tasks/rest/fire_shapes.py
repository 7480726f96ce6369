"""What the API answers about the fires of tasks: past ones, and those that someone asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from pydantic import BaseModel, Field

from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.tasks.model.fire import Fire
from fusee.tasks.model.policy import Decision
from fusee.tasks.service.explain import Explanation
from fusee.tasks.service.simulation import Compared, Simulation
from fusee.tasks.store.backfills import Backfilled
from fusee.tasks.store.triggers import Triggered
from fusee.values.fields import shown
from fusee.values.times import show_time, show_times

__all__ = [
    "BackfillOut",
    "ExplanationOut",
    "FireOut",
    "FirePage",
    "QueueClearedOut",
    "SimulationOut",
    "TriggeredOut",
]


VERDICTS = [
    *("ran", "queued", "waiting", "canceled", "skipped", "missed"),
    *("not_due", "not_yet", "before_it_was", "not_enabled", "no_record"),  # there is no row
]


def _time(at: int | None) -> str | None:
    return None if at is None else show_time(at)


FireOut = answer_of("FireOut", Fire)
FirePage = page_of(FireOut)


class ExplanationOut(BaseModel):
    """Why a task did, or did not, run at a time."""

    task: str
    at: str
    verdict: str = Field(json_schema_extra={"enum": [*VERDICTS]})
    text: str
    rule: str | None
    fires: list[FireOut]  # type: ignore[valid-type]

    @classmethod
    def of(cls, explanation: Explanation) -> Self:
        return cls(
            task=explanation.task,
            at=_time(explanation.at) or "",
            verdict=explanation.verdict,
            text=explanation.text,
            rule=explanation.rule,
            fires=[FireOut(**shown(fire)) for fire in explanation.fires],
        )


class TriggeredOut(BaseModel):
    """A fire by hand; `created` is false for a repeated key."""

    fire_time: str
    decision: Decision
    rule: str
    run_ids: list[int] = Field(description="One for each shard; those of a skipped fire never run.")
    created: bool

    @classmethod
    def of(cls, triggered: Triggered) -> Self:
        return cls(
            fire_time=_time(triggered.fire_time) or "",
            decision=triggered.decision,
            rule=triggered.rule,
            run_ids=list(triggered.run_ids),
            created=triggered.created,
        )


class QueueClearedOut(BaseModel):
    """How many fires that stood in line were left out."""

    cleared: int


class BackfillOut(BaseModel):
    """What a backfill runs."""

    id: int | None = Field(description="None when nothing was made: a dry run, or nothing to make up for.")
    created: bool
    concurrency: int
    count: int
    left: int = Field(description="Fires of that stretch that ran before, and are left alone.")
    fires: list[str] = Field(description="The times that run, oldest first.")

    @classmethod
    def of(cls, backfilled: Backfilled) -> Self:
        return cls(
            id=backfilled.id,
            created=backfilled.created and backfilled.id is not None,
            concurrency=backfilled.concurrency,
            count=len(backfilled.times),
            left=backfilled.left,
            fires=show_times(backfilled.times),
        )


class ActualOut(BaseModel):
    """What was done."""

    decision: Decision
    rule: str
    seconds: float | None
    failed: bool


class SimulatedOut(BaseModel):
    """One time: what that policy would have done, and what was done."""

    fire_time: str
    decision: Decision
    rule: str
    starts_at: str | None
    ends_at: str | None
    canceled: bool = Field(description="By a later fire, through CANCEL_PREV.")
    actual: ActualOut | None

    @classmethod
    def of(cls, one: Compared) -> Self:
        simulated, actual = one.simulated, one.actual
        return cls(
            fire_time=_time(simulated.at) or "",
            decision=simulated.decision,
            rule=simulated.rule,
            starts_at=_time(simulated.start),
            ends_at=_time(simulated.end),
            canceled=simulated.canceled,
            actual=None
            if actual is None
            else ActualOut(
                decision=actual.decision, rule=actual.rule, seconds=actual.seconds, failed=actual.failed
            ),
        )


class SimulationOut(BaseModel):
    """What another policy would have done, beside what was done."""

    policy: dict[str, Any] = Field(description="The whole policy that was simulated.")
    duration: float = Field(description="Seconds taken for fires of which the record knows none.")
    known: int = Field(description="Fires whose own duration and end were used.")
    simulated: dict[str, int] = Field(description="How many times each decision.")
    actual: dict[str, int]
    fires: list[SimulatedOut]

    @classmethod
    def of(cls, simulation: Simulation) -> Self:
        fires = simulation.fires
        return cls(
            policy=shown(simulation.policy),
            duration=simulation.duration,
            known=simulation.known,
            simulated=_counts(one.simulated.decision for one in fires),
            actual=_counts(one.actual.decision for one in fires if one.actual is not None),
            fires=[SimulatedOut.of(one) for one in fires],
        )


def _counts(decisions: Iterable[str]) -> dict[str, int]:
    return {str(decision): count for decision, count in sorted(Counter(decisions).items())}
