"""Asking for a status that was seen before."""

from __future__ import annotations

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import Driver
from fusee.engine.model.outcome import Abandon

__all__ = ["be"]


async def be(driver: Driver, target: Target, status: object) -> None:
    match status:
        case "running":
            await driver.start(target)
        case "paused":
            await driver.pause(target)
        case "stopped":
            await driver.stop(target)
        case _:
            raise Abandon(f"the job was {status}: nobody can ask for that, so it is left as it is")
