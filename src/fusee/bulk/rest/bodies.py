"""What callers send about bulk jobs and businesses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fusee.bulk.model.window import LARGEST_WINDOW
from fusee.surfaces.rest.bodies import Incoming, Reason
from fusee.surfaces.rest.times import Seconds

__all__ = [
    "BulkDataIn",
    "BulkExtendIn",
    "BulkFollowUpIn",
    "BulkIn",
    "BulkLogIn",
    "BulkRateIn",
    "BulkStartIn",
    "BulkStopIn",
    "BusinessChangeIn",
    "BusinessIn",
]

Version = Annotated[
    int | None, Field(default=None, ge=1, description="Refused with 409 when it is at another version.")
]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[
    float | Literal["unlimited", "hold"],
    Field(
        description="Items started a second, over all workers; `unlimited` for no cap, `hold` to start"
        " nothing for the time being.",
        examples=[500],
    ),
]
Window = Annotated[
    int,
    Field(
        ge=0,
        le=LARGEST_WINDOW,
        description="Items between the lowest one not done and the highest one started, in each segment;"
        " 0: chosen by itself.",
    ),
]
ItemTimeout = Annotated[
    float | str,
    Field(
        description="Seconds (or such as `90s`, `5m`) that a call for an item or a chunk may take, from 0.1"
        " to 7 days; `none` for no limit.",
        examples=[300],
    ),
]
Address = Annotated[str, Field(max_length=2000, examples=["https://crm.example/mail"])]


class BulkIn(Incoming):
    """A bulk job: one business over many items. What is left out is as its business says, else as here."""

    name: str = Field(min_length=1, max_length=200)
    business: str = Field(description="Who handles the items.", min_length=1, max_length=120)
    source: int | list[Any] | dict[str, Any] = Field(
        description="Where items come from: a number is a range from 0, an array the items themselves,"
        ' else an object such as `{"kind": "url", "url": "https://…/users.csv"}`.'
    )
    data: Any = Field(default=None, description="The business's own data.")
    start: bool = Field(default=False, description="Start it at once.")
    concurrency: Concurrency = Field(default=32, description="Items or chunks at once, over all workers.")
    rate: Rate = "unlimited"
    window: Window = 0
    segments: int = Field(default=0, ge=0, le=10_000, description="0: as many as workers serve it.")
    item_attempts: int = Field(default=3, ge=1, le=1000)
    item_backoff: Seconds = 0.5
    item_timeout: ItemTimeout = 300.0
    error_budget: float | str | None = Field(
        default=None, description="A number, or a share such as 0.02 or 2%."
    )
    adaptive: bool = Field(default=False, description="Find the concurrency by itself.")
    queue: str = "default"
    region: str = ""
    priority: int = Field(default=0, ge=-1000, le=1000)
    creator: str = ""
    env: str = ""
    labels: dict[str, str] = Field(default={})
    alerts: str | dict[str, Any] | None = Field(
        default=None,
        description="An address that is posted to when the job fails or stalls; or an object with `webhook`,"
        " `on_failure` and `on_stalled`.",
    )


class BulkStartIn(Incoming):
    by_business: bool = Field(
        default=False, description="Its business starts it: refused unless it is `waiting_business`."
    )
    force: bool = Field(default=False, description="Start it also while it waits for its business.")
    version: Version = None


class BulkStopIn(Incoming):
    reason: Reason = "stopped by request"
    version: Version = None


class BulkExtendIn(Incoming):
    start: bool = Field(default=False, description="Start it at once.")
    version: Version = None


class BulkRateIn(Incoming):
    """At least one of these; item_attempts and item_backoff only while the job does not run."""

    rate: Rate | None = None
    concurrency: Concurrency | None = None
    window: Window | None = None
    error_budget: float | str | None = Field(
        default=None, description="A number, a share such as 0.02 or 2%, or `none`."
    )
    item_attempts: int | None = Field(default=None, ge=1, le=1000)
    item_backoff: Seconds | None = None
    item_timeout: ItemTimeout | None = None
    version: Version = None


class BulkDataIn(Incoming):
    data: Any = Field(description="The business's own data, whole.")
    version: Version = None


class BulkLogIn(Incoming):
    text: str = Field(min_length=1, max_length=8000)


class BulkFollowUpIn(Incoming):
    """A new job over items of this one; what is left out is as it was."""

    name: str | None = Field(default=None, min_length=1, max_length=200)
    start: bool = False
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    item_attempts: int | None = Field(default=None, ge=1, le=1000)
    item_backoff: Seconds | None = None
    item_timeout: ItemTimeout | None = None
    error_budget: float | str | None = None


class BusinessFieldsIn(Incoming):
    item: Address | None = Field(default=None, description="POSTed to for each item; or `chunk`.")
    chunk: Address | None = Field(default=None, description="POSTed to for up to `chunk_size` items.")
    chunk_size: int = Field(default=100, ge=1, le=100_000)
    undo: Address | None = None
    on_create: Address | None = None
    before_run: Address | None = None
    on_stop: Address | None = None
    on_finish: Address | None = None
    headers: dict[str, str] = Field(default={}, description="Sent with every call, and shown to nobody.")
    timeout: Seconds = 15.0
    before_run_timeout: Seconds = 1800.0
    with_data: bool = Field(default=False, description="Calls about items carry the job's data.")
    defaults: dict[str, Any] = Field(default={}, description="Fields of a job that its caller left out.")
    description: str = Field(default="", max_length=500)


class BusinessChangeIn(BusinessFieldsIn):
    """Other values for some fields; null takes one away, or a member of headers or defaults."""

    headers: dict[str, str | None] = Field(  # type: ignore[assignment]
        default={}, description="Those named change; the others stay."
    )
    version: Version = None


class BusinessIn(BusinessFieldsIn):
    """A business that is reached over HTTP."""

    name: str = Field(min_length=1, max_length=120)
