"""Batches: one operation over many targets, with plan, ramp, retry and rollback."""
