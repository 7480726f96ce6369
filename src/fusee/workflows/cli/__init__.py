"""Commands of workflows."""
