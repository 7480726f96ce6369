"""REST routes of tasks."""
