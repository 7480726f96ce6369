"""Workflows: everything the store knows of them, each part in a file of its own."""

from __future__ import annotations

from fusee.workflows.store.parents import WorkflowWaiters
from fusee.workflows.store.queries import WorkflowLooks
from fusee.workflows.store.rerun import WorkflowReruns
from fusee.workflows.store.start import WorkflowStarts

__all__ = ["Workflows"]


class Workflows(WorkflowStarts, WorkflowReruns, WorkflowWaiters, WorkflowLooks):
    """Definitions, starts, ends, cancels, waiters, looks."""
