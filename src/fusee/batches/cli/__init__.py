"""Commands of batches."""
