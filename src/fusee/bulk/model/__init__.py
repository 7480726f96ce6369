"""The facts of bulk jobs. Pure: standard library, `values` and the engine's model only."""
