"""Claim, execute, report."""

from fusee.worker.context import RunContext, current_run
from fusee.worker.handlers import Handler, Handlers
from fusee.worker.plan import Planner
from fusee.worker.settings import WorkerSettings
from fusee.worker.worker import Worker

__all__ = ["Handler", "Handlers", "Planner", "RunContext", "Worker", "WorkerSettings", "current_run"]
