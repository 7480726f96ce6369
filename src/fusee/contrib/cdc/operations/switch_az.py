"""Switch jobs to another availability zone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import Az

__all__ = ["SwitchAz"]


class SwitchAz(CdcOperation):
    """Move it to zone `az`."""

    batch_type = "cdc_switch_az"
    params = Az
    timeout = 30.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"az": target.after["az"]}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.move_az(target, state["az"])
