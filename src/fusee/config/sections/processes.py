"""The processes: dispatchers decide what runs when, workers execute it."""

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from fusee.config.addresses import check_webhook
from fusee.config.sections.section import Labels, Section, Table
from fusee.config.units import Count, Duration, Size, format_duration

__all__ = ["DispatcherConfig", "WorkerConfig"]


class DispatcherConfig(Section):
    enabled: bool = Field(default=True, description="Whether `fusee up` runs a dispatcher in this process.")
    schedule_interval_seconds: Duration = Field(
        default=1.0,
        ge=0.01,
        description="How often the dispatcher looks for due schedules and runs to admit. "
        "A schedule finer than this fires late, never twice.",
    )
    recover_interval: Duration = Field(
        default=5.0, ge=0.01, description="How often it looks for workers whose lease has expired."
    )
    retention: Duration = Field(
        default=7 * 86400.0,
        description="Finished runs older than this are deleted, except those of batches; 0 keeps them "
        "forever.",
    )
    batch_retention: Duration = Field(
        default=90 * 86400.0,
        description="A batch is deleted this long after its end, with its targets, what they were before "
        "and its runs: until then it can be rolled back. 0 keeps batches forever.",
    )
    prune_batch: Count = Field(
        default=1000, ge=1, le=100_000, description="Most finished runs deleted in one transaction."
    )
    starvation_after: Duration = Field(
        default=300.0,
        description="Of runs that have waited longer than this behind higher priorities, one of each queue "
        "and priority a second goes to the head of the line; 0 lets priorities rule without exception.",
    )
    stalled_after: Duration = Field(
        default=300.0,
        description="A queue that is not paused and whose oldest run has waited longer has stalled; "
        "logs, metrics and `/readyz` say so, and `alert_webhook` is called. So has a bulk job that ended no "
        "item for this long though items are under way. 0 never looks.",
    )
    alert_webhook: Annotated[str, AfterValidator(check_webhook)] | None = Field(
        default=None,
        description="An http or https address that is posted to when a queue or a bulk job stalls; through "
        "the engine, so retried and recorded, in the queue `fusee.alerts`.",
    )
    region: str = Field(
        default="",
        max_length=64,
        description="The region this dispatcher serves: it fires, moves on and places work of this region "
        "and of none. Empty serves all.",
    )


Name = Annotated[str, Field(min_length=1, max_length=128)]


def _check_app(app: str) -> str:
    module, _, attribute = app.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise ValueError("must be a module and a name in it, such as myproject.jobs:app")
    return app


class WorkerConfig(Section):
    enabled: bool = Field(default=True, description="Whether `fusee up` runs a worker in this process.")
    worker_id: Name | None = Field(
        default=None, description="This worker's name; left out, one is made from the host's name."
    )
    max_concurrent_tasks: Count = Field(
        default=32, ge=1, le=10_000, description="Most runs this worker executes at once."
    )
    heartbeat_interval_seconds: Duration = Field(
        default=10.0,
        ge=0.05,
        description="How often the worker renews its lease, at the longest: it does so ten times in a lease.",
    )
    lease_ttl: Duration = Field(
        default_factory=lambda others: max(30.0, 3 * others["heartbeat_interval_seconds"]),
        description="A worker silent for this long is taken for dead and its runs go to others; a silence "
        "shorter by a tenth, two seconds at most, costs nothing. At least "
        "three heartbeats; left out, it is 30s or three heartbeats, whichever is longer.",
    )
    queues: tuple[Name, ...] = Field(
        default=("*",),
        min_length=1,
        description="The queues this worker takes runs from; `*` is every queue.",
    )
    region: str = Field(
        default="",
        max_length=64,
        description="The region this worker is in; it takes runs of this region and of none.",
    )
    labels: Labels = Field(
        default=Table(), description="What this worker has to offer, by name, for runs that ask for it."
    )
    address: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None,
        description="Where this worker can be reached, as people shall see it in `fusee workers`; nothing "
        "connects to it.",
    )
    cpu: Annotated[float, Field(gt=0, le=100_000)] | None = Field(
        default=None,
        description="Cores that this worker has for work which says how much it needs; left out, it gets no "
        "work that asks for cpu.",
    )
    memory: Size | None = Field(
        default=None,
        ge=1,
        description="Memory that this worker has for work which says how much it needs; left out, it gets "
        "no work that asks for memory.",
    )
    max_memory: Size | None = Field(
        default=None,
        ge=1,
        description="Memory that this worker's process may hold. Above it the worker claims nothing more "
        "until it has fallen to nine tenths; what runs goes on. Programs and handlers in processes of their "
        "own are not counted.",
    )
    poll_interval: Duration = Field(
        default=0.5,
        ge=0.001,
        description="How often an idle worker looks for work when nothing has woken it sooner.",
    )
    prefetch: Duration = Field(
        default=0.05,
        description="How much work, counted in time, is claimed beyond what can start at once; 0 claims "
        "none ahead.",
    )
    drain_timeout: Duration = Field(
        default=30.0,
        description="On shutdown, how long running work may take to finish before it is stopped.",
    )
    grace: Duration = Field(
        default=10.0, description="Between telling a run to stop (timeout, cancel, drain) and killing it."
    )
    app: Annotated[str, AfterValidator(_check_app)] | None = Field(
        default=None,
        description="Where your handlers are registered, as `module:app`.",
    )
    threads: Count = Field(
        default=32,
        ge=1,
        le=10_000,
        description="Threads for handlers that are plain functions; never fewer than `max_concurrent_tasks`.",
    )

    bulk_rate_cap: float = Field(
        default=0.0,
        ge=0,
        le=10**9,
        description="Items of bulk jobs started a second on this worker, all jobs together; 0 sets no limit. "
        "What does not fit is left to other workers.",
    )

    bulk_resume_within: Duration = Field(
        default=0.0,
        description="After a crash, a bulk job that nobody works on any more and that was created longer ago "
        "than this is not gone on with by itself: it stops and says so, until someone resumes it. 0 sets no "
        "limit.",
    )

    # Runs only for a lease_ttl that was written down; the default follows the heartbeat by itself.
    @field_validator("lease_ttl")
    @classmethod
    def _outlives_three_heartbeats(cls, lease_ttl: float, others: ValidationInfo) -> float:
        # Rounded: three times 0.1 is a little more than 0.3.
        least = round(3 * others.data.get("heartbeat_interval_seconds", 0.0), 6)
        if lease_ttl < least:
            raise ValueError(
                f"must be at least {format_duration(least)}, three times "
                "worker.heartbeat_interval_seconds; raise it, or leave it out to follow the heartbeat"
            )
        return lease_ttl
