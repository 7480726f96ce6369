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
        "A schedule with a shorter interval than this fires late, but never twice.",
    )
    recover_interval: Duration = Field(
        default=5.0,
        ge=0.01,
        description="How often the dispatcher looks for workers whose lease has expired.",
    )
    retention: Duration = Field(
        default=7 * 86400.0,
        description="Finished runs older than this are deleted, except those of batches; 0 keeps them "
        "forever.",
    )
    batch_retention: Duration = Field(
        default=90 * 86400.0,
        description="A batch is deleted this long after its end, with its targets, their images and its "
        "runs. Until then it can be rolled back. 0 keeps batches forever.",
    )
    prune_batch: Count = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="The largest number of finished runs that one transaction deletes.",
    )
    starvation_after: Duration = Field(
        default=300.0,
        description="When runs have waited longer than this behind higher priorities, one run per second of "
        "each queue and priority moves to the head of its queue. 0 turns this off.",
    )
    stalled_after: Duration = Field(
        default=300.0,
        description="A queue has stalled when it is not paused and its oldest run has waited longer than "
        "this. A bulk job has stalled when items are in progress and none has ended for this long. Logs, "
        "metrics and `/readyz` report it, and `alert_webhook` is called. 0 turns this off.",
    )
    alert_webhook: Annotated[str, AfterValidator(check_webhook)] | None = Field(
        default=None,
        description="An http or https address that receives a POST request when a queue or a bulk job "
        "stalls. The request is a run in the queue `fusee.alerts`, so it is retried and recorded.",
    )
    region: str = Field(
        default="",
        max_length=64,
        description="The region that this dispatcher serves: it handles work of this region and work without "
        "a region. Empty means all regions.",
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
        default=None,
        description="The name of this worker. The default is made from the host name and the process id.",
    )
    max_concurrent_tasks: Count = Field(
        default=32,
        ge=1,
        le=10_000,
        description="The largest number of runs that this worker executes at once.",
    )
    heartbeat_interval_seconds: Duration = Field(
        default=10.0,
        ge=0.05,
        description="The longest time between two renewals of the worker's lease. It renews at least ten "
        "times per `lease_ttl`.",
    )
    lease_ttl: Duration = Field(
        default_factory=lambda others: max(30.0, 3 * others["heartbeat_interval_seconds"]),
        description="A worker that does not renew its lease for this long is considered dead, and its runs "
        "go to other workers. A silence that is shorter by a tenth (at most two seconds) has no effect. It "
        "must be at least three heartbeats; the default is 30s or three heartbeats, whichever is longer.",
    )
    queues: tuple[Name, ...] = Field(
        default=("*",),
        min_length=1,
        description="The queues that this worker takes runs from; `*` means every queue.",
    )
    region: str = Field(
        default="",
        max_length=64,
        description="The region of this worker. It takes runs of this region and runs without a region.",
    )
    labels: Labels = Field(
        default=Table(),
        description="The labels of this worker. A run that requires labels goes only to workers that have "
        "them.",
    )
    address: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        default=None,
        description="The address of this worker, shown in `fusee workers`. Nothing connects to it.",
    )
    cpu: Annotated[float, Field(gt=0, le=100_000)] | None = Field(
        default=None,
        description="The cores that this worker offers to runs that request cpu. Without it, the worker "
        "gets no such runs.",
    )
    memory: Size | None = Field(
        default=None,
        ge=1,
        description="The memory that this worker offers to runs that request memory. Without it, the worker "
        "gets no such runs.",
    )
    max_memory: Size | None = Field(
        default=None,
        ge=1,
        description="The memory limit of the worker's process. Above it, the worker claims no more runs "
        "until its memory has fallen to nine tenths of the limit; running runs continue. Programs and "
        "handlers in processes of their own are not counted.",
    )
    poll_interval: Duration = Field(
        default=0.5,
        ge=0.001,
        description="How often an idle worker looks for work when no hint wakes it earlier.",
    )
    prefetch: Duration = Field(
        default=0.05,
        description="How much work, measured in time, a worker claims beyond what can start at once. 0 "
        "claims nothing ahead.",
    )
    drain_timeout: Duration = Field(
        default=30.0,
        description="How long running work may take to finish at shutdown before it is stopped.",
    )
    grace: Duration = Field(
        default=10.0,
        description="The time between asking a run to stop (timeout, cancel, drain) and killing it.",
    )
    app: Annotated[str, AfterValidator(_check_app)] | None = Field(
        default=None,
        description="The application that registers your handlers, as `module:app`.",
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
        description="The largest number of bulk items that this worker starts per second, over all jobs. "
        "Other workers take the rest. 0 sets no limit.",
    )

    bulk_resume_within: Duration = Field(
        default=0.0,
        description="After a crash, a bulk job that no worker runs any more and that was created longer ago "
        "than this is not resumed automatically: it stops, reports that, and waits until someone resumes it. "
        "0 sets no limit.",
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
