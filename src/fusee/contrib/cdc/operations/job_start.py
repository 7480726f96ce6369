"""Start jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.operations.status import be
from fusee.contrib.cdc.params import Nothing

__all__ = ["JobStart"]


class JobStart(CdcOperation):
    """Make it run."""

    batch_type = "cdc_job_start"
    params = Nothing
    timeout = 20.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"status": "running"}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await be(self.driver, target, state["status"])
