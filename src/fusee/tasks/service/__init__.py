"""Commands and queries about tasks."""
