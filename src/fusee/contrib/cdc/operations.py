"""The operations of the pack, each with its name, its parameters and its timeout.

An operation makes a job show something else than it did: it says what it wants to see, and how to get there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fusee.batches.operation import Target
from fusee.contrib.cdc.driver import Driver, Migrates
from fusee.contrib.cdc.params import CONFIG, Az, Gtid, JobConfig, Migration, Nothing, Params, RunSystem
from fusee.engine.model.outcome import Abandon

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee

__all__ = [
    "OPERATIONS",
    "CdcOperation",
    "ChangeConfig",
    "JobStart",
    "JobStop",
    "MigrateToCdc",
    "ResetGtid",
    "SwitchAz",
    "SwitchRunSystem",
    "register",
]


class CdcOperation(ABC):
    """Says what it wants to see, and how to get there; the rest follows."""

    batch_type: ClassVar[str]
    params: ClassVar[type[Params]]
    timeout: ClassVar[float]
    """Seconds for one attempt."""
    target_types: ClassVar[tuple[str, ...]] = ("cdc", "panama")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @abstractmethod
    def wanted(self, target: Target) -> dict[str, Any]:
        """What the job shows when the operation is done."""

    @abstractmethod
    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        """Make it show that: what is wanted, or what it was."""

    async def finished(self, target: Target) -> bool:
        wanted = self.wanted(target)
        return await self.driver.get(target, wanted) == wanted

    async def capture(self, target: Target) -> dict[str, Any]:
        return await self.driver.get(target, self.wanted(target))

    async def apply(self, target: Target) -> None:
        await self.put(target, self.wanted(target))

    async def undo(self, target: Target) -> None:
        await self.put(target, self.was(target))

    async def undone(self, target: Target) -> bool:
        was = self.was(target)
        return await self.driver.get(target, was) == was

    def was(self, target: Target) -> Mapping[str, Any]:
        """What to go back to: what was seen, else what the caller said."""
        if target.image is not None:
            return dict(target.image)
        names = self.wanted(target)
        if missing := [name for name in names if name not in target.before]:
            raise Abandon(
                f"nothing is known to go back to: no image was kept, and `before` lacks {', '.join(missing)}"
            )
        return {name: target.before[name] for name in names}


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


class SwitchAz(CdcOperation):
    """Move it to zone `az`."""

    batch_type = "cdc_switch_az"
    params = Az
    timeout = 30.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"az": target.after["az"]}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.move_az(target, state["az"])


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


class ChangeConfig(CdcOperation):
    """Set `cpu`, `memory`, `max_package_size`, `replicas`: those that are given."""

    batch_type = "cdc_change_config"
    params = JobConfig
    timeout = 20.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {name: target.after[name] for name in CONFIG if target.after.get(name) is not None}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.configure(target, state)


class SwitchRunSystem(CdcOperation):
    """Have it run on `run_system`."""

    batch_type = "cdc_switch_run_system"
    params = RunSystem
    timeout = 30.0

    def wanted(self, target: Target) -> dict[str, Any]:
        return {"run_system": target.after["run_system"]}

    async def put(self, target: Target, state: Mapping[str, Any]) -> None:
        await self.driver.set_run_system(target, state["run_system"])


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


OPERATIONS: tuple[type[CdcOperation], ...] = (
    JobStart,
    JobStop,
    SwitchAz,
    ResetGtid,
    ChangeConfig,
    SwitchRunSystem,
    MigrateToCdc,
)


def register(app: Fusee, driver: Driver) -> None:
    """Give the app every operation that this driver's control plane can do.

    Retries are those of all batch operations: two more tries after a timeout, or after a lost worker.
    """
    for kind in OPERATIONS:
        name, operation = kind.batch_type, kind(driver)
        for target_type in kind.target_types:
            if driver.serves(target_type, name):
                app.operation(target_type, name, params=kind.params, timeout=kind.timeout)(operation)
    app.on_close(driver.close)
