"""Workflows: named graphs of tasks that are started as one."""
