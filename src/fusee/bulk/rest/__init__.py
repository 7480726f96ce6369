"""REST routes of bulk jobs."""
