"""REST routes of workflows."""
