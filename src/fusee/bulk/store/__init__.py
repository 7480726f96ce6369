"""The rows of bulk jobs."""
