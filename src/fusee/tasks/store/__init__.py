"""The rows of tasks."""
