"""REST routes of runs, queues, workers and callbacks."""
