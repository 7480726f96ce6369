"""The rows of batches."""
