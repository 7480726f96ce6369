"""The rows of placement."""
