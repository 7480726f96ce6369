"""Runs, queues, workers and callbacks as people see them: service, REST and command line over the engine."""
