"""The process that decides what runs when."""

from typing import Annotated

from pydantic import AfterValidator, Field

from fusee.config.addresses import check_webhook
from fusee.config.sections.section import Section
from fusee.config.units import Count, Duration

__all__ = ["DispatcherConfig"]


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
