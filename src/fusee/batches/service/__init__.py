"""Commands and queries about batches."""
