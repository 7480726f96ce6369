"""The operations of the pack, each with its name, its parameters and its timeout."""

from fusee.contrib.cdc.operations.base import CdcOperation
from fusee.contrib.cdc.operations.change_config import ChangeConfig
from fusee.contrib.cdc.operations.job_status import JobStart, JobStop
from fusee.contrib.cdc.operations.migrate import MigrateToCdc
from fusee.contrib.cdc.operations.reset_gtid import ResetGtid
from fusee.contrib.cdc.operations.switch_az import SwitchAz
from fusee.contrib.cdc.operations.switch_run_system import SwitchRunSystem

__all__ = ["OPERATIONS", "CdcOperation"]

OPERATIONS: tuple[type[CdcOperation], ...] = (
    JobStart,
    JobStop,
    SwitchAz,
    ResetGtid,
    ChangeConfig,
    SwitchRunSystem,
    MigrateToCdc,
)
