"""Have jobs read from another position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import Gtid

__all__ = ["ResetGtid"]


class ResetGtid(CdcOperation):
    """Read from `gtid` on, and be running, paused or stopped as before."""

    batch_type = "cdc_reset_gtid"
    params = Gtid
    timeout = 480.0

    def wanted(self, target: Target) -> dict[str, Any]:
        wanted = {"gtid": target.after["gtid"] or None}
        if target.image is not None:
            # An earlier attempt may have stopped it to set the position, and not come to start it again.
            wanted["status"] = target.image["status"]
        return wanted

    async def capture(self, target: Target) -> dict[str, Any]:
        seen = await self.driver.get(target, ("gtid", "status"))
        # One that was about to run, or had failed at it, is asked to run.
        return seen if seen["status"] in ("stopped", "paused") else {**seen, "status": "running"}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.reset_gtid(target, state["gtid"], state.get("status", "running"))
