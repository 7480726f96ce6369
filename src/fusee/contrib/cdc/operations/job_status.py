"""Start jobs, and stop them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import Driver
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import Nothing
from fusee.engine.model.outcome import Abandon

__all__ = ["JobStart", "JobStop"]


class JobStart(CdcOperation):
    """Make the job run."""

    batch_type = "cdc_job_start"
    params = Nothing
    timeout = 20.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"status": "running"}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await _set_status(self.driver, target, state["status"])


class JobStop(CdcOperation):
    """Make the job stop; its configuration and its position stay."""

    batch_type = "cdc_job_stop"
    params = Nothing
    timeout = 20.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"status": "stopped"}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await _set_status(self.driver, target, state["status"])


async def _set_status(driver: Driver, target: Target, status: object) -> None:
    """Ask for a status that the job is wanted to have, or that it had before."""
    match status:
        case "running":
            await driver.start(target)
        case "paused":
            await driver.pause(target)
        case "stopped":
            await driver.stop(target)
        case _:
            raise Abandon(f"the job was {status}: nobody can ask for that, so it is left as it is")
