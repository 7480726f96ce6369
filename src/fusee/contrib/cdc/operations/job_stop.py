"""Stop jobs."""

from __future__ import annotations

from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.job_start import JobStart

__all__ = ["JobStop"]


class JobStop(JobStart):
    """Make it stop; its configuration and its position stay."""

    batch_type = "cdc_job_stop"

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"status": "stopped"}
