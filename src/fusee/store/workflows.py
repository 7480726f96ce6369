"""Workflows: everything the store knows of them, each part in a file of its own."""

from __future__ import annotations

from fusee.store.workflow_looks import WorkflowLooks
from fusee.store.workflow_reruns import WorkflowReruns
from fusee.store.workflow_starts import WorkflowStarts
from fusee.store.workflow_waiters import WorkflowWaiters

__all__ = ["Workflows"]


class Workflows(WorkflowStarts, WorkflowReruns, WorkflowWaiters, WorkflowLooks):
    """Definitions, starts, ends, cancels, waiters, looks."""
