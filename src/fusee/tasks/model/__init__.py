"""The facts of tasks. Pure: standard library, `values` and the engine's model only."""
