"""Executors: each runs attempts of one kind. Their contract is `fusee.engine.worker.executor`."""
