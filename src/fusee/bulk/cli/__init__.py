"""Commands of bulk jobs."""
