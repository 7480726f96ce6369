"""The facts of batches. Pure: standard library, `values` and the engine's model only."""
