"""Bulk jobs on the worker's side: businesses, the sources of their items, and the runner of a segment."""

from fusee.bulk.business import BulkContext, Business, Businesses, ChunkFailed, SelfStart

__all__ = ["BulkContext", "Business", "Businesses", "ChunkFailed", "SelfStart"]
