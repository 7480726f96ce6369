"""Change what jobs may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.batches.operation import Target
from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.params import CONFIG, Config

__all__ = ["ChangeConfig"]


class ChangeConfig(CdcOperation):
    """Set `cpu`, `memory`, `max_package_size`, `replicas`: those that are given."""

    batch_type = "cdc_change_config"
    params = Config
    timeout = 20.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {name: target.after[name] for name in CONFIG if target.after.get(name) is not None}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.configure(target, state)
