"""The rows of workflows."""
