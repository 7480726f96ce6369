"""What callers send about runs, queues and workers, and what they get."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field

from fusee.engine.model.outcome import Ended
from fusee.engine.model.queue import LIMITS, QueueStats
from fusee.engine.model.run import Attempt, Run
from fusee.engine.model.session import Session
from fusee.runs.fields import RUN
from fusee.runs.rest.intake import StreamProgress
from fusee.runs.service.callbacks import callback_end
from fusee.runs.service.runs import RunWithAttempts
from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body
from fusee.surfaces.rest.bodies import Incoming, Seconds
from fusee.values.fields import shown

__all__ = [
    "LIMIT",
    "LIMIT_CHANGE",
    "SUBMIT",
    "CallbackIn",
    "CallbackOut",
    "QueueOut",
    "QueuePage",
    "RunAccepted",
    "RunId",
    "RunOut",
    "RunPage",
    "RunRetriedOut",
    "RunSummary",
    "StrategyIn",
    "StreamAccepted",
    "WorkerOut",
    "WorkerPage",
    "run_shown",
]

RunId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The run's id.")]
SUBMIT = Body("RunIn", {**RUN.schema("A piece of work to accept."), "required": []})
LIMIT = Body("LimitsIn", LIMITS.schema("A queue's limits, all of them: what is left out is unlimited."))
LIMIT_CHANGE = Body(
    "LimitsChangeIn",
    LIMITS.schema(
        "Other values for some of a queue's limits; null lifts one, and what is left out stays.",
        only=LIMITS.fields,
    ),
)


class StrategyIn(Incoming):
    """How the queue's runs find their worker, where they do not say so themselves."""

    strategy: str = Field(
        description="shared, round_robin, least_loaded, affinity, consistent_hash or broadcast"
    )


class CallbackIn(Incoming):
    """How a call in async mode ended."""

    status: str = Field(default="succeeded", description="succeeded or failed")
    result: Any = Field(default=None, description="Kept as the run's result.")
    error: str | None = Field(default=None, description="What went wrong; goes with failed.")
    retry_after: Seconds | None = Field(
        default=None, description="When to try again, should attempts be left; goes with failed."
    )
    abandon: bool = Field(default=False, description="Trying again is of no use; goes with failed.")

    def ended(self) -> Ended:
        return callback_end(
            self.status,
            result=self.result,
            error=self.error,
            retry_after=self.retry_after,
            abandon=self.abandon,
        )


class RunAccepted(BaseModel):
    """A run that will end in a terminal state or visibly wait; `created` is false for a repeated key."""

    id: int
    created: bool


class RunRetriedOut(RunAccepted):
    """The new run of a retry; `rule` is what the policies of its task decided, when it belongs to one."""

    status: str
    rule: str | None


class CallbackOut(BaseModel):
    """How the run stands after its service's answer."""

    id: int
    status: str


StreamAccepted = answer_of("StreamAccepted", StreamProgress)
RunSummary = answer_of("RunSummary", Run, brief=True)
RunPage = page_of(RunSummary)
AttemptOut = answer_of("AttemptOut", Attempt)
RunOut = answer_of("RunOut", Run, attempts=list[AttemptOut])  # type: ignore[valid-type]
WorkerOut = answer_of("WorkerOut", Session)
QueueOut = answer_of("QueueOut", QueueStats)


class WorkerPage(BaseModel):
    items: list[WorkerOut]  # type: ignore[valid-type]


class QueuePage(BaseModel):
    items: list[QueueOut]  # type: ignore[valid-type]


def run_shown(found: RunWithAttempts) -> dict[str, Any]:
    """A run with the attempts that did not end it."""
    return shown(found.run, attempts=[shown(attempt) for attempt in found.attempts])
