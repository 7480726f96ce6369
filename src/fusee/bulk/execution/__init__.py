"""Bulk jobs on a worker: the runner of a segment and what it calls."""
