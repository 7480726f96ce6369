"""A bulk job, and a business that is called over HTTP, as callers write them."""

from __future__ import annotations

from fusee.bulk.business import HttpBusiness
from fusee.bulk.model.spec import BulkSpec
from fusee.values.fields import Form

__all__ = ["ADJUSTABLE", "BULK", "BUSINESS", "FOLLOW_UP", "NO_DEFAULTS"]

BULK = Form(
    called="a bulk job",
    spec=BulkSpec,
    example='{"name": …, "business": …, "source": …}',
    apart=("data", "start"),
)
ADJUSTABLE = (
    "rate", "concurrency", "window", "error_budget", "item_attempts", "item_backoff", "item_timeout", "alerts"
)  # fmt: skip
"""Fields that can be changed later; item_attempts and item_backoff only while the job does not run."""
FOLLOW_UP = ("name", *(name for name in ADJUSTABLE if name != "window"))
"""Fields in which an undo, or a rerun of the quarantine, may differ from its job."""
NO_DEFAULTS = ("name", "business", "source")
"""Fields that a business cannot set for its jobs."""

BUSINESS = Form(called="a business", spec=HttpBusiness, example='{"name": "mail", "item": "https://…"}')
