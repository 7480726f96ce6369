"""The facts of workflows. Pure: standard library, `values` and the engine's model only."""
