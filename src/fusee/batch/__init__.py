"""Batches on the worker's side: operations over targets, registered by users and by packs alike."""

from fusee.batch.operation import Operation, Target
from fusee.batch.registry import Operations

__all__ = ["Operation", "Operations", "Target"]
