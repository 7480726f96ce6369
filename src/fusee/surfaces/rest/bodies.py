"""What callers send, as models: the shape is checked here, the rules by the operations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fusee.engine.model.outcome import Ended
from fusee.engine.model.queue import QueueLimits
from fusee.engine.model.run import EXECUTORS, RunSpec
from fusee.runs.service.callbacks import callback_end
from fusee.runs.service.runs import spec_from
from fusee.surfaces.rest.times import DueAt, Seconds

__all__ = [
    "CallbackIn",
    "CancelIn",
    "FireReason",
    "Incoming",
    "KeyIn",
    "LimitsChangeIn",
    "LimitsIn",
    "Reason",
    "RetryIn",
    "RunIn",
    "StrategyIn",
]


class Incoming(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)


class RetryIn(Incoming):
    """When a run that did not succeed is tried again."""

    max_attempts: int = 3
    backoff: str = Field(default="exponential", description="fixed, linear or exponential")
    base: Seconds = 2.0
    max: Seconds = 3600.0
    jitter: float = Field(default=0.1, description="A share: 0.1 spreads by ±10 %.")
    on: list[str] = Field(
        default=["failed", "timed_out", "lost"], description="Which ends are retried; [] retries nothing."
    )


class RunIn(Incoming):
    """A piece of work to accept."""

    handler: str | None = Field(
        default=None, description="The handler that shall run; shell and http need none."
    )
    payload: dict[str, Any] | None = Field(default=None, description="The handler's arguments, by name.")
    executor: str = Field(default="python", description=f"One of {', '.join(EXECUTORS)}.")
    queue: str = "default"
    region: str = ""
    priority: int = Field(default=0, description="-1000 to 1000; the highest goes first.")
    delay: Seconds = Field(default=0.0, description="From now, in seconds or as `90s`, `2m`, `1h30m`.")
    due_at: DueAt | None = Field(default=None, description="RFC 3339 with an offset; wins over `delay`.")
    timeout: Seconds | None = Field(default=None, description="For one attempt.")
    retry: RetryIn | None = None
    idempotency_key: str | None = Field(
        default=None, description="The same key again gives the same run; wins over the header."
    )
    strategy: str | None = Field(
        default=None,
        description="How it finds its worker, such as round_robin; without one, as its queue says.",
    )
    cpu: float | None = Field(default=None, description="Cores that its worker must have.")
    memory: int | str | None = Field(
        default=None, description="Memory that its worker must have: bytes, or as `512MB`, `8GiB`."
    )
    hash_key: str | None = Field(
        default=None, description="What consistent hashing goes by; without one, the payload."
    )

    requires: dict[str, str] | None = Field(
        default=None, description="Labels that its worker must have.", examples=[{"gpu": "true"}]
    )

    def spec(self, key: str | None = None) -> RunSpec:
        """With that idempotency key unless it has its own."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if self.retry is not None:
            given["retry"] = self.retry.model_dump(exclude_unset=True)
        if given.get("handler", "") is None:
            del given["handler"]
        for name in ("strategy", "requires"):
            if given.get(name, "") is None:
                del given[name]
        if key is not None and given.get("idempotency_key") is None:
            given["idempotency_key"] = key
        return spec_from(given)


class LimitsIn(Incoming):
    """A queue's limits, all of them: what is left out is unlimited."""

    paused: bool = False
    concurrency: int | None = Field(default=None, description="Most runs at once, across all workers.")
    rate: float | None = Field(default=None, description="Most starts a second, across all workers.")
    burst: int | None = Field(default=None, description="Most starts at once; goes with a rate.")

    def limits(self) -> QueueLimits:
        return QueueLimits(self.paused, self.concurrency, self.rate, self.burst)


class LimitsChangeIn(Incoming):
    """Other values for some of a queue's limits; null lifts one, and what is left out stays."""

    paused: bool | None = None
    concurrency: int | None = Field(default=None, description="Most runs at once, across all workers.")
    rate: float | None = Field(default=None, description="Most starts a second, across all workers.")
    burst: int | None = Field(default=None, description="Most starts at once; goes with a rate.")


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


class KeyIn(Incoming):
    """A key to make."""

    name: str = Field(description="Whom or what it is for.")
    role: str = Field(default="operator", description="viewer, operator or admin")


def _check_reason(reason: str) -> str:
    if not reason.isprintable():
        raise ValueError("must be one line of printable text")
    return reason


Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_check_reason)]
FireReason = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_reason)]
"""Kept with a fire, whose column is shorter."""


class CancelIn(Incoming):
    """Why a run is canceled."""

    reason: Reason = "canceled by request"
