"""Commands and queries about bulk jobs."""
