"""The bodies of requests and responses about bulk jobs and businesses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fusee.bulk.business import KnownBusiness
from fusee.bulk.fields import ADJUSTABLE, BULK, BUSINESS, FOLLOW_UP
from fusee.bulk.model.job import BulkJob, BulkLog, Quarantined
from fusee.bulk.model.segment import Segment
from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body
from fusee.surfaces.rest.bodies import VERSION, Incoming, Reason, Version

__all__ = [
    "ADJUST",
    "BUSINESS_CHANGE",
    "BUSINESS_NEW",
    "CREATE",
    "FOLLOWING_UP",
    "BulkDataIn",
    "BulkExtendIn",
    "BulkLogIn",
    "BulkLogOut",
    "BulkLogPage",
    "BulkOut",
    "BulkPage",
    "BulkShown",
    "BulkStartIn",
    "BulkStopIn",
    "BusinessOut",
    "BusinessPage",
    "LoggedOut",
    "QuarantinePage",
    "QuarantinedOut",
    "SegmentOut",
]

_START = {"type": "boolean", "default": False, "description": "Start it at once."}
CREATE = Body(
    "BulkIn",
    BULK.schema(
        "A bulk job: one business over many items. Its business may set other defaults than these.",
        data={"default": None, "description": "The business's own data."},
        start=_START,
    ),
)
ADJUST = Body(
    "BulkRateIn",
    BULK.schema(
        "At least one of these; item_attempts and item_backoff only while the job does not run.",
        only=ADJUSTABLE,
        version=VERSION,
    ),
)
FOLLOWING_UP = Body(
    "BulkFollowUpIn",
    BULK.schema(
        "A new job over items of this one; fields that are left out stay as they are.",
        only=FOLLOW_UP,
        start=_START,
    ),
)
BUSINESS_NEW = Body(
    "BusinessIn", BUSINESS.schema("A business that is called over HTTP: the bulk handler with its callbacks.")
)
BUSINESS_CHANGE = Body(
    "BusinessChangeIn",
    BUSINESS.schema(
        "Changes of some fields; null removes one, or a member of headers or defaults.",
        only=[name for name in BUSINESS.fields if name != "name"],
        version=VERSION,
    ),
)


class BulkStartIn(Incoming):
    by_business: bool = Field(
        default=False, description="Its business starts it; refused unless it is `waiting_business`."
    )
    force: bool = Field(default=False, description="Start it also while it waits for its business.")
    version: Version = None


class BulkStopIn(Incoming):
    reason: Reason = "stopped by request"
    version: Version = None


class BulkExtendIn(Incoming):
    start: bool = Field(default=False, description="Start it at once.")
    version: Version = None


class BulkDataIn(Incoming):
    data: Any = Field(description="The business's own data; replaces all of it.")
    version: Version = None


class BulkLogIn(Incoming):
    text: str = Field(min_length=1, max_length=8000)


BulkOut = answer_of("BulkOut", BulkJob)
BulkPage = page_of(answer_of("BulkBrief", BulkJob, brief=True))
SegmentOut = answer_of("SegmentOut", Segment)
BulkShown = answer_of(
    "BulkShown",
    BulkJob,
    segment_count=int,
    segments=(list[SegmentOut], "In the order of their first item; at most the first thousand."),  # type: ignore[valid-type]
)
QuarantinedOut = answer_of("QuarantinedOut", Quarantined)
QuarantinePage = page_of(QuarantinedOut, name="QuarantinePage")
BulkLogOut = answer_of("BulkLogOut", BulkLog)
BulkLogPage = page_of(BulkLogOut)
BusinessOut = answer_of("BusinessOut", KnownBusiness)
BusinessPage = page_of(BusinessOut)


class LoggedOut(BaseModel):
    id: int = Field(description="The line's number in the job's log.")
