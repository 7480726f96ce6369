"""Commands and queries about runs, queues, workers, callbacks and dead letters."""
