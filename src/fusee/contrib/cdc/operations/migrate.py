"""Put CDC jobs in the place of Panama jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import Migrates
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import Migration

__all__ = ["MigrateToCdc"]


class MigrateToCdc(CdcOperation):
    """Stop the Panama job and have a new CDC job go on from its position."""

    batch_type = "panama_migrate_to_cdc"
    params = Migration
    # As long as a reset: one job is stopped, its position is handed over, another one is started.
    timeout = 480.0
    target_types = ("panama",)

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"cdc_job": target.after.get("cdc_job") or f"cdc-{target.id}"}

    async def capture(self, target: Target) -> dict[str, Any]:
        return await self.driver.get(target, ("cdc_job", "status"))

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        assert isinstance(self.driver, Migrates)
        if state["cdc_job"] is None:
            await self.driver.unmigrate(target, state["status"])
            return
        given = {name: value for name, value in target.after.items() if value is not None}
        given.pop("cdc_job", None)
        await self.driver.migrate(target, state["cdc_job"], given)
