"""REST routes of batches."""
