"""Switch jobs to another run system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import RunSystem

__all__ = ["SwitchRunSystem"]


class SwitchRunSystem(CdcOperation):
    """Have it run on `run_system`."""

    batch_type = "cdc_switch_run_system"
    params = RunSystem
    timeout = 30.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"run_system": target.after["run_system"]}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.set_run_system(target, state["run_system"])
