"""Placement: strategies that assign runs to workers."""
